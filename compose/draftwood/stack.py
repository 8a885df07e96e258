"""The three services of one machine, started in order and stopped in the reverse one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from draftwood import tuning
from draftwood.processes import ServiceProcess, start_service
from draftwood.readiness import wait_until_joined, wait_until_serving
from draftwood_drafter.config import Head
from draftwood_verifier.config import MATCHING, REJECTION

FREE_PORT = "127.0.0.1:0"


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """What to start and where; addresses are `host:port`, port 0 takes a free one. No `draft`: no drafter.

    `drafter_device`: none takes the target's `device`, and of plain `cuda` the card after those of the ranks.
    `metrics_host`: where each service serves metrics, on a free port; empty for none.
    """

    target: Path
    draft: Path | None
    grpc: str = FREE_PORT
    http: str = FREE_PORT
    verifier: str = FREE_PORT
    drafter: str = FREE_PORT
    model_name: str = "draftwood"
    node_limit: int = tuning.NODE_LIMIT
    kv_pages: int | None = None
    context_pages: int | None = None
    # A module, and what comes before the drafter's options.
    drafter_module: tuple[str, ...] = ("draftwood_drafter",)
    tensor_parallel: int = 1
    device: str = "cpu"
    drafter_device: str | None = None
    head: str = Head.DRAFTER.value
    verification: str = MATCHING
    metrics_host: str = ""

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel: {self.tensor_parallel} is below 1")
        if self.verification == REJECTION and self.draft is not None and self.head != Head.VERIFIER.value:
            raise ValueError(f"verification: {REJECTION} needs the head on the verifier (--head verifier)")

    def verifier_command(self) -> tuple[str, list[str]]:
        """The module to run and its arguments; several ranks are started by torchrun."""
        module, arguments = "draftwood_verifier", self._verifier_arguments()
        if self.tensor_parallel == 1:
            return module, arguments
        ranks = ["--standalone", "--nproc-per-node", str(self.tensor_parallel)]
        return "torch.distributed.run", [*ranks, "-m", module, *arguments]

    def _verifier_arguments(self) -> list[str]:
        threads = max(1, tuning.VERIFIER_THREADS // self.tensor_parallel)
        arguments = ["--target", str(self.target), "--listen", self.verifier, "--model-name", self.model_name]
        arguments += ["--node-limit", str(self.node_limit), "--threads", str(threads)]
        arguments += ["--verification", self.verification, "--device", self.device]
        return arguments + _optional("--kv-pages", self.kv_pages) + self._metrics()

    def drafter_arguments(self, draft: Path, verifier: str, listen: str) -> list[str]:
        arguments = ["--target", str(self.target), "--draft", str(draft), "--verifier", verifier, "--listen", listen]
        arguments += ["--threads", str(tuning.DRAFTER_THREADS), "--head", self.head, "--device", self._drafter_device()]
        return arguments + _optional("--context-pages", self.context_pages) + self._metrics()

    def _drafter_device(self) -> str:
        if self.drafter_device is not None:
            return self.drafter_device
        return f"cuda:{self.tensor_parallel}" if self.device == "cuda" else self.device

    def gateway_arguments(self, verifier: str) -> list[str]:
        arguments = ["--tokenizer", str(self.target), "--verifier", verifier, "--model-name", self.model_name]
        return [*arguments, "--grpc", self.grpc, "--http", self.http, *self._metrics()]

    def _metrics(self) -> list[str]:
        return ["--metrics", f"{self.metrics_host}:0"] if self.metrics_host else []


def _optional(flag: str, value: int | None) -> list[str]:
    return [] if value is None else [flag, str(value)]


@dataclass(kw_only=True)
class Stack:
    """Running services. The drafter comes and goes; the two others are there for as long as the stack is."""

    options: StackOptions
    verifier: ServiceProcess
    gateway: ServiceProcess
    drafter: ServiceProcess | None = None
    log: IO[str] | None = None
    _drafter_listen: str = field(default="", init=False)

    @property
    def grpc(self) -> str:
        return self.gateway.addresses["grpc"]

    @property
    def http(self) -> str:
        return self.gateway.addresses["http"]

    def start_drafter(self) -> None:
        """Start the drafter, or start it again at the address that it had; returns once it has joined."""
        if self.options.draft is None:
            return
        listen = self._drafter_listen or self.options.drafter
        arguments = self.options.drafter_arguments(self.options.draft, self.verifier.addresses["address"], listen)
        module, *kind = self.options.drafter_module
        self.drafter = start_service("drafter", module, [*kind, *arguments], log=self.log)
        self._drafter_listen = self.drafter.addresses["address"]
        wait_until_joined(self._drafter_listen)

    def stop(self) -> None:
        """Clients first: the gateway drains while the others still work."""
        for service in (self.gateway, self.drafter, self.verifier):
            if service is not None:
                service.stop()


@contextmanager
def running_stack(options: StackOptions, log: IO[str] | None = None) -> Iterator[Stack]:
    """Start all services, yield them once they are healthy, stop them all whatever happens.

    Stay on one thread that outlives the stack (see `start_service`). Raises ServiceFailed or Unavailable.
    """
    started: list[ServiceProcess] = []
    stack: Stack | None = None
    try:
        verifier = start_service("verifier", *options.verifier_command(), log=log)
        started.append(verifier)
        arguments = options.gateway_arguments(verifier.addresses["address"])
        gateway = start_service("gateway", "draftwood_gateway", arguments, log=log)
        started.append(gateway)
        stack = Stack(options=options, verifier=verifier, gateway=gateway, log=log)
        stack.start_drafter()
        wait_until_serving("verifier", verifier.addresses["address"])
        wait_until_serving("gateway", stack.grpc)
        yield stack
    finally:
        if stack is not None:
            stack.stop()
        else:
            for service in reversed(started):
                service.stop()
