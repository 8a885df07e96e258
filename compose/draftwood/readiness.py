"""Wait, with a deadline, until a service answers and a drafter has joined."""

import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwood_wire.errors import Unavailable
from draftwood_wire.transport import open_blocking_channel
from draftwood_wire.v1.drafter_service_pb2 import DrafterServiceGetInfoRequest
from draftwood_wire.v1.drafter_service_pb2_grpc import DrafterServiceStub

READY_TIMEOUT_S = 60.0
_POLL_S = 0.05


def wait_until_serving(name: str, address: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Return when the standard health service says SERVING; raises Unavailable at the deadline."""
    deadline = time.monotonic() + timeout_s
    with open_blocking_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline:
            try:
                reply = stub.Check(
                    health_pb2.HealthCheckRequest(), timeout=deadline - time.monotonic(), wait_for_ready=True
                )
            except grpc.RpcError as error:
                raise Unavailable(f"the {name} at {address} does not answer: {error}") from error
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
            time.sleep(_POLL_S)
    raise Unavailable(f"the {name} at {address} was not serving after {timeout_s:g} s")


def wait_until_joined(address: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Return when the drafter at `address` has its stream to the verifier; raises Unavailable at the deadline."""
    deadline = time.monotonic() + timeout_s
    with open_blocking_channel(address) as channel:
        stub = DrafterServiceStub(channel)
        while time.monotonic() < deadline:
            if stub.GetInfo(DrafterServiceGetInfoRequest(), timeout=timeout_s, wait_for_ready=True).connected:
                return
            time.sleep(_POLL_S)
    raise Unavailable(f"the drafter at {address} did not reach its verifier within {timeout_s:g} s")
