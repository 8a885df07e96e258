"""`draftwood up`: the three services on this machine, until Ctrl-C."""

import argparse
from pathlib import Path

from draftwood import tuning
from draftwood.models import embedded_pair
from draftwood.processes import ServiceFailed
from draftwood.stack import FREE_PORT, Stack, StackOptions, running_stack
from draftwood.supervision import Supervisor, interrupt_on_sigterm, say
from draftwood_drafter.config import Head
from draftwood_verifier.config import MATCHING, REJECTION
from draftwood_wire.errors import DraftwoodError

DEFAULT_GRPC = "127.0.0.1:50051"
DEFAULT_HTTP = "127.0.0.1:8000"
DEFAULT_VERIFIER = "127.0.0.1:50052"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", type=Path, help="target checkpoint folder; default: the embedded pair's")
    parser.add_argument("--draft", type=Path, help="DFlash draft checkpoint folder; default: the embedded pair's")
    parser.add_argument("--no-drafter", action="store_true", help="decode plainly")
    parser.add_argument("--grpc", default=DEFAULT_GRPC, help="gateway's gRPC address; port 0 takes a free one")
    parser.add_argument("--http", default=DEFAULT_HTTP, help="gateway's OpenAI-compatible address")
    parser.add_argument("--verifier", default=DEFAULT_VERIFIER, help="verifier's address")
    parser.add_argument("--drafter", default=FREE_PORT, help="drafter's address")
    parser.add_argument("--metrics-host", default="", help="serve each service's metrics on a free port of this host")
    parser.add_argument("--model-name", default="draftwood", help="what clients call the model")
    parser.add_argument("--node-limit", type=int, default=tuning.NODE_LIMIT, help="tree nodes when requests don't say")
    parser.add_argument("--kv-pages", type=int, help="pages of the target's KV cache")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks that the target is spread over")
    parser.add_argument("--device", default="cpu", help="where the target runs: cpu, cuda (ranks take cards 0, 1, ...)")
    parser.add_argument("--drafter-device", help="default: as the target, or of cuda the card after its own")
    parser.add_argument(
        "--head", choices=[head.value for head in Head], default=Head.DRAFTER.value, help="who holds the target's head"
    )
    parser.add_argument(
        "--verification",
        choices=[MATCHING, REJECTION],
        default=MATCHING,
        help="how drafts at temperature > 0 are verified; rejection needs --head verifier",
    )
    parser.add_argument("--context-pages", type=int, help="pages of the drafter's KV cache")


def run(arguments: argparse.Namespace) -> int:
    interrupt_on_sigterm()
    try:
        with running_stack(_options(arguments)) as stack:
            _print_addresses(stack)
            return Supervisor(stack).run()
    except (ServiceFailed, DraftwoodError, ValueError, FileNotFoundError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 0


def _options(arguments: argparse.Namespace) -> StackOptions:
    target, draft = arguments.target, arguments.draft
    if target is None:
        if draft is not None:
            raise ValueError("--draft needs the --target that it was trained for")
        pair = embedded_pair()
        target, draft = pair.target, pair.drafter
    return StackOptions(
        target=target,
        draft=None if arguments.no_drafter else draft,
        grpc=arguments.grpc,
        http=arguments.http,
        verifier=arguments.verifier,
        drafter=arguments.drafter,
        model_name=arguments.model_name,
        node_limit=arguments.node_limit,
        kv_pages=arguments.kv_pages,
        context_pages=arguments.context_pages,
        tensor_parallel=arguments.tensor_parallel,
        device=arguments.device,
        drafter_device=arguments.drafter_device,
        head=arguments.head,
        verification=arguments.verification,
        metrics_host=arguments.metrics_host,
    )


def _print_addresses(stack: Stack) -> None:
    print(f"gateway   gRPC {stack.grpc}   HTTP http://{stack.http}/v1   playground http://{stack.http}/")
    print(f"verifier  gRPC {stack.verifier.addresses['address']}")
    if stack.drafter is not None:
        print(f"drafter   gRPC {stack.drafter.addresses['address']}")
    for service in (stack.gateway, stack.verifier, stack.drafter):
        if service is not None and "metrics" in service.addresses:
            print(f"{service.name:9} metrics http://{service.addresses['metrics']}/metrics")
    print("Ctrl-C stops everything.", flush=True)
