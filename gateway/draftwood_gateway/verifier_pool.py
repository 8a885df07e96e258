"""The verifiers behind this gateway: which can be reached, which is least busy."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwood_wire.errors import Unavailable
from draftwood_wire.tls import ChannelTls
from draftwood_wire.transport import PLAINTEXT_CHANNEL, open_channel
from draftwood_wire.v1 import verifier_service_pb2 as pb
from draftwood_wire.v1.verifier_service_pb2_grpc import VerifierServiceStub

_LOG = logging.getLogger(__name__)
_REDIAL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What the verifiers say about the model behind them."""

    vocab_size: int
    context_limit: int
    eos_token_ids: frozenset[int]
    max_node_limit: int


class Verifier:
    """One verifier: its channel, whether it is healthy, how many of our calls it runs."""

    def __init__(self, address: str, tls: ChannelTls) -> None:
        self.address = address
        self.model: ServedModel | None = None  # None while it can't be used
        self.calls = 0
        self._channel = open_channel(address, tls)
        self.stub = VerifierServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def watch(self, fingerprint: str) -> AsyncIterator[ServedModel | None]:
        """The model served, at every change of health; None when it can't be used. Ends when the peer is lost."""
        request = health_pb2.HealthCheckRequest(service="")
        async for status in self._health.Watch(request, wait_for_ready=True):
            healthy = status.status == health_pb2.HealthCheckResponse.SERVING
            yield await self._ask_model(fingerprint) if healthy else None

    async def _ask_model(self, fingerprint: str) -> ServedModel | None:
        info = await self.stub.GetInfo(pb.GetInfoRequest(), timeout=5.0)
        if info.tokenizer_fingerprint and info.tokenizer_fingerprint != fingerprint:
            _LOG.error("verifier %s has another tokenizer.json (%s)", self.address, info.tokenizer_fingerprint)
            return None
        return ServedModel(
            vocab_size=info.vocab_size,
            context_limit=info.context_limit,
            eos_token_ids=frozenset(info.eos_token_ids),
            max_node_limit=info.max_node_limit,
        )

    async def close(self) -> None:
        await self._channel.close(None)


class VerifierPool:
    """Use as an async context: health is watched from entry to exit."""

    def __init__(self, addresses: Sequence[str], fingerprint: str, tls: ChannelTls = PLAINTEXT_CHANNEL) -> None:
        self._verifiers = [Verifier(address, tls) for address in addresses]
        self._fingerprint = fingerprint
        self._changed = asyncio.Condition()
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "VerifierPool":
        self._watchers = [asyncio.create_task(self._watch(verifier)) for verifier in self._verifiers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for verifier in self._verifiers:
            await verifier.close()

    @property
    def model(self) -> ServedModel | None:
        """None when no verifier can be reached."""
        return next((verifier.model for verifier in self._verifiers if verifier.model is not None), None)

    @property
    def reachable(self) -> int:
        """How many verifiers can be used; asked from any thread."""
        return sum(verifier.model is not None for verifier in self._verifiers)

    def has_other_than(self, verifiers: Collection[Verifier]) -> bool:
        """Whether a verifier outside `verifiers` can be reached."""
        return any(verifier.model is not None and verifier not in verifiers for verifier in self._verifiers)

    async def wait_until_ready(self, timeout_s: float) -> bool:
        """Whether a verifier could be reached within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.model is not None)
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def lease(self, avoid: Collection[Verifier], wait_s: float) -> AsyncIterator[Verifier]:
        """The least busy verifier, one of `avoid` only when there is no other. Raises Unavailable after `wait_s`."""
        if self.model is None and not await self.wait_until_ready(wait_s):
            raise Unavailable("no verifier can be reached")
        ready = [verifier for verifier in self._verifiers if verifier.model is not None]
        chosen = min(ready, key=lambda verifier: (verifier in avoid, verifier.calls))
        chosen.calls += 1
        try:
            yield chosen
        finally:
            chosen.calls -= 1

    async def _watch(self, verifier: Verifier) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for model in verifier.watch(self._fingerprint):
                    await self._set(verifier, model)
            await self._set(verifier, None)
            await asyncio.sleep(_REDIAL_S)

    async def _set(self, verifier: Verifier, model: ServedModel | None) -> None:
        if (verifier.model is None) != (model is None):
            _LOG.info("verifier %s is %s", verifier.address, "reachable" if model else "unreachable")
        async with self._changed:
            verifier.model = model
            self._changed.notify_all()
