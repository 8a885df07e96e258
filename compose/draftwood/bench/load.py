"""`draftwood bench load`: tokens a second and latencies under load, all modes interleaved in one run.

By default it starts its own services on the embedded pair. Ends with exit code 1 when two modes gave different tokens,
unless their own target sees no difference between the two beyond rounding.
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import math
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from draftwood.bench.equality import Equality
from draftwood.bench.interleaving import Measured, Plan, run_interleaved
from draftwood.bench.modes import bench_modes
from draftwood.bench.prefix_cache import PrefixCache
from draftwood.bench.summary import LoadSummary, as_row, summarise
from draftwood.bench.table import print_table
from draftwood.bench.traffic import Closed, Load, Open
from draftwood.bench.workload import OUTPUT_TOKENS, PROMPT_CHARACTERS, Workload
from draftwood.demo import read_prompts
from draftwood.environment import describe
from draftwood.models import embedded_pair
from draftwood.processes import ServiceFailed
from draftwood.stack import StackOptions, running_stack
from draftwood.supervision import interrupt_on_sigterm, say
from draftwood_client import AsyncClient
from draftwood_wire.errors import DraftwoodError

_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
_PAIRS = 5
_WINDOW_S = 3.0
_TREE_NODES = (4, 10, 16)
# Of --quick: says that everything works, not how fast it is.
_QUICK_CONCURRENCY = (1, 4)
_QUICK_WINDOW_S = 0.5
# In which auto can find out what the load is like: it changes with every slice, as no real one does.
_WARM_UP_TOKENS = 64
_TEXTS = 40
# Of the verifier: tokens a page, and pages of a request that goes to the embedded target's context limit.
_PAGE_SIZE = 16
_CONTEXT_PAGES = 64
_TRAINED = "trained"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gateway", help="host:port of a running gateway; default: services of its own")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=_whole_numbers, help="clients of each closed loop, 1,2,4,8,16,32,64")
    load.add_argument("--rate", type=_numbers, help="requests a second of each open loop (Poisson), such as 2,8")
    parser.add_argument("--modes", type=_words, default=("plain", "chain", "tree", "auto"), help="some of the four")
    parser.add_argument("--tree-nodes", type=_whole_numbers, default=_TREE_NODES, help="fixed sizes of trees, 4,10,16")
    parser.add_argument(
        "--pairs", type=int, help=f"slices of each mode and load ({_PAIRS}); up to four times as many of few clients"
    )
    parser.add_argument(
        "--window-s",
        type=float,
        help=f"seconds of a load's first slice that are measured ({_WINDOW_S:g}); others go on for as many tokens",
    )
    parser.add_argument(
        "--warm-up-tokens",
        type=int,
        default=_WARM_UP_TOKENS,
        help=f"tokens of each client of a closed loop that pass before a slice's window opens ({_WARM_UP_TOKENS})",
    )
    parser.add_argument("--output-tokens", type=_whole_numbers, default=OUTPUT_TOKENS, help="shortest,longest answer")
    parser.add_argument("--seed", type=int, default=0, help="draws requests, arrivals and the order of modes")
    parser.add_argument("--drafter", default=_TRAINED, help="trained, random (random trees), or slow:MS a draft")
    parser.add_argument("--quick", action="store_true", help="one short pair of few loads: a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them there (needs matplotlib)")


def run(arguments: argparse.Namespace) -> int:
    """Return 0, or 1 when outputs differed or a service failed, 2 for a command line that makes no sense."""
    interrupt_on_sigterm()
    try:
        plan = _plan(arguments)
    except ValueError as error:
        say(str(error))
        return 2
    with tempfile.TemporaryFile("w+") as log:
        try:
            with _services(arguments, log) as (gateway, verifier):
                measured = asyncio.run(_measure(gateway, verifier, plan))
        except (ServiceFailed, DraftwoodError, FileNotFoundError) as error:
            log.seek(0)
            say(f"{log.read()}{error}")
            return 1
        except (KeyboardInterrupt, asyncio.CancelledError):
            return 130
    return _report(arguments, plan, measured)


def _plan(arguments: argparse.Namespace) -> Plan:
    """Raises ValueError, which names the option."""
    if arguments.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot: matplotlib is missing; pip install 'draftwood[bench]' brings it")
    if arguments.gateway is not None and arguments.drafter != _TRAINED:
        raise ValueError("--drafter: the drafter of a running --gateway can't be chosen")
    if len(arguments.output_tokens) != 2 or not 2 <= arguments.output_tokens[0] <= arguments.output_tokens[1]:
        raise ValueError("--output-tokens: two numbers, shortest and longest, 2 or more")
    pairs = arguments.pairs or (1 if arguments.quick else _PAIRS)
    window_s = arguments.window_s or (_QUICK_WINDOW_S if arguments.quick else _WINDOW_S)
    if pairs < 1 or window_s <= 0:
        raise ValueError("--pairs and --window-s must be above 0")
    if arguments.warm_up_tokens < 0:
        raise ValueError("--warm-up-tokens must not be below 0")
    return Plan(
        modes=bench_modes(arguments.modes, arguments.tree_nodes),
        loads=_loads(arguments),
        pairs=pairs,
        window_s=window_s,
        workload=Workload(
            texts=read_prompts(embedded_pair().prompts, _TEXTS),
            seed=arguments.seed,
            output_tokens=arguments.output_tokens,
        ),
    )


def _loads(arguments: argparse.Namespace) -> list[Load]:
    if arguments.rate is not None:
        return [Open(rate=rate) for rate in arguments.rate]
    return [*_closed(arguments)]


def _closed(arguments: argparse.Namespace) -> list[Closed]:
    counts = arguments.concurrency or (_QUICK_CONCURRENCY if arguments.quick else _CONCURRENCY)
    return [Closed(clients=clients, warm_up_tokens=arguments.warm_up_tokens) for clients in counts]


@contextmanager
def _services(arguments: argparse.Namespace, log: IO[str]) -> Iterator[tuple[str, str | None]]:
    """Addresses of the gateway and, of services of our own, the verifier."""
    if arguments.gateway is not None:
        yield arguments.gateway, None
        return
    pair = embedded_pair()
    options = StackOptions(target=pair.target, draft=pair.drafter, kv_pages=_kv_pages(arguments))
    if arguments.drafter != _TRAINED:
        options = replace(options, drafter_module=("draftwood.bench.drafters", arguments.drafter))
    with running_stack(options, log) as stack:
        yield stack.grpc, stack.verifier.addresses["address"]


def _kv_pages(arguments: argparse.Namespace) -> int | None:
    """Enough for the most clients, and not many more: all of them are reserved to empty the prefix cache."""
    if arguments.rate is not None:
        return None
    # A token of the embedded target has two characters or more, nearly always.
    longest = PROMPT_CHARACTERS[1] // 2 + int(arguments.output_tokens[1])
    pages = math.ceil(longest / _PAGE_SIZE) * max(load.clients for load in _closed(arguments))
    return math.ceil(pages / _CONTEXT_PAGES) * _CONTEXT_PAGES


async def _measure(gateway: str, verifier: str | None, plan: Plan) -> Measured:
    task = asyncio.current_task()
    assert task is not None, "it runs as a task"
    # An exception out of a signal handler would leave the loop with its calls under way.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncClient(gateway) as client:
        cache = None if verifier is None else PrefixCache(client, verifier)
        try:
            return await run_interleaved(client, cache, plan, lambda line: print(line, file=sys.stderr, flush=True))
        finally:
            if cache is not None:
                await cache.close()


def _report(arguments: argparse.Namespace, plan: Plan, measured: Measured) -> int:
    summaries = summarise(plan, measured)
    windows = (
        f"{plan.pairs} pairs of {plan.window_s:g} s and more above 16 clients, more of half as long below, "
        f"after {arguments.warm_up_tokens} tokens a client"
    )
    print(f"{describe()}\ndrafter {arguments.drafter}, seed {arguments.seed}, {windows}\n")
    print_table(summaries)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_json(arguments, plan, summaries), indent=1) + "\n")
    if arguments.plot is not None:
        _plot(arguments, plan, summaries)
    return print_equality(measured.equality, embedded_pair().target if arguments.gateway is None else None)


def print_equality(equality: Equality, target: Path | None) -> int:
    """0 where modes differ by rounding at most; a `target` that is not at hand can't tell."""
    different, compared = equality.different, f"{equality.compared_tokens} tokens compared."
    if not different:
        print(f"Outputs are identical in all modes: {compared}")
        return 0
    # By name and late: it brings torch, which the load generator does without.
    near_ties = importlib.import_module("draftwood.bench.near_ties")
    found = [math.inf] * len(different) if target is None else near_ties.margins(target, different)
    for difference, margin in zip(different, found, strict=True):
        seen = "" if target is None else f", where the target sees them {margin:.1e} logits apart"
        print(f"{difference}{seen}")
    if max(found) >= near_ties.NEAR_TIE:
        print(f"Outputs DIFFER {len(different)} times, by more than rounding as far as can be told: {compared}")
        return 1
    print(f"Outputs are identical in all modes but for near ties ({len(different)}): {compared}")
    return 0


def _json(arguments: argparse.Namespace, plan: Plan, summaries: list[LoadSummary]) -> dict[str, Any]:
    environment = {
        "machine": describe(),
        "gateway": arguments.gateway,
        "drafter": arguments.drafter,
        "seed": arguments.seed,
        "pairs": plan.pairs,
        "window_s": plan.window_s,
        "warm_up_tokens": arguments.warm_up_tokens,
        "output_tokens": list(arguments.output_tokens),
    }
    return {"rows": [as_row(plan, summary) for summary in summaries], "environment": environment}


def _plot(arguments: argparse.Namespace, plan: Plan, summaries: list[LoadSummary]) -> None:
    # By name and late: matplotlib is an extra.
    plot = importlib.import_module("draftwood.bench.plot")
    loads = "clients" if isinstance(plan.loads[0], Closed) else "requests a second"
    plot.save_plot(arguments.plot, summaries, loads=loads, caption=f"{describe()}; drafter {arguments.drafter}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _whole_numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(word) for word in _words(text))
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def _numbers(text: str) -> tuple[float, ...]:
    numbers = tuple(float(word) for word in _words(text))
    if min(numbers) <= 0:
        raise ValueError(text)
    return numbers
