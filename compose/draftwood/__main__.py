"""The `draftwood` command."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from draftwood import demo, generate, health, top, train, up
from draftwood.bench import command as bench
from draftwood.doctor import command as doctor
from draftwood.simulation import command as simulate


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    # Everything after `train` belongs to the training program, `--help` included.
    if argv[:1] == ["train"]:
        return train.run(argv[1:])
    arguments = _parser().parse_args(argv)
    return int(arguments.run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="draftwood", description="Speculative decoding as services.")
    parser.add_argument("--version", action="version", version=f"draftwood {version('draftwood')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module, summary in (
        ("up", up, "start gateway, verifier and drafter on this machine"),
        ("health", health, "ask a service whether it serves; the answer is the exit code"),
        ("generate", generate, "continue a prompt, streaming the text"),
        ("top", top, "watch a verifier: requests, tokens a second, accepted length, drafters, KV use"),
        ("demo", demo, "compare plain, chain and tree decoding on the embedded pair"),
        ("bench", bench, "measure speed and latency under load"),
        ("doctor", doctor, "say whether a target and a draft can be served here, before anything is loaded"),
        ("simulate", simulate, "predict speed under load on other hardware"),
    ):
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    commands.add_parser("train", help="train a tokenizer, a small target or a DFlash drafter", add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
