"""How speed and accepted length are counted."""

import pytest

from draftwood.measurement import Completion, summarise


def completion(tokens: int, rounds: int, decode_tokens: int, decode_s: float) -> Completion:
    return Completion(
        text="", token_ids=tuple(range(tokens)), rounds=rounds, decode_tokens=decode_tokens, decode_s=decode_s
    )


def test_prefill_counts_for_neither() -> None:
    summary = summarise([completion(tokens=101, rounds=25, decode_tokens=100, decode_s=0.5)])
    assert summary.accepted_length == pytest.approx(4.0)
    assert summary.tokens_per_s == pytest.approx(200.0)


def test_long_completions_weigh_more() -> None:
    summary = summarise([completion(11, 10, 10, 1.0), completion(91, 15, 90, 1.0)])
    assert summary.tokens_per_s == pytest.approx(50.0)
    assert summary.accepted_length == pytest.approx(4.0)
    assert (summary.rounds, summary.tokens) == (25, 102)


def test_nothing_was_decoded() -> None:
    summary = summarise([completion(1, 0, 0, 0.0), completion(0, 0, 0, 0.0)])
    assert (summary.tokens_per_s, summary.accepted_length) == (0.0, 0.0)
