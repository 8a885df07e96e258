"""Tokens a second with telemetry on against off: `python benchmarks/telemetry_overhead.py`.

Two stacks of all three services run side by side, one of them with traces (all requests sampled, sent to a collector in
this process) and metrics (scraped every five seconds). The same prompts run on both, one stack right after the other in
alternating order, so that whatever else the machine does hits both alike; the answer is the median of the pairs'
ratios. What telemetry does behind the requests' back (its thread, exports, scrapes) happens while its own stack runs,
and is over before the other one's turn: a stack without telemetry must not pay for it.

Of two stacks that do the very same, one is a few percent faster for as long as it lives. So both are started anew
several times, and pairs of all starts count.
"""

import argparse
import os
import statistics
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from draftwood import tuning
from draftwood.bench.statistics import LEAST_VALUES, median_interval
from draftwood.demo import read_prompts
from draftwood.environment import describe
from draftwood.models import embedded_pair
from draftwood.stack import Stack, StackOptions, running_stack
from draftwood_client import Client

ENDPOINT, EXPORT_DELAY_MS = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BSP_SCHEDULE_DELAY"
# By default spans wait for 5 s, nearly as long as a turn; every export costs by itself, so not much less.
EXPORTED_AFTER_S, SETTLED_AFTER_S = 2.0, 2.5
# As Prometheus is told to in compose/observability.
SCRAPED_EVERY_S = 5.0


@dataclass(kw_only=True, slots=True)
class Speeds:
    """Tokens a second of each turn of one start."""

    off: list[float] = field(default_factory=list)
    on: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [on / off for on, off in zip(self.on, self.off, strict=True)]


class Sink(TraceServiceServicer):
    spans = 0

    def Export(self, request: pb.ExportTraceServiceRequest, context: object) -> pb.ExportTraceServiceResponse:  # noqa: N802
        del context
        self.spans += sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        return pb.ExportTraceServiceResponse()


@contextmanager
def collecting(sink: Sink) -> Iterator[str]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        add_TraceServiceServicer_to_server(sink, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@contextmanager
def observed_stack(options: StackOptions, endpoint: str) -> Iterator[Stack]:
    os.environ |= {ENDPOINT: endpoint, EXPORT_DELAY_MS: f"{1000 * EXPORTED_AFTER_S:.0f}"}
    try:
        with running_stack(options) as stack:
            yield stack
    finally:
        del os.environ[ENDPOINT], os.environ[EXPORT_DELAY_MS]


class Scraper:
    """Asks the observed stack for its metrics whenever it has run for so long; between its turns nothing is asked."""

    def __init__(self, stack: Stack) -> None:
        services = (stack.gateway, stack.verifier, stack.drafter)
        self._addresses = [service.addresses["metrics"] for service in services if service]
        self._left_s = SCRAPED_EVERY_S

    @contextmanager
    def scraping(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._run, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _run(self, over: threading.Event) -> None:
        waiting_since = time.perf_counter()
        while not over.wait(self._left_s):
            for address in self._addresses:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
                    reply.read()
            self._left_s, waiting_since = SCRAPED_EVERY_S, time.perf_counter()
        self._left_s = max(0.0, self._left_s - (time.perf_counter() - waiting_since))


def tokens_per_s(client: Client, prompts: list[str], concurrency: int, max_tokens: int) -> float:
    """All prompts to their last token, so many at once."""

    def one(prompt: str) -> int:
        return len(client.generate(prompt, max_tokens=max_tokens, ignore_eos=True, speculation="tree").token_ids)

    started_at = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        tokens = sum(pool.map(one, prompts))
    return tokens / (time.perf_counter() - started_at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--starts", type=int, default=5, help="how often both stacks are started")
    parser.add_argument("--pairs", type=int, default=6, help="how often each concurrency is run on both a start")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8], help="prompts at once")
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a turn")
    parser.add_argument("--max-tokens", type=int, default=48)
    arguments = parser.parse_args()
    if arguments.starts * arguments.pairs < LEAST_VALUES:
        parser.error(f"--starts, --pairs: {LEAST_VALUES} pairs in all at least")
    print(describe())
    starts: defaultdict[int, list[Speeds]] = defaultdict(list)
    sink = Sink()
    with collecting(sink) as endpoint:
        for _ in range(arguments.starts):
            with both_stacks(endpoint) as clients:
                for concurrency in arguments.concurrency:
                    starts[concurrency].append(compare(*clients, concurrency, arguments))
    for concurrency, speeds in starts.items():
        report(concurrency, speeds)
    print(f"{sink.spans} spans were sent")


@contextmanager
def both_stacks(endpoint: str) -> Iterator[tuple[Client, Client, Scraper]]:
    """Without telemetry, and with it."""
    pair = embedded_pair()
    options = StackOptions(target=pair.target, draft=pair.drafter, node_limit=tuning.NODE_LIMIT)
    with (
        running_stack(options) as plain,
        observed_stack(replace(options, metrics_host="127.0.0.1"), endpoint) as traced,
        Client(plain.grpc) as off,
        Client(traced.grpc) as on,
    ):
        yield off, on, Scraper(traced)


def compare(off: Client, on: Client, scraper: Scraper, concurrency: int, arguments: argparse.Namespace) -> Speeds:
    prompts = read_prompts(embedded_pair().prompts, 64)

    def turn(name: str, chosen: list[str]) -> float:
        if name == "off":
            return tokens_per_s(off, chosen, concurrency, arguments.max_tokens)
        with scraper.scraping():
            speed = tokens_per_s(on, chosen, concurrency, arguments.max_tokens)
        time.sleep(SETTLED_AFTER_S)
        return speed

    for name in ("off", "on"):
        turn(name, prompts[: 2 * concurrency])  # warms both up alike
    speeds = Speeds()
    turns = {"off": speeds.off, "on": speeds.on}
    for index in range(arguments.pairs):
        first = index * arguments.prompts
        chosen = [prompts[(first + i) % len(prompts)] for i in range(arguments.prompts)]
        for name in ("off", "on") if index % 2 == 0 else ("on", "off"):
            turns[name].append(turn(name, chosen))
    return speeds


def report(concurrency: int, starts: list[Speeds]) -> None:
    ratios = [ratio for speeds in starts for ratio in speeds.ratios]
    low, high = median_interval(ratios)
    print(
        f"{concurrency} at once: off {statistics.median(speed for s in starts for speed in s.off):.1f} tokens/s, "
        f"on {statistics.median(speed for s in starts for speed in s.on):.1f}; on / off: median of {len(ratios)} pairs "
        f"{statistics.median(ratios):.4f}, 95 % sure between {low:.4f} and {high:.4f}; "
        f"of each start {', '.join(f'{statistics.median(speeds.ratios):.3f}' for speeds in starts)}"
    )


if __name__ == "__main__":
    main()
