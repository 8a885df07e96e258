"""Who is told of whose end."""

import contextlib
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch import distributed

from draftwood_verifier.parallel.lifeline import Lifeline

HOST, LIMIT_S = "127.0.0.1", 10.0


class Ranks:
    """Lifelines of three ranks, and what each has heard."""

    def __init__(self, store: distributed.Store) -> None:
        self.heard: list[queue.Queue[str]] = [queue.Queue() for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            self.lines = list(
                pool.map(
                    lambda rank: Lifeline(store, HOST, rank, 3, timeout_s=LIMIT_S, lost=self.heard[rank].put), range(3)
                )
            )

    def die(self, rank: int) -> None:
        """What the kernel does to the connections of a process that ends."""
        for connection in self.lines[rank]._peers.values():
            with contextlib.suppress(OSError):  # the peer was quicker
                connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        for rank, line in enumerate(self.lines):
            line.leave()
            self.die(rank)
        for line in self.lines:
            line.thread.join(LIMIT_S)
            assert not line.thread.is_alive()

    def hears(self, rank: int) -> str:
        return self.heard[rank].get(timeout=LIMIT_S)


@pytest.fixture
def store() -> distributed.Store:
    store = distributed.HashStore()
    store.set_timeout(timedelta(seconds=LIMIT_S))
    return store


@pytest.fixture
def ranks(store: distributed.Store) -> Iterator[Ranks]:
    ranks = Ranks(store)
    yield ranks
    ranks.end()


def test_rank_0_hears_of_any_death(ranks: Ranks) -> None:
    ranks.die(2)
    assert ranks.hears(0) == "rank 2 of 3 is gone; a group can't go on without it"
    assert ranks.heard[1].empty()


def test_all_hear_of_rank_0s_death(ranks: Ranks) -> None:
    ranks.die(0)
    assert {ranks.hears(1), ranks.hears(2)} == {"rank 0 of 3 is gone; a group can't go on without it"}


def test_a_death_is_heard_after_others_have_left(ranks: Ranks) -> None:
    ranks.lines[1].leave()
    ranks.die(1)
    ranks.die(2)
    assert ranks.hears(0).startswith("rank 2 of 3")
    assert ranks.heard[0].empty()


def test_nobody_hears_of_ends_in_order(ranks: Ranks) -> None:
    for rank in (2, 0, 1):
        ranks.lines[rank].leave()
        ranks.die(rank)
    ranks.end()
    assert all(heard.empty() for heard in ranks.heard)


# As a rank: the lifeline's thread ends a process whose others wait, here for as long as stdin is open.
ENDING = """
import sys, threading
from draftwood_verifier.parallel.lifeline import end_process
sys.stdin.read()
threading.Thread(target=end_process, args=("rank 1 of 2 is gone",), daemon=True).start()
threading.Event().wait()
"""


def test_a_process_ends_even_when_nobody_can_read_why() -> None:
    process = subprocess.Popen([sys.executable, "-c", ENDING], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        process.stderr.close()
        process.stdin.close()
        assert process.wait(6 * LIMIT_S) == 1
    finally:
        process.kill()
        process.wait()


def test_strangers_do_not_count(store: distributed.Store) -> None:
    """Somebody who knocks without the group's token, or without a word, is turned away."""
    heard: queue.Queue[str] = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Lifeline, store, HOST, 0, 2, timeout_s=LIMIT_S, lost=heard.put)
        port, _ = store.get("lifeline").decode().split()
        for hello in (b"x" * 20, b""):
            with socket.create_connection((HOST, int(port)), LIMIT_S) as stranger:
                stranger.sendall(hello)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""
        second = Lifeline(store, HOST, 1, 2, timeout_s=LIMIT_S, lost=heard.put)
        lines = [first.result(LIMIT_S), second]
    for line in lines:
        line.leave()
    for line in lines:
        line.thread.join(LIMIT_S)
    assert heard.empty()
