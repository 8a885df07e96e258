"""The death of a rank ends the group: every process, soon, with an error that says whose death it was."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import grpc
import pytest

from tests.services.processes import children_of, watched
from tests.services.verifier_harness import run
from tests.services.verifier_process import decoding, verifier, verifier_by_hand, write_checkpoint

LIMIT_S = 10.0
PROMPT = [5, 0, 9, 33, 2]


@pytest.mark.parametrize(("killed", "left"), [(1, 0), (0, 1)])
def test_kill_nine_in_mid_decoding(killed: int, left: int, tmp_path: Path) -> None:
    async def body() -> None:
        async with verifier_by_hand(write_checkpoint(tmp_path), ranks=2) as (served, processes):
            status = await decoding(served)
            processes[killed].kill()
            started = time.monotonic()
            _, errors = await asyncio.to_thread(processes[left].communicate, timeout=LIMIT_S)
            assert time.monotonic() - started < LIMIT_S
            assert processes[left].returncode == 1
            told = f"rank {left} of 2 can't go on with the others"
            assert told in errors or f"rank {killed} of 2 is gone" in errors
            assert await status() is grpc.StatusCode.UNAVAILABLE

    run(body(), limit_s=120)


@pytest.mark.parametrize(("killed", "others"), [(2, (0, 1)), (0, (1, 2))])
def test_kill_nine_while_idle(killed: int, others: tuple[int, int], tmp_path: Path) -> None:
    """Nobody says anything then: only the lifeline can tell."""

    async def body() -> None:
        async with verifier_by_hand(write_checkpoint(tmp_path), ranks=4) as (served, processes):
            await served.generate(PROMPT)
            processes[killed].kill()
            for rank in others:
                _, errors = await asyncio.to_thread(processes[rank].communicate, timeout=LIMIT_S)
                assert processes[rank].returncode == 1
                # A follower waits for rank 0 in an exchange, too, which may be the first to tell.
                told = "rank 2 of 4 is gone" if rank == 0 else f"rank {rank} of 4 can't go on with the others"
                assert told in errors or "rank 0 of 4 is gone" in errors
                assert "Traceback" not in errors

    run(body(), limit_s=120)


def rank_of(pid: int) -> str | None:
    variables = dict(
        variable.split("=", 1) for variable in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in variable
    )
    return variables.get("RANK")


def workers(torchrun: subprocess.Popen[str]) -> dict[str, int]:
    """Process ids by rank."""
    return {rank: pid for pid in children_of(torchrun.pid) if (rank := rank_of(pid)) is not None}


@pytest.mark.parametrize("killed", ["0", "1"])
def test_torchrun_ends_with_an_error(killed: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with verifier(write_checkpoint(tmp_path), ranks=2) as served:
            await decoding(served)
            pids = workers(served.process)
            with watched(list(pids.values())) as survivors:
                os.kill(pids[killed], signal.SIGKILL)
                assert await asyncio.to_thread(survivors, LIMIT_S) == []
                assert await asyncio.to_thread(served.process.wait, LIMIT_S) != 0

    run(body(), limit_s=120)


def test_nobody_outlives_torchrun(tmp_path: Path) -> None:
    async def body() -> None:
        async with verifier(write_checkpoint(tmp_path), ranks=2) as served:
            with watched(list(workers(served.process).values())) as survivors:
                served.process.kill()
                assert await asyncio.to_thread(survivors, LIMIT_S) == []

    run(body(), limit_s=120)
