"""What the doctor says of the cards that it finds. They are torch's word alone: none is here."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.__main__ import main
from tests.unit.drafter.pair import VOCAB, Pair, make_pair

MIB, GIB = 2**20, 2**30
# What torch finds of an H200, and of the 24 GB of a smaller card.
H200, SMALL = 150_119_186_432, 25_388_515_328
Out = pytest.CaptureFixture[str]
Cards = Callable[..., None]
# Of the pair's target in bfloat16: keys and values of 4 layers and 2 heads of 32, whole and on one rank of two.
KV, KV_OF_TWO = 4 * 2 * 2 * 32 * 2, 4 * 2 * 32 * 2
# A full step's: 1344 rows, whose keys lie in 2048 places, and their logits.
STEP = 2048 * KV + 1344 * VOCAB * 2


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Call it with the size of each card."""

    def find(*sizes_bytes: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes_bytes))
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda card: SimpleNamespace(total_memory=sizes_bytes[card])
        )

    return find


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


def diagnose(capsys: Out, *arguments: object) -> dict[str, Any]:
    code = main(["doctor", *map(str, arguments), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["servable"] is (code == 0)
    return found


def said(capsys: Out, *arguments: object) -> dict[str, str]:
    """Lines by their first word; the last of each."""
    main(["doctor", *map(str, arguments)])
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line[10:] for line in lines}


def split(ranks: int, drafters: int = 0, idle: int = 0) -> dict[str, int]:
    return {"verifier_ranks": ranks, "drafter_gpus": drafters, "idle_gpus": idle}


def test_one_card_where_both_fit(pair: Pair, cards: Cards, capsys: Out) -> None:
    cards(GIB)
    found = diagnose(capsys, pair.target, "--draft", pair.draft)
    assert found["problems"] == []
    assert found["memory"] == {"gpus": 1, "sizes_bytes": [GIB], "source": "cards"}
    assert found["split"] == split(1)
    (rank,), draft = found["target"]["ranks"], found["draft"]
    assert (rank["kv_a_token_bytes"], rank["step_bytes"]) == (KV, STEP)
    taken = rank["weights_bytes"] + STEP + draft["weights_bytes"] + draft["context_bytes"]
    assert found["kv_tokens"] == (int(0.9 * GIB) - taken) // KV
    lines = said(capsys, pair.target, "--draft", pair.draft)
    assert lines["memory"] == "1 x 1 GiB (the cards found), 90% of it usable"
    # Without the last option the drafter would be sent to the card after it, which is not there.
    assert lines["split"] == (
        "verifier on 1 (--device cuda --tensor-parallel 1), the drafter beside it (--drafter-device cuda)"
    )
    assert lines["KV"] == f"{found['kv_tokens']} tokens fit (--kv-pages {found['kv_tokens'] // 16})"


def test_one_card_is_too_small_by_one_token(pair: Pair, cards: Cards, capsys: Out) -> None:
    cards(GIB)
    (rank,) = diagnose(capsys, pair.target)["target"]["ranks"]
    enough = math.ceil((rank["weights_bytes"] + STEP + KV) / 0.9)
    cards(enough)
    found = diagnose(capsys, pair.target)
    assert (found["kv_tokens"], found["problems"]) == (1, [])
    cards(enough - 2)
    found = diagnose(capsys, pair.target)
    assert found["kv_tokens"] == 0
    (problem,) = found["problems"]
    size = f"{(rank['weights_bytes'] + STEP) / MIB:.3g} MiB"
    assert problem == (
        f"memory: {size} of GPU 0 are taken before the first token's keys, {size} are usable: more GPUs, or larger ones"
    )


def test_eight_cards_and_kimi_k2(kimi: tuple[Path, Path], cards: Cards, capsys: Out) -> None:
    cards(*[H200] * 8)
    found = diagnose(capsys, kimi[0])
    assert found["problems"] == []
    assert found["split"] == split(8)
    taken = max(rank["weights_bytes"] + rank["step_bytes"] for rank in found["target"]["ranks"])
    assert found["kv_tokens"] == (int(0.9 * H200) - taken) // (61 * (512 + 64) * 2) > 0


def test_eight_cards_are_too_few_for_kimi_k2_and_its_draft(kimi: tuple[Path, Path], cards: Cards, capsys: Out) -> None:
    """One is the drafter's, and seven can't share 64 heads."""
    cards(*[H200] * 8)
    target, draft = kimi
    found = diagnose(capsys, target, "--draft", draft)
    assert found["split"] == split(4, 1, 3)
    assert [note.split(":")[0] for note in found["notes"][-3:]] == ["7 ranks", "6 ranks", "5 ranks"]
    (problem,) = found["problems"]
    assert problem.endswith("126 GiB are usable: more GPUs, or larger ones")


@pytest.mark.parametrize(
    ("sizes", "gpus", "tightest"),
    [
        # Sizes in MiB: a rank has the room of its own card, and the rank with the fewest tokens counts.
        ((1024, 512), None, 1),
        ((512, 1024), None, 0),
        # Of 97 tokens rank 1 has one more. Three ranks can't be: the third card is idle, however small.
        ((1024, 1024, 1), None, 1),
        # Those asked for are the first ones.
        ((1024, 1024, 1, 1), 2, 1),
    ],
)
def test_cards_of_differing_memory(
    sizes: tuple[int, ...], gpus: int | None, tightest: int, pair: Pair, cards: Cards, capsys: Out
) -> None:
    cards(*(size * MIB for size in sizes))
    found = diagnose(capsys, pair.target, *(["--gpus", gpus] if gpus else []))
    counted = sizes[:gpus]
    assert found["memory"]["sizes_bytes"] == [size * MIB for size in counted]
    assert found["split"] == split(2, idle=len(counted) - 2)
    rank = found["target"]["ranks"][tightest]
    assert rank["kv_a_token_bytes"] == KV_OF_TWO
    usable = int(0.9 * sizes[tightest] * MIB)
    assert found["kv_tokens"] == (usable - rank["weights_bytes"] - rank["step_bytes"]) // KV_OF_TWO


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((1024, 1, 1024), "of GPU 1 are taken before the first token's keys, 922 KiB are usable"),
        ((1024, 1024, 1), "of GPU 2, 922 KiB are usable"),
        ((1024, 1024, 1, 1024), "of GPU 2, 922 KiB are usable"),
    ],
)
def test_a_card_that_is_too_small_is_named(
    sizes: tuple[int, ...], reason: str, pair: Pair, cards: Cards, capsys: Out
) -> None:
    cards(*(size * MIB for size in sizes))
    found = diagnose(capsys, pair.target, "--draft", pair.draft)
    assert found["split"] == split(2, 1, len(sizes) - 3)
    (problem,) = found["problems"]
    assert reason in problem
    assert problem.endswith(": a larger one, or CUDA_VISIBLE_DEVICES to leave it out or have it come later")


