"""Settings of the verifier process; the command line is made from the fields."""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from draftwood_wire.tls import ServerTls
from draftwood_wire.transport import DRAIN_S
from draftwood_wire.tree import MAX_NODES

MATCHING, REJECTION = "matching", "rejection"
# A plain row each fits the largest step that a GPU captures.
MAX_BATCH = 1024


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class VerifierConfig:
    target: Path = field(metadata={"help": "folder of the target model: config.json, safetensors, tokenizer.json"})
    listen: str = _option("127.0.0.1:0", "host:port of the gRPC server; port 0 takes a free one")
    tls_certificate: str = _option("", "PEM file of this service's certificate chain; plaintext when empty")
    tls_key: str = _option("", "PEM file of its key")
    tls_client_ca: str = _option("", "PEM file of the authority whose certificates clients must show")
    model_name: str = _option("", "name in GetInfo; the folder's name when empty")
    device: str = _option(
        "cpu", "cpu, in float32; or cuda, in bfloat16: the first card, under torchrun one a rank; cuda:1"
    )
    deterministic: bool = _option(
        False,
        "on a GPU: kernels that give a row the same bits whatever is beside it, so that drafts can't turn a near tie",
    )
    kv_pages: int = _option(2048, "pages of the KV cache, shared by all sessions")
    page_size: int = _option(16, "tokens a page")
    prefill_chunk: int = _option(256, "prompt tokens that one step takes at most")
    max_batch: int = _option(64, f"requests that run at once, up to {MAX_BATCH}")
    max_waiting: int = _option(256, "requests that wait at most; more are refused")
    node_limit: int = _option(16, "tree nodes a session and round when the request names none")
    verification: str = _option(
        MATCHING,
        f"{MATCHING}: tokens are drawn by seed and position, whatever is drafted; {REJECTION}: at temperature > 0 "
        "drafts are drawn too and weighed against the target (needs drafters with --head verifier)",
    )
    draft_wait_ms: float = _option(200.0, "how long a round waits for a drafter that kept up so far")
    draft_groups: int = _option(0, "groups that a drafter's sessions go in by turns, 1 or 2; 0: what proves quicker")
    costs: str = _option("", "file that keeps the measured step costs; empty: one for this target in the user's cache")
    drain_s: float = _option(DRAIN_S, "time that running requests get to finish after SIGTERM")
    threads: int = _option(0, "CPU threads of the target; 0 leaves the choice to torch")
    metrics: str = _option("", "host:port to serve Prometheus metrics on; port 0 takes a free one; empty: none")

    def __post_init__(self) -> None:
        for name in ("kv_pages", "page_size", "prefill_chunk", "max_batch", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")
        if self.max_batch > MAX_BATCH:
            raise ValueError(f"max_batch: {self.max_batch} is above {MAX_BATCH}")
        if not 1 <= self.node_limit <= MAX_NODES:
            raise ValueError(f"node_limit: {self.node_limit} is outside 1..{MAX_NODES}")
        if self.verification not in (MATCHING, REJECTION):
            raise ValueError(f"verification: {self.verification} is not {MATCHING} or {REJECTION}")
        if self.draft_groups not in (0, 1, 2):
            raise ValueError(f"draft_groups: {self.draft_groups} is not 0, 1 or 2")
        for name in ("draft_wait_ms", "drain_s", "threads"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        _ = self.tls

    @property
    def tls(self) -> ServerTls:
        return ServerTls(certificate=self.tls_certificate, key=self.tls_key, client_ca=self.tls_client_ca)

    @property
    def rejection(self) -> bool:
        return self.verification == REJECTION

    @property
    def served_model(self) -> str:
        return self.model_name or self.target.resolve().name


def parse_config(arguments: Sequence[str] | None = None) -> VerifierConfig:
    """The config of a command line; exits with a usage message when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m draftwood_verifier", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    hints = get_type_hints(VerifierConfig)
    for entry in dataclasses.fields(VerifierConfig):
        if hints[entry.name] is bool:
            parser.add_argument("--" + entry.name.replace("_", "-"), action="store_true", help=entry.metadata["help"])
            continue
        required = entry.default is dataclasses.MISSING
        parser.add_argument(
            "--" + entry.name.replace("_", "-"),
            type=hints[entry.name],
            required=required,
            default=None if required else entry.default,
            help=entry.metadata["help"],
        )
    try:
        return VerifierConfig(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))
