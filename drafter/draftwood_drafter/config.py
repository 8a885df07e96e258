"""All settings of one drafter, and the command line made from them."""

import argparse
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import get_type_hints

from draftwood_wire.tls import ChannelTls, ServerTls
from draftwood_wire.tree import MAX_NODES


class Head(StrEnum):
    """Whose copy of the target's head turns hidden states into trees."""

    DRAFTER = "drafter"
    VERIFIER = "verifier"


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    target: Path = field(metadata={"help": "folder of the target's checkpoint: embedding, head and tokenizer are read"})
    draft: Path = field(metadata={"help": "folder of the DFlash checkpoint"})
    verifier: str = field(metadata={"help": "host:port of the verifier to dial"})
    listen: str = field(default="127.0.0.1:0", metadata={"help": "host:port to serve on; port 0 picks one"})
    verifier_ca: str = field(default="", metadata={"help": "PEM file of the verifier's authority; none: plaintext"})
    tls_certificate: str = field(default="", metadata={"help": "PEM file of this service's certificate chain"})
    tls_key: str = field(default="", metadata={"help": "PEM file of its key; both are shown to the verifier too"})
    tls_client_ca: str = field(default="", metadata={"help": "PEM file of the authority that clients must come from"})
    id: str = field(default="drafter", metadata={"help": "name that the verifier sees"})
    context_pages: int = field(default=4096, metadata={"help": "pages for the context of all sessions together"})
    page_size: int = field(default=16, metadata={"help": "positions in a page"})
    node_limit: int = field(default=MAX_NODES, metadata={"help": "most nodes in a tree"})
    head: Head = field(
        default=Head.DRAFTER,
        metadata={"help": "who holds the target's head: drafter, or verifier, which then makes trees of hidden states"},
    )
    device: str = field(default="cpu", metadata={"help": "where the model is: cpu, cuda, or one of several as cuda:1"})
    threads: int = field(default=0, metadata={"help": "threads of one draft step at most; 0 leaves torch's choice"})
    redial_min_s: float = field(default=0.1, metadata={"help": "wait before the second attempt to reach the verifier"})
    redial_max_s: float = field(default=2.0, metadata={"help": "longest wait between two attempts"})
    metrics: str = field(
        default="", metadata={"help": "host:port to serve Prometheus metrics on; port 0 picks one; empty: none"}
    )

    def __post_init__(self) -> None:
        _require("context_pages", self.context_pages, self.context_pages >= 1, "at least 1")
        _require("page_size", self.page_size, self.page_size >= 1, "at least 1")
        _require("node_limit", self.node_limit, 1 <= self.node_limit <= MAX_NODES, f"1 to {MAX_NODES}")
        _require("threads", self.threads, self.threads >= 0, "at least 0")
        _require("redial_min_s", self.redial_min_s, self.redial_min_s > 0, "above 0")
        _require("redial_max_s", self.redial_max_s, self.redial_max_s >= self.redial_min_s, "at least redial_min_s")
        _ = self.tls, self.verifier_tls

    @property
    def tls(self) -> ServerTls:
        return ServerTls(certificate=self.tls_certificate, key=self.tls_key, client_ca=self.tls_client_ca)

    @property
    def verifier_tls(self) -> ChannelTls:
        return ChannelTls(ca=self.verifier_ca, certificate=self.tls_certificate, key=self.tls_key)


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name}: {value}, must be {wanted}")


def parse_config(arguments: list[str] | None = None) -> DrafterConfig:
    """Read the command line; exits with 2 and a message that names the option when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m draftwood_drafter", description="Proposes token trees to a Draftwood verifier."
    )
    types = get_type_hints(DrafterConfig)
    for setting in fields(DrafterConfig):
        required = setting.default is MISSING
        parser.add_argument(
            "--" + setting.name.replace("_", "-"),
            type=types[setting.name],
            required=required,
            default=None if required else setting.default,
            help=setting.metadata["help"] + ("" if required else f" ({setting.default})"),
        )
    options = vars(parser.parse_args(arguments))
    try:
        return DrafterConfig(**options)
    except ValueError as error:
        parser.error(str(error))
