"""The embedded pair's acceptance is pinned, some 4 % below what was measured: a hidden state captured one layer off
breaks nothing else. A new pair needs new pins.
"""

from tests.services.processes import Services
from tests.services.requests import GREEDY, held_out_prompts, request, sampled

PROMPTS = 16


def accepted_length(services: Services, mode: str, node_limit: int, *, greedy: bool = True) -> float:
    """Tokens committed a round; the first token of a request comes from prefill."""
    committed = rounds = 0
    for index, prompt in enumerate(held_out_prompts(PROMPTS)):
        sampling = GREEDY if greedy else sampled(seed=index)
        usage = services.generate(request(prompt, mode, sampling, node_limit=node_limit)).usage
        committed += usage.completion_tokens - 1
        rounds += usage.rounds
    return committed / rounds


def test_tree_of_32_nodes(services: Services) -> None:
    assert accepted_length(services, "tree", 32) >= 3.7


def test_a_tree_accepts_more_than_a_chain(services: Services) -> None:
    chain, tree = (accepted_length(services, mode, 16) for mode in ("chain", "tree"))
    assert chain >= 2.7
    assert tree >= 3.45


def test_shared_noise_keeps_acceptance_at_temperature(services: Services) -> None:
    assert accepted_length(services, "tree", 16, greedy=False) >= 2.65
