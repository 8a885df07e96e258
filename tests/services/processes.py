"""Real services as real processes, and what tests ask of them. Stopped by pid; none outlives the test run."""

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from draftwood.models import embedded_pair
from draftwood.stack import Stack, StackOptions, running_stack
from draftwood_wire.transport import open_blocking_channel
from draftwood_wire.v1.drafter_service_pb2 import DrafterServiceGetInfoRequest, DrafterServiceGetInfoResponse
from draftwood_wire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from draftwood_wire.v1.gateway_service_pb2 import (
    GatewayServiceGenerateRequest,
    GatewayServiceGenerateResponse,
    TextRequest,
)
from draftwood_wire.v1.gateway_service_pb2_grpc import GatewayServiceStub
from draftwood_wire.v1.verifier_service_pb2 import GetLoadRequest, GetLoadResponse
from draftwood_wire.v1.verifier_service_pb2_grpc import VerifierServiceStub

CALL_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Services:
    """A running stack and typed stubs for it; the drafter's channel is opened for each call, as it may restart."""

    stack: Stack
    gateway: GatewayServiceStub
    verifier: VerifierServiceStub

    def generate(self, request: TextRequest) -> GatewayServiceGenerateResponse:
        return self.gateway.Generate(GatewayServiceGenerateRequest(request=request), timeout=CALL_TIMEOUT_S)

    def generate_together(self, requests: Sequence[TextRequest]) -> list[GatewayServiceGenerateResponse]:
        """All at once, so that they share the verifier's batches; answers in the order of the requests."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self.generate, requests))

    def load(self) -> GetLoadResponse:
        return self.verifier.GetLoad(GetLoadRequest(), timeout=CALL_TIMEOUT_S)

    def drafter_info(self) -> DrafterServiceGetInfoResponse:
        assert self.stack.drafter is not None
        with open_blocking_channel(self.stack.drafter.addresses["address"]) as channel:
            return DrafterServiceStub(channel).GetInfo(DrafterServiceGetInfoRequest(), timeout=CALL_TIMEOUT_S)


def embedded_options(*, with_drafter: bool = True) -> StackOptions:
    pair = embedded_pair()
    return StackOptions(target=pair.target, draft=pair.drafter if with_drafter else None)


@contextmanager
def running_services(options: StackOptions) -> Iterator[Services]:
    with (
        running_stack(options) as stack,
        open_blocking_channel(stack.grpc) as gateway,
        open_blocking_channel(stack.verifier.addresses["address"]) as verifier,
    ):
        yield Services(stack=stack, gateway=GatewayServiceStub(gateway), verifier=VerifierServiceStub(verifier))


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Ask a service for its state until `condition` holds; fails the test at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@contextmanager
def watched(pids: Sequence[int]) -> Iterator[Callable[[float], list[int]]]:
    """Hold on to processes that may not be ours to wait for; call the result to learn which outlive a timeout."""
    handles = {os.pidfd_open(pid): pid for pid in pids}

    def survivors(timeout_s: float) -> list[int]:
        deadline = time.monotonic() + timeout_s
        return [pid for fd, pid in handles.items() if not _readable(fd, deadline)]

    try:
        yield survivors
    finally:
        for fd in handles:
            os.close(fd)


def _readable(fd: int, deadline: float) -> bool:
    """A pidfd becomes readable when its process ends."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
