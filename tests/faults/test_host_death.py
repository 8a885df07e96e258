"""A host that is gone ends the group on the other one; a rank that is gone, with restarts allowed, starts it again."""

import asyncio
import os
import signal
import time
from pathlib import Path

import grpc
import pytest

from tests.services.verifier_harness import run
from tests.services.verifier_hosts import LIMIT_S, verifier_on_hosts
from tests.services.verifier_process import decoding, listening, write_checkpoint

PROMPT = [5, 0, 9, 33, 2]


@pytest.mark.parametrize(("killed", "left"), [(1, 0), (0, 1)])
def test_the_other_host_ends_with_an_error(killed: int, left: int, tmp_path: Path) -> None:
    async def body() -> None:
        async with verifier_on_hosts(write_checkpoint(tmp_path)) as (served, hosts):
            status = await decoding(served)
            hosts[killed].die()
            started = time.monotonic()
            _, errors = await asyncio.to_thread(hosts[left].torchrun.communicate, timeout=LIMIT_S)
            assert time.monotonic() - started < LIMIT_S
            # Torchrun's stderr is its rank's, too: it has ended, or nobody would have read to the end.
            assert hosts[left].torchrun.returncode == 1
            told = f"rank {left} of 2 can't go on with the others"
            assert told in errors or f"rank {killed} of 2 is gone" in errors
            assert await status() is grpc.StatusCode.UNAVAILABLE

    run(body(), limit_s=120)


@pytest.mark.parametrize("killed", [0, 1])
def test_the_group_is_started_again(killed: int, tmp_path: Path) -> None:
    """Torchrun's store is the same for the second group, and so is what the first one has written there."""

    async def body() -> None:
        async with verifier_on_hosts(write_checkpoint(tmp_path), "--max-restarts", "1") as (served, hosts):
            tokens = (await served.generate(PROMPT)).tokens
            (rank,) = hosts[killed].ranks
            os.kill(rank, signal.SIGKILL)
            again = await listening(hosts[0].torchrun)
            assert (await again.generate(PROMPT)).tokens == tokens
            await again.channel.close()

    run(body(), limit_s=120)
