"""Tokens a second with telemetry on against off: `python benchmarks/telemetry_overhead.py`.

Two stacks of all three services run side by side, one of them with traces (all requests sampled, sent to a collector in
this process) and metrics (scraped every second). Each prompt runs on both, one right after the other in alternating
order, so that whatever else the machine does hits both alike; the answer is the median of the pairs' ratios.
"""

import argparse
import os
import statistics
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from draftwood import tuning
from draftwood.demo import read_prompts
from draftwood.environment import describe
from draftwood.models import embedded_pair
from draftwood.stack import Stack, StackOptions, running_stack
from draftwood_client import Client

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


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
    os.environ[ENDPOINT] = endpoint
    try:
        with running_stack(options) as stack:
            del os.environ[ENDPOINT]
            with scraped([s.addresses["metrics"] for s in (stack.gateway, stack.verifier, stack.drafter) if s]):
                yield stack
    finally:
        os.environ.pop(ENDPOINT, None)


@contextmanager
def scraped(addresses: list[str]) -> Iterator[None]:
    done = threading.Event()

    def scrape() -> None:
        while not done.wait(1.0):
            for address in addresses:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
                    reply.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def tokens_per_s(client: Client, prompts: list[str], max_tokens: int) -> float:
    """All prompts at once, to their last token."""

    def one(prompt: str) -> int:
        return len(client.generate(prompt, max_tokens=max_tokens, ignore_eos=True, speculation="tree").token_ids)

    started_at = perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        tokens = sum(pool.map(one, prompts))
    return tokens / (perf_counter() - started_at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=50, help="how often each concurrency is run on both")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8], help="prompts at once")
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
            compare(off, on, prompts, concurrency, arguments)
    print(f"{sink.spans} spans were sent")


def compare(off: Client, on: Client, prompts: list[str], concurrency: int, arguments: argparse.Namespace) -> None:
    ratios: list[float] = []
    speeds: dict[str, list[float]] = {"off": [], "on": []}
    for client in (off, on):
        tokens_per_s(client, prompts[:concurrency], arguments.max_tokens)  # warms both up alike
    for index in range(arguments.pairs):
        chosen = [prompts[(index * concurrency + i) % len(prompts)] for i in range(concurrency)]
        order = [("off", off), ("on", on)]
        for name, client in order if index % 2 == 0 else reversed(order):
            speeds[name].append(tokens_per_s(client, chosen, arguments.max_tokens))
        ratios.append(speeds["on"][-1] / speeds["off"][-1])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{concurrency} at once: off {statistics.median(speeds['off']):.1f} tokens/s, "
        f"on {statistics.median(speeds['on']):.1f}; on / off: median {middle:.4f}, quartiles {low:.4f} to {high:.4f}"
    )


if __name__ == "__main__":
    main()
