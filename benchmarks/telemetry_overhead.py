"""Tokens a second with telemetry on against off: `python benchmarks/telemetry_overhead.py`.

Two stacks of all three services run side by side, one of them with traces (all requests sampled, sent to a collector in
this process) and metrics (scraped every five seconds). The same prompts run on both, one stack right after the other in
alternating order, so that whatever else the machine does hits both alike; the answer is the median of the pairs'
ratios. What telemetry does behind the requests' back (its thread, exports, scrapes) happens while its own stack runs,
and is over before the other one's turn: a stack without telemetry must not pay for it.
"""

import argparse
import os
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from draftwood import tuning
from draftwood.bench.statistics import median_interval
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
    parser.add_argument("--pairs", type=int, default=30, help="how often each concurrency is run on both; 6 at least")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8], help="prompts at once")
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a turn")
    parser.add_argument("--max-tokens", type=int, default=48)
    arguments = parser.parse_args()
    pair = embedded_pair()
    options = StackOptions(target=pair.target, draft=pair.drafter, node_limit=tuning.NODE_LIMIT)
    observed = StackOptions(
        target=pair.target, draft=pair.drafter, node_limit=tuning.NODE_LIMIT, metrics_host="127.0.0.1"
    )
    prompts = read_prompts(pair.prompts, 64)
    print(describe())
    sink = Sink()
    with (
        collecting(sink) as endpoint,
        running_stack(options) as plain,
        observed_stack(observed, endpoint) as traced,
        Client(plain.grpc) as off,
        Client(traced.grpc) as on,
    ):
        for concurrency in arguments.concurrency:
            compare(off, on, Scraper(traced), prompts, concurrency, arguments)
    print(f"{sink.spans} spans were sent")


def compare(
    off: Client, on: Client, scraper: Scraper, prompts: list[str], concurrency: int, arguments: argparse.Namespace
) -> None:
    def turn(name: str, chosen: list[str]) -> float:
        if name == "off":
            return tokens_per_s(off, chosen, concurrency, arguments.max_tokens)
        with scraper.scraping():
            speed = tokens_per_s(on, chosen, concurrency, arguments.max_tokens)
        time.sleep(SETTLED_AFTER_S)
        return speed

    speeds: dict[str, list[float]] = {"off": [], "on": []}
    for name in speeds:
        turn(name, prompts[: 2 * concurrency])  # warms both up alike
    for index in range(arguments.pairs):
        first = index * arguments.prompts
        chosen = [prompts[(first + i) % len(prompts)] for i in range(arguments.prompts)]
        for name in ("off", "on") if index % 2 == 0 else ("on", "off"):
            speeds[name].append(turn(name, chosen))
    report(concurrency, speeds)


def report(concurrency: int, speeds: dict[str, list[float]]) -> None:
    ratios = [on / off for on, off in zip(speeds["on"], speeds["off"], strict=True)]
    low, high = median_interval(ratios)
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"{concurrency} at once: off {statistics.median(speeds['off']):.1f} tokens/s, "
        f"on {statistics.median(speeds['on']):.1f}; on / off: median {quartiles[1]:.4f}, "
        f"95 % sure between {low:.4f} and {high:.4f}, quartiles {quartiles[0]:.4f} to {quartiles[2]:.4f}"
    )


if __name__ == "__main__":
    main()
