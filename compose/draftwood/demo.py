"""`draftwood demo`: the same prompts decoded plainly, with a chain and with a tree, side by side."""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import IO

from draftwood import tuning
from draftwood.environment import describe
from draftwood.measurement import MODES, Completion, ModeSummary, Setting, complete, summarise
from draftwood.models import embedded_pair
from draftwood.processes import ServiceFailed
from draftwood.stack import StackOptions, running_stack
from draftwood.supervision import interrupt_on_sigterm, say
from draftwood_client import Client
from draftwood_wire.errors import DraftwoodError

_SHOWN_CHARACTERS = 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=16, help="how many held-out prompts")
    parser.add_argument("--show", type=int, default=3, help="how many texts to print")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--node-limit", type=int, default=tuning.NODE_LIMIT, help="tree nodes, root not counted")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Return 0 when all modes gave the same tokens, 1 when they did not or a service failed."""
    interrupt_on_sigterm()
    with tempfile.TemporaryFile("w+") as log:
        try:
            return _report(arguments, _decode_everything(arguments, log))
        except (ServiceFailed, DraftwoodError, FileNotFoundError) as error:
            log.seek(0)
            say(f"{log.read()}{error}")
            return 1
        except KeyboardInterrupt:
            return 130


def read_prompts(path: Path, count: int) -> list[str]:
    """The first `count` prompts of a file with one JSON object, or string, a line."""
    lines = [json.loads(line) for line in path.read_text().splitlines()[:count]]
    return [line if isinstance(line, str) else str(line["prompt"]) for line in lines]


def _decode_everything(arguments: argparse.Namespace, log: IO[str]) -> dict[str, list[Completion]]:
    pair = embedded_pair()
    prompts = read_prompts(pair.prompts, arguments.prompts)
    setting = Setting(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        node_limit=arguments.node_limit,
    )
    print("Starting verifier, drafter and gateway ...", flush=True)
    options = StackOptions(target=pair.target, draft=pair.drafter)
    with running_stack(options, log) as stack, Client(stack.grpc) as client:
        for mode in MODES.values():
            complete(client, prompts[0], mode, setting)
        return _interleaved(client, prompts, setting, arguments.show)


def _interleaved(client: Client, prompts: list[str], setting: Setting, shown: int) -> dict[str, list[Completion]]:
    """A, B, C for each prompt in turn, so that a machine that slows down slows all modes alike."""
    done: dict[str, list[Completion]] = {name: [] for name in MODES}
    for index, prompt in enumerate(prompts):
        for name, completions in done.items():
            completions.append(complete(client, prompt, MODES[name], setting))
        if index < shown:
            _show(prompt, {name: completions[-1] for name, completions in done.items()})
    return done


def _show(prompt: str, completions: dict[str, Completion]) -> None:
    print(f"\n--- prompt\n{prompt[-_SHOWN_CHARACTERS:]}\n--- continuation\n{completions['tree'].text}")
    for mode, completion in completions.items():
        summary = summarise([completion])
        print(f"--- {mode:5}  {summary.tokens_per_s:7.1f} tokens/s   {summary.accepted_length:.2f} tokens a round")


def _report(arguments: argparse.Namespace, done: dict[str, list[Completion]]) -> int:
    outputs = [[c.token_ids for c in completions] for completions in done.values()]
    identical = all(output == outputs[0] for output in outputs)
    modes = {mode: summarise(completions) for mode, completions in done.items()}
    _print_table(modes, arguments.node_limit)
    print(f"Outputs are {'identical in all modes' if identical else 'DIFFERENT: this is a bug'}.")
    if arguments.json:
        print(json.dumps({"identical": identical, "modes": {mode: asdict(s) for mode, s in modes.items()}}))
    return 0 if identical else 1


def _print_table(modes: dict[str, ModeSummary], node_limit: int) -> None:
    print(f"\n{describe()}\none client, node limit {node_limit}")
    print(f"{'':7}{'tokens/s':>10}{'against plain':>15}{'tokens a round':>16}")
    for mode, summary in modes.items():
        ratio = summary.tokens_per_s / (modes["plain"].tokens_per_s or 1.0)
        print(f"{mode:7}{summary.tokens_per_s:10.1f}{ratio:14.2f}x{summary.accepted_length:16.2f}")
