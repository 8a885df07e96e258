"""`draftwood generate "prompt"`: a client that prints the text as it is committed."""

import argparse
import sys
from pathlib import Path

from draftwood.measurement import MODES
from draftwood.supervision import say
from draftwood.up import DEFAULT_GRPC
from draftwood_client import Client, Usage
from draftwood_client.parameters import Parameters
from draftwood_wire.errors import DraftwoodError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt")
    parser.add_argument("--address", default=DEFAULT_GRPC, help="gRPC address of the gateway")
    parser.add_argument("--ca", default="", help="PEM file of the gateway's authority; plaintext when absent")
    parser.add_argument("--api-key-file", type=Path, help="file with the API key")
    parser.add_argument("--speculation", choices=(*MODES.values(), "auto"), default="auto")
    parser.add_argument("--node-limit", type=int, default=0, help="tree nodes; 0 takes the server's default")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, help="default: the server picks one")
    parser.add_argument("--max-tokens", type=int, default=256)


def run(arguments: argparse.Namespace) -> int:
    parameters = Parameters(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        speculation=arguments.speculation,
        node_limit=arguments.node_limit,
    )
    if arguments.seed is not None:
        parameters["seed"] = arguments.seed
    try:
        api_key = arguments.api_key_file.read_text().strip() if arguments.api_key_file else ""
        with Client(arguments.address, api_key=api_key, ca=arguments.ca) as client:
            usage = _stream(client, arguments.prompt, parameters)
    except (DraftwoodError, ValueError, OSError) as error:
        say(f"{arguments.address}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if usage is not None:
        print(f"[{usage.completion_tokens} tokens, {usage.accepted_length:.2f} a round]", file=sys.stderr)
    return 0


def _stream(client: Client, prompt: str, parameters: Parameters) -> Usage | None:
    """Print the text as it comes; stdout carries nothing else."""
    usage = None
    for chunk in client.stream(prompt, **parameters):
        print(chunk.text, end="", flush=True)
        usage = chunk.usage
    print()
    return usage
