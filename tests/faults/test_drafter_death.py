"""A drafter's death costs speed, never a request; a new one is welcome at any time."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from draftwood_wire.v1.gateway_service_pb2 import GenerateStreamRequest, TextRequest
from draftwood_wire.v1.verifier_service_pb2 import GenerateUsage
from tests.services.processes import CALL_TIMEOUT_S, Services, embedded_options, running_services, wait_for
from tests.services.requests import GREEDY, held_out_prompts, request, sampled

TOKENS = 256
LONG = 700


def kill_drafter(services: Services) -> None:
    assert services.stack.drafter is not None
    services.stack.drafter.kill()
    wait_for(lambda: services.load().drafters == 0, "the verifier notices that its drafter is gone")


def stream_and_kill(services: Services, asked: TextRequest, kill_after: int) -> tuple[list[int], GenerateUsage]:
    """Tokens and usage of a stream whose drafter is killed once `kill_after` tokens have arrived."""
    token_ids: list[int] = []
    usage = GenerateUsage()
    killed = False
    for message in services.gateway.GenerateStream(GenerateStreamRequest(request=asked), timeout=CALL_TIMEOUT_S):
        token_ids.extend(message.token_ids)
        usage = message.usage
        if not killed and len(token_ids) >= kill_after:
            assert services.stack.drafter is not None
            services.stack.drafter.kill()
            killed = True
    assert killed
    return token_ids, usage


def acceptance(usage: GenerateUsage) -> float:
    return (usage.completion_tokens - 1) / usage.rounds


def test_kill_nine_in_mid_generation_changes_no_token(services: Services) -> None:
    (prompt,) = held_out_prompts(1)
    for sampling in (GREEDY, sampled(seed=5)):
        expected = services.generate(request(prompt, "plain", sampling, TOKENS))
        token_ids, usage = stream_and_kill(services, request(prompt, "tree", sampling, TOKENS), kill_after=24)
        assert token_ids == list(expected.token_ids)
        assert 0 < usage.speculative_rounds < usage.rounds
        wait_for(lambda: services.load().drafters == 0, "the verifier notices that its drafter is gone")
        services.stack.start_drafter()


def test_acceptance_returns_with_a_new_drafter(services: Services) -> None:
    (prompt,) = held_out_prompts(1)
    before = services.generate(request(prompt, "tree"))
    kill_drafter(services)
    without = services.generate(request(prompt, "tree"))
    services.stack.start_drafter()
    after = services.generate(request(prompt, "tree"))
    assert list(before.token_ids) == list(without.token_ids) == list(after.token_ids)
    assert without.usage.speculative_rounds == 0
    assert acceptance(without.usage) == 1.0
    assert acceptance(after.usage) >= 0.9 * acceptance(before.usage) > 1.0


def test_a_late_drafter_joins_sessions_that_are_already_running(plain_services: Services) -> None:
    """Requests follow each other on eight clients until the drafter has joined, so some are half-way when it does."""
    prompts = held_out_prompts(8)
    expected = plain_services.generate_together([request(p, "plain", max_tokens=LONG) for p in prompts])
    stack = plain_services.stack
    stack.options = replace(stack.options, draft=embedded_options().draft)
    joined_half_way = 0

    def run_until_joined(index: int) -> None:
        nonlocal joined_half_way
        while True:
            answer = plain_services.generate(request(prompts[index], "tree", max_tokens=LONG))
            assert list(answer.token_ids) == list(expected[index].token_ids)
            if answer.usage.speculative_rounds:
                joined_half_way += answer.usage.speculative_rounds < answer.usage.rounds
                return

    with ThreadPoolExecutor(len(prompts)) as pool:
        clients = [pool.submit(run_until_joined, index) for index in range(len(prompts))]
        stack.start_drafter()
        for client in clients:
            client.result(CALL_TIMEOUT_S)
    assert joined_half_way > 0


def test_no_drafter_at_all(plain_services: Services) -> None:
    prompts = held_out_prompts(4)
    plain = plain_services.generate_together([request(p, "plain") for p in prompts])
    tree = plain_services.generate_together([request(p, "tree") for p in prompts])
    assert [list(a.token_ids) for a in tree] == [list(a.token_ids) for a in plain]
    assert all(a.usage.speculative_rounds == 0 for a in tree)


def test_requests_survive_a_drafter_that_dies_again_and_again() -> None:
    prompts = held_out_prompts(4)
    with running_services(embedded_options()) as services, ThreadPoolExecutor(len(prompts)) as pool:
        expected = services.generate_together([request(p, "plain", max_tokens=LONG) for p in prompts])
        streams = [pool.submit(services.generate, request(p, "tree", max_tokens=LONG)) for p in prompts]
        for _ in range(2):
            kill_drafter(services)
            services.stack.start_drafter()
        answers = [stream.result(CALL_TIMEOUT_S) for stream in streams]
    assert [list(a.token_ids) for a in answers] == [list(a.token_ids) for a in expected]
