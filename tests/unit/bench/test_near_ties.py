"""Differences that rounding explains, and others. The oracle is transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwood.bench.equality import Difference, Equality
from draftwood.bench.load import print_equality
from draftwood.bench.near_ties import NEAR_TIE, margins
from draftwood.models import embedded_pair

# Met in a run under load: "\n" and "  " are 4e-6 logits apart after these tokens.
PROMPT = (
    '# 25954\n    def test_endian_longlong(self):\n        if sys.byteorder == "little":\n            self.assertIs(c_l'
)
SHARED = [87, 15, 354, 86, 859, 347, 287, 66, 1572, 1572, 402]
BEST, NEARLY, THIRD = 202, 263, 280


def difference(one: int, other: int) -> Difference:
    return Difference(modes=("auto", "plain"), prompt=PROMPT, shared=SHARED, token_ids=(one, other))


def found(*differences: Difference) -> Equality:
    equality = Equality()
    equality.different += differences
    return equality


def test_margins_are_those_of_transformers() -> None:
    target = embedded_pair().target
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(target)(PROMPT).input_ids + SHARED
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
    assert logits.topk(3).indices.tolist() == [BEST, NEARLY, THIRD]
    near, far, worse = margins(target, [difference(NEARLY, BEST), difference(BEST, THIRD), difference(NEARLY, THIRD)])
    assert near < NEAR_TIE / 5
    assert far == worse == pytest.approx(float(logits[BEST] - logits[THIRD]), abs=NEAR_TIE / 5)


def test_only_a_near_tie_is_no_bug(capsys) -> None:
    target = embedded_pair().target
    assert print_equality(found(), target) == 0
    assert print_equality(found(difference(BEST, NEARLY)), target) == 0
    assert "but for near ties (1): 0 tokens" in capsys.readouterr().out
    assert print_equality(found(difference(BEST, NEARLY), difference(BEST, THIRD)), target) == 1
    assert "auto and plain differ at token 11" in capsys.readouterr().out


def test_a_target_that_is_not_at_hand_can_not_excuse_anything(capsys) -> None:
    assert print_equality(found(difference(BEST, NEARLY)), None) == 1
    assert "DIFFER 1 times" in capsys.readouterr().out