def test_a_card_that_nobody_takes_may_be_small(pair: Pair, cards: Cards, capsys: Out) -> None:
    cards(GIB, GIB, GIB, MIB)
    found = diagnose(capsys, pair.target, "--draft", pair.draft)
    assert found["split"] == split(2, 1, 1)
    assert found["problems"] == []


def test_cards_are_listed_in_the_order_in_which_they_are_taken(pair: Pair, cards: Cards, capsys: Out) -> None:
    cards(H200, H200, SMALL, H200)
    lines = said(capsys, pair.target, "--draft", pair.draft)
    assert lines["memory"] == "2 x 140 GiB, 1 x 23.6 GiB, 1 x 140 GiB (the cards found), 90% of it usable"
    assert lines["split"] == "verifier on 2 (--device cuda --tensor-parallel 2), the drafter on one more, 1 idle"


def test_more_gpus_than_cards(pair: Pair, cards: Cards, capsys: Out) -> None:
    cards(GIB)
    found = diagnose(capsys, pair.target, "--gpus", 2)
    assert found["problems"] == ["--gpus: 2 asked for, 1 found; --gpu-memory plans for GPUs that are elsewhere"]
    elsewhere = diagnose(capsys, pair.target, "--gpus", 2, "--gpu-memory", 2)
    assert elsewhere["memory"] == {"gpus": 2, "sizes_bytes": [2 * GIB] * 2, "source": "given"}
    assert elsewhere["problems"] == []
