"""The same requests for every mode, and lengths as stated."""

from itertools import islice

from draftwood.bench.workload import OUTPUT_TOKENS, PROMPT_CHARACTERS, Workload

TEXTS = ["def a():\n    return 1", "class B:\n    pass"]


def test_requests_belong_to_the_seed_and_the_place() -> None:
    first, again, other = (Workload(texts=TEXTS, seed=seed) for seed in (3, 3, 4))
    draw = [list(islice(w.client(0, 8, 5), 4)) for w in (first, again, other)]
    assert draw[0] == draw[1] != draw[2]
    assert draw[0] != list(islice(first.client(1, 8, 5), 4))


def test_lengths_are_in_their_ranges_and_mixed() -> None:
    requests = list(islice(Workload(texts=TEXTS, seed=0).client(0), 1, 500))
    outputs, prompts = [r.output_tokens for r in requests], [len(r.prompt) for r in requests]
    assert OUTPUT_TOKENS[0] <= min(outputs) < 40
    assert 150 < max(outputs) <= OUTPUT_TOKENS[1]
    assert PROMPT_CHARACTERS[0] <= min(prompts) < 60
    assert 350 < max(prompts) <= PROMPT_CHARACTERS[1]
    assert len({r.prompt for r in requests}) == len(requests)


def test_clients_begin_half_way() -> None:
    workload = Workload(texts=TEXTS, seed=0)
    firsts = [next(workload.client(0, 64, number)).output_tokens for number in range(64)]
    assert min(firsts) < OUTPUT_TOKENS[0]
