"""Every service can be asked what it is by standard tools: gRPC health and reflection."""

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from draftwood_wire.transport import open_blocking_channel
from tests.services.processes import Services

SERVICES = {
    "verifier": "draftwood_wire.v1.VerifierService",
    "drafter": "draftwood_wire.v1.DrafterService",
    "gateway": "draftwood_wire.v1.GatewayService",
}


def address_of(services: Services, name: str) -> str:
    if name == "gateway":
        return services.stack.grpc
    process = getattr(services.stack, name)
    return str(process.addresses["address"])


@pytest.mark.parametrize("name", SERVICES)
def test_health_and_reflection(services: Services, name: str) -> None:
    with open_blocking_channel(address_of(services, name)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for asked in ("", SERVICES[name]):
            answer = health.Check(health_pb2.HealthCheckRequest(service=asked), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICES[name], "grpc.health.v1.Health"} <= set(reflection.get_services())
