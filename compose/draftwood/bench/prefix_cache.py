"""Every mode of a pair asks for the same prompts, and each must find them as unknown as the first one did."""

import asyncio
from contextlib import AsyncExitStack, aclosing

from draftwood_client import AsyncClient
from draftwood_wire.errors import Unavailable
from draftwood_wire.transport import open_channel
from draftwood_wire.v1.verifier_service_pb2 import GetLoadRequest, GetLoadResponse
from draftwood_wire.v1.verifier_service_pb2_grpc import VerifierServiceStub

_POLL_S = 0.005
_TIMEOUT_S = 120.0


class PrefixCache:
    """The prefix cache of one verifier behind a gateway, for one event loop."""

    def __init__(self, client: AsyncClient, verifier: str) -> None:
        self._client = client
        self._channel = open_channel(verifier)
        self._stub = VerifierServiceStub(self._channel)

    async def empty(self) -> None:
        """Wait until the verifier is idle, then have requests reserve all of its pages at once.

        A request reserves what it may need in the worst case, and reserved pages lose what was cached in them.
        Raises Unavailable when that takes minutes.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._reserve_all()
                await self._idle()
        except TimeoutError as error:
            raise Unavailable(f"the verifier did not give up its cached pages within {_TIMEOUT_S:g} s") from error

    async def _reserve_all(self) -> None:
        async with AsyncExitStack() as held:
            free = (await self._idle()).kv_pages_free
            await self._reserve(held)
            each = free - (await self._load()).kv_pages_free
            await asyncio.gather(*(self._reserve(held) for _ in range(free // each - 1)))

    async def close(self) -> None:
        await self._channel.close(None)

    async def _reserve(self, held: AsyncExitStack) -> None:
        # Without max_tokens it may go to the context limit.
        stream = self._client.stream("#", ignore_eos=True, speculation="off")
        await anext(await held.enter_async_context(aclosing(stream)))

    async def _idle(self) -> GetLoadResponse:
        while (load := await self._load()).running_requests:
            await asyncio.sleep(_POLL_S)
        return load

    async def _load(self) -> GetLoadResponse:
        return await self._stub.GetLoad(GetLoadRequest())
