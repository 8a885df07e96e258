"""What the command prints, and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.__main__ import main
from tests.unit.doctor.kimi import write_kimi_k2
from tests.unit.drafter.pair import Pair, make_pair

GIB = 2**30
Out = pytest.CaptureFixture[str]


def diagnose(capsys: Out, code: int, *arguments: object) -> dict[str, Any]:
    assert main(["doctor", *map(str, arguments), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["servable"] is (code == 0)
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


def test_kimi_k2_on_nine_gpus(kimi: tuple[Path, Path], capsys: Out) -> None:
    target, draft = kimi
    found = diagnose(capsys, 0, target, "--draft", draft, "--gpus", 9, "--gpu-memory", 141)
    assert found["split"] == {"verifier_ranks": 8, "drafter_gpus": 1, "idle_gpus": 0}
    # 1.03e12 parameters, nearly all of one byte.
    assert found["target"]["stored_bytes"] == pytest.approx(1.03e12, rel=0.01)
    ranks = found["target"]["ranks"]
    # The latent and the rotated key of 61 layers in bfloat16, on every rank.
    assert {rank["kv_a_token_bytes"] for rank in ranks} == {61 * (512 + 64) * 2}
    # Each rank's eighth, 3 % for scales of single rows, and some matrices whole on every rank.
    assert all(1.03 < rank["weights_bytes"] / (found["target"]["stored_bytes"] / 8) < 1.07 for rank in ranks)
    rest = 0.9 * 141 * GIB - max(rank["weights_bytes"] + rank["step_bytes"] for rank in ranks)
    assert found["kv_tokens"] == rest // (61 * (512 + 64) * 2)
    drafted = found["draft"]
    assert drafted["borrowed_bytes"] == 2 * 163840 * 7168 * 2
    assert drafted["context_a_token_bytes"] == 6 * 2 * 8 * 128 * 2
    assert drafted["wire"]["features_a_token_bytes"] == 6 * 7168 * 4
    assert drafted["wire"]["hidden_rows_bytes"] == 7 * 7168 * 4
    assert drafted["head_on_verifier"]["saved_memory_bytes"] == 163840 * 7168 * 2


def test_one_gpu_too_few_is_said_in_words(tmp_path: Path, capsys: Out) -> None:
    """Kimi-K2's first layers on cards that are as much smaller."""
    target, _ = write_kimi_k2(tmp_path, layers=4)
    assert main(["doctor", str(target), "--gpus", "7", "--gpu-memory", "12"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "target    kimi_k2, 4 layers, quantisation: fp8, blocks of 128 x 128, 52.5 GiB in files" in lines
    assert "note      7 ranks: config.json: num_attention_heads: 64 can't be split evenly over 7 ranks" in lines
    problem = "problem   memory: 13.8 GiB of GPU 0 are taken before the first token's keys, 10.8 GiB are usable"
    assert [line for line in lines if line.startswith("problem")] == [f"{problem}: more GPUs, or larger ones"]
    assert lines[-1] == "not servable"


@pytest.mark.parametrize(
    ("gpus", "split"),
    [
        (1, {"verifier_ranks": 1, "drafter_gpus": 0, "idle_gpus": 0}),
        (2, {"verifier_ranks": 1, "drafter_gpus": 1, "idle_gpus": 0}),
        (3, {"verifier_ranks": 2, "drafter_gpus": 1, "idle_gpus": 0}),
        (4, {"verifier_ranks": 2, "drafter_gpus": 1, "idle_gpus": 1}),
        (5, {"verifier_ranks": 4, "drafter_gpus": 1, "idle_gpus": 0}),
    ],
)
def test_the_split_of_the_gpus(pair: Pair, gpus: int, split: dict[str, int], capsys: Out) -> None:
    found = diagnose(capsys, 0, pair.target, "--draft", pair.draft, "--gpus", gpus, "--gpu-memory", 1)
    assert found["split"] == split


def test_on_one_gpu_the_drafter_takes_its_part(pair: Pair, capsys: Out) -> None:
    alone = diagnose(capsys, 0, pair.target, "--gpu-memory", 1)
    both = diagnose(capsys, 0, pair.target, "--draft", pair.draft, "--gpu-memory", 1)
    taken = both["draft"]["weights_bytes"] + both["draft"]["context_bytes"]
    lost = alone["kv_tokens"] - both["kv_tokens"]
    assert lost == pytest.approx(taken / alone["target"]["ranks"][0]["kv_a_token_bytes"], abs=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are cards to be found")
def test_without_cards_the_hosts_memory_counts(pair: Pair, capsys: Out) -> None:
    one, two = (diagnose(capsys, 0, pair.target, "--gpus", gpus)["memory"] for gpus in (1, 2))
    assert (one["source"], [one["sizes_bytes"][0] // 2] * 2) == ("host", two["sizes_bytes"])


def test_missing_tokenizer_files_are_named(pair: Pair, tmp_path: Path, capsys: Out) -> None:
    found = diagnose(capsys, 1, tmp_path, "--draft", pair.draft)
    assert [note.split(":")[0] for note in found["notes"]] == ["tokenizer.json", "tokenizer_config.json"]
    assert [problem.split(":")[0] for problem in found["problems"]] == ["target", "draft"]


@pytest.mark.parametrize(
    "option", [["--gpus", "0"], ["--gpus", "two"], ["--gpu-memory", "-1"], ["--gpu-memory", "inf"]]
)
def test_wrong_usage(option: list[str], capsys: Out) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["doctor", "somewhere", *option])
    assert exit_.value.code == 2
    assert option[0] in capsys.readouterr().err


def test_nothing_is_read_but_headers(pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("draftwood_checkpoint.safetensors_file._fill", refuse)
    diagnose(capsys, 0, pair.target, "--draft", pair.draft)
