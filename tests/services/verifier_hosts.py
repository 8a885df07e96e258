"""Two hosts' torchruns on loopback, started as docs/parallelism.md says, that hold one target together."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from tests.services.processes import children_of, watched
from tests.services.verifier_process import Process, end_processes, free_port, listening, under

HOSTS = 2
LIMIT_S = 10.0


class Host:
    """A torchrun, with its stderr, and the one rank that it starts; host 0 has rank 0."""

    def __init__(self, torchrun: subprocess.Popen[str]) -> None:
        self.torchrun = torchrun

    @property
    def ranks(self) -> list[int]:
        """Process ids: one, and none between a rank's end and the next one's start."""
        return children_of(self.torchrun.pid) if self.torchrun.poll() is None else []

    def die(self) -> None:
        """As with the power gone: nobody gets to say anything, torchrun first, or it would hear of its rank's end."""
        for pid in (self.torchrun.pid, *self.ranks):
            os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def verifier_on_hosts(checkpoint: Path, *torchrun: str) -> AsyncIterator[tuple[Process, list[Host]]]:
    """A client of rank 0, and the hosts. No rank outlives it."""
    with free_port() as port:
        meeting = ["--nnodes", str(HOSTS), "--master-addr", "127.0.0.1", "--master-port", str(port), *torchrun]
    hosts = [_start(checkpoint, ["--node-rank", str(host), *meeting]) for host in range(HOSTS)]
    try:
        client = await listening(hosts[0].torchrun)
        yield client, hosts
        await client.channel.close()
    finally:
        with watched([rank for host in hosts for rank in host.ranks]) as survivors:
            end_processes([host.torchrun for host in hosts])
            left = await asyncio.to_thread(survivors, LIMIT_S)
            for rank in left:
                os.kill(rank, signal.SIGKILL)
            assert left == []


def _start(checkpoint: Path, torchrun: list[str]) -> Host:
    return Host(
        subprocess.Popen(
            under(["--nproc-per-node", "1", *torchrun], checkpoint),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
    )
