"""Settings of the gateway process; the command line is made from the fields."""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from draftwood_wire.tls import ChannelTls, ServerTls
from draftwood_wire.transport import DRAIN_S


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    tokenizer: Path = field(metadata={"help": "folder with the target's tokenizer.json and tokenizer_config.json"})
    verifier: tuple[str, ...] = field(metadata={"help": "host:port of a verifier; repeatable"})
    grpc: str = _option("127.0.0.1:0", "host:port of the gRPC server; port 0 takes a free one")
    http: str = _option("127.0.0.1:0", "host:port of the OpenAI-compatible server; port 0 takes a free one")
    api_keys: str = _option("", "file with one API key a line; everybody may call when empty")
    tls_certificate: str = _option("", "PEM file of this service's certificate chain; plaintext when empty")
    tls_key: str = _option("", "PEM file of its key; both are shown to the verifiers too")
    verifier_ca: str = _option("", "PEM file of the verifiers' authority; plaintext when empty")
    model_name: str = _option("", "what clients call the model; the folder's name when empty")
    start_wait_s: float = _option(5.0, "how long the start waits for a first verifier before it goes on without")
    resume_wait_s: float = _option(10.0, "how long a broken stream waits for a verifier that can go on with it")
    drain_s: float = _option(DRAIN_S, "time that running requests get to finish after SIGTERM")
    metrics: str = _option("", "host:port to serve Prometheus metrics on; port 0 takes a free one; empty: none")

    def __post_init__(self) -> None:
        if not self.verifier:
            raise ValueError("verifier: at least one address is needed")
        if not (self.tokenizer / "tokenizer.json").is_file():
            raise ValueError(f"tokenizer: {self.tokenizer} has no tokenizer.json")
        for name in ("start_wait_s", "resume_wait_s", "drain_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        _ = self.tls, self.verifier_tls

    @property
    def tls(self) -> ServerTls:
        return ServerTls(certificate=self.tls_certificate, key=self.tls_key)

    @property
    def verifier_tls(self) -> ChannelTls:
        return ChannelTls(ca=self.verifier_ca, certificate=self.tls_certificate, key=self.tls_key)

    @property
    def served_model(self) -> str:
        return self.model_name or self.tokenizer.resolve().name


def parse_config(arguments: Sequence[str] | None = None) -> GatewayConfig:
    """The config of a command line; exits with a usage message when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m draftwood_gateway", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    hints = get_type_hints(GatewayConfig)
    for entry in dataclasses.fields(GatewayConfig):
        repeated = get_origin(hints[entry.name]) is tuple
        required = entry.default is dataclasses.MISSING
        parser.add_argument(
            "--" + entry.name.replace("_", "-"),
            type=str if repeated else hints[entry.name],
            action="append" if repeated else "store",
            required=required,
            default=None if required else entry.default,
            help=entry.metadata["help"],
        )
    options = vars(parser.parse_args(arguments))
    try:
        return GatewayConfig(**{**options, "verifier": tuple(options["verifier"])})
    except ValueError as error:
        parser.error(str(error))
