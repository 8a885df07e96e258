"""How the death of one rank ends them all, whatever the others are waiting for.

Every rank holds a connection to rank 0 on which nothing is said but good-bye. The kernel closes it when a process dies,
and its keepalive finds out when a host does: neither needs a thread of the dead process, nor one of ours that is
free, so a rank that loads, compiles or computes for long is not taken for dead. A rank that sees an end without a
good-bye ends its process; rank 0's end tells the rest.
"""

import contextlib
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from torch.distributed.distributed_c10d import PrefixStore, Store

_KEY = "lifeline"
_GOODBYE = b"."
_TOKEN_BYTES = 16
_CALL_TIMEOUT_S = 10.0
_BETWEEN_CALLS_S = 0.1
# A silent host is given up after 2 + 3 * 2 seconds.
_KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}

Lost = Callable[[str], None]


def end_process(message: str) -> NoReturn:
    """Say why on stderr and exit with 1, past whatever other threads wait for."""
    # Whoever read it may have died as well, which must not keep this process.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"draftwood_verifier: {message}\n")
        sys.stderr.flush()
    os._exit(1)


class Lifeline:
    """One rank's end of it. `lost` is called with what has happened, from a thread that ends when all have left.

    store: this group's own part of the one that it has met at, which outlives a group that torchrun starts again.
    """

    def __init__(
        self, store: Store, host: str, rank: int, size: int, *, timeout_s: float, lost: Lost = end_process
    ) -> None:
        """Return when rank 0, which listens at `host`, is connected with all others.

        Raises OSError; on rank 0 when some have not called within `timeout_s`.
        """
        self._size = size
        self._lost = lost
        if rank == 0:
            token = secrets.token_bytes(_TOKEN_BYTES)
            self._peers = _accept(store, host, size, token, timeout_s)
        else:
            token, connection = _call(store, host, rank, timeout_s)
            self._peers = {0: connection}
        self.store = PrefixStore(token.hex(), store)
        self._left = False
        self._selector = selectors.DefaultSelector()
        for peer, connection in self._peers.items():
            _keep_alive(connection)
            self._selector.register(connection, selectors.EVENT_READ, f"rank {peer} of {size}")
        self._watch_launcher()
        self.thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """This rank ends in order, and the others may."""
        self._left = True
        for connection in self._peers.values():
            # A peer that has left already is no news.
            with contextlib.suppress(OSError):
                connection.sendall(_GOODBYE)

    def _watch_launcher(self) -> None:
        """A worker of torchrun does not outlive it: nobody else would end it."""
        if "TORCHELASTIC_RUN_ID" in os.environ and hasattr(os, "pidfd_open"):
            self._selector.register(os.pidfd_open(os.getppid()), selectors.EVENT_READ, "torchrun")

    def _watch(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select():
                self._selector.unregister(key.fileobj)
                if not (isinstance(key.fileobj, socket.socket) and _said_goodbye(key.fileobj)) and not self._left:
                    self._lost(f"{key.data} is gone; a group can't go on without it")
        self._selector.close()
        for connection in self._peers.values():
            connection.close()


def _accept(store: Store, host: str, size: int, token: bytes, timeout_s: float) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    with socket.create_server((host, 0), family=_family(host)) as server:
        server.settimeout(timeout_s)
        store.set(_KEY, f"{server.getsockname()[1]} {token.hex()}")
        while len(peers) < size - 1:
            connection, _ = server.accept()
            connection.settimeout(_CALL_TIMEOUT_S)
            hello = _hello(connection)
            if hello[:_TOKEN_BYTES] == token:
                connection.settimeout(None)
                peers[int.from_bytes(hello[_TOKEN_BYTES:])] = connection
            else:
                connection.close()
    return peers


def _call(store: Store, host: str, rank: int, timeout_s: float) -> tuple[bytes, socket.socket]:
    """The group's token, and the connection.

    Of a group that is started again, the store may still have the last rank 0's number: nobody answers there, until
    the new one has written its own.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        port, token = store.get(_KEY).decode().split()
        try:
            connection = socket.create_connection((host, int(port)), timeout=_CALL_TIMEOUT_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_BETWEEN_CALLS_S)
    connection.settimeout(None)
    connection.sendall(bytes.fromhex(token) + rank.to_bytes(4))
    return bytes.fromhex(token), connection


def _hello(connection: socket.socket) -> bytes:
    """Token and rank; whatever came of them from a stranger."""
    hello = b""
    with contextlib.suppress(OSError):
        while len(hello) < _TOKEN_BYTES + 4 and (more := connection.recv(_TOKEN_BYTES + 4 - len(hello))):
            hello += more
    return hello


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # macOS names one of them otherwise; a host that vanishes is found later there.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _said_goodbye(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == _GOODBYE
    except OSError:
        return False
