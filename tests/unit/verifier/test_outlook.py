"""How the looks at one batch size come to be further apart, and nearer again."""

import pytest

from draftwood_verifier.budget.outlook import Outlook


def test_looks_in_vain_are_further_and_further_apart_and_hope_for_less() -> None:
    outlook, now, pauses = Outlook(), 0, []
    for _ in range(10):
        outlook.found_nothing(now)
        pauses.append(outlook.next_look - now)
        now = outlook.next_look
    assert pauses == [32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]
    assert outlook.hope == pytest.approx(0.7**10)


def test_what_paid_for_long_is_looked_at_soon() -> None:
    outlook = Outlook()
    for _ in range(5):
        outlook.found_nothing(0)
    outlook.tried()
    assert outlook.hope == 0.7
    outlook.gave_up(1000, soon=True)
    assert outlook.next_look == 1000 + 1024
    outlook.gave_up(5000, soon=False)
    assert (outlook.next_look, outlook.hope) == (5000 + 16, 0.7)


def test_an_answer_brings_the_look_forward_and_never_puts_it_off() -> None:
    outlook = Outlook(next_look=100)
    outlook.answered(50)
    assert outlook.next_look == 58
    outlook.answered(55)
    assert outlook.next_look == 58
