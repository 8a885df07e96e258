"""After any storm of requests and cancellations every KV page is free again, on both sides."""

import random
from concurrent.futures import ThreadPoolExecutor

import grpc

from draftwood_wire.v1.gateway_service_pb2 import GenerateStreamRequest, TextRequest
from tests.services.processes import CALL_TIMEOUT_S, Services, wait_for
from tests.services.requests import GREEDY, held_out_prompts, request, sampled

REQUESTS = 500
CLIENTS = 16


def random_request(rng: random.Random, prompts: list[str]) -> TextRequest:
    prompt = rng.choice(prompts)
    # Shared prefixes of any length, so that the prefix cache takes part.
    cut = rng.randint(1, len(prompt))
    sampling = GREEDY if rng.random() < 0.5 else sampled(seed=rng.randrange(2**32))
    mode = rng.choice(["plain", "chain", "tree", "tree"])
    return request(prompt[:cut], mode, sampling, rng.randint(1, 48), node_limit=rng.randint(1, 24))


def run_or_cancel(services: Services, asked: TextRequest, cancel_after: int | None) -> None:
    """Read the stream to its end, or leave after `cancel_after` messages."""
    stream = services.gateway.GenerateStream(GenerateStreamRequest(request=asked), timeout=CALL_TIMEOUT_S)
    if cancel_after == 0:
        stream.cancel()
    try:
        for count, _ in enumerate(stream, start=1):
            if count == cancel_after:
                stream.cancel()
    except grpc.RpcError:
        # Read from the call: it tells our own cancellation from a failure.
        if stream.code() != grpc.StatusCode.CANCELLED:
            raise


def test_every_page_comes_back(services: Services) -> None:
    rng = random.Random(11)
    prompts = held_out_prompts(16)
    storm = [
        (random_request(rng, prompts), rng.randint(0, 12) if rng.random() < 0.5 else None) for _ in range(REQUESTS)
    ]
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda one: run_or_cancel(services, *one), storm))
    wait_for(lambda: _idle(services), "the verifier has no request left")
    load = services.load()
    assert load.kv_pages_free == load.kv_pages_total > 0
    assert load.drafted_sessions == 0
    wait_for(lambda: services.drafter_info().sessions == 0, "the drafter has no session left")
    info = services.drafter_info()
    assert info.context_pages_free == info.context_pages_total > 0
    # And it still works, speculation included.
    answer = services.generate(request(prompts[0], "tree"))
    assert answer.usage.accepted_nodes > 0


def _idle(services: Services) -> bool:
    load = services.load()
    return load.running_requests == load.waiting_requests == 0
