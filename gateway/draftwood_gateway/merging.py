"""Several generations as one, for requests with several prompts."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from draftwood_gateway.generation import TextDelta

_T = TypeVar("_T")


async def all_of(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results in order; the first error cancels the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancel(tasks)


async def merge(streams: Sequence[AsyncGenerator[TextDelta]]) -> AsyncGenerator[tuple[int, TextDelta]]:
    """Deltas with the index of their stream, as they come. The first error ends all streams, and so does leaving."""
    # One item: a reader that is slow slows the streams down.
    queue: asyncio.Queue[tuple[int, TextDelta | Exception | None]] = asyncio.Queue(1)
    tasks = [asyncio.create_task(_feed(queue, index, stream)) for index, stream in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield index, item
    finally:
        await _cancel(tasks)


async def _feed(
    queue: asyncio.Queue[tuple[int, TextDelta | Exception | None]], index: int, stream: AsyncGenerator[TextDelta]
) -> None:
    try:
        async for delta in stream:
            await queue.put((index, delta))
    except Exception as error:
        await queue.put((index, error))
    else:
        await queue.put((index, None))


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
