"""`draftwood train` from labels to a measured drafter, on a target that a real verifier serves."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from draftwood.processes import start_service
from draftwood_drafter.training.__main__ import main
from draftwood_drafter.training.labels import load_labels
from draftwood_drafter.training.target import TargetPlan, build_target, export_target
from draftwood_drafter.training.tokenizer import save_tokenizer, train_tokenizer

TEXT = "class Tree:\n    def grow(self):\n        return self.height\n" * 8


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A random 6-layer target with its tokenizer."""
    folder = tmp_path / "target"
    save_tokenizer(train_tokenizer([TEXT], 300), folder, 512)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plan = TargetPlan(
        output=folder, steps=1, hidden_size=64, layers=6, heads=2, kv_heads=1, head_dim=32, intermediate_size=96,
        context_limit=512,
    )  # fmt: skip
    export_target(build_target(plan, tokenizer), tokenizer, folder)
    return folder


def test_labels_train_a_drafter_that_can_be_measured(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(60):
        (corpus / f"{number}.py").write_text(f"# {number}\n" + TEXT)
    labels, drafter, prompts = tmp_path / "labels", tmp_path / "drafter", tmp_path / "prompts.jsonl"
    common = ["--target", str(target), "--threads", "1"]
    assert main(["prompts", "--output", str(prompts), "--count", "2", "--corpus", str(corpus)]) == 0
    arguments = ["--target", str(target), "--listen", "127.0.0.1:0", "--kv-pages", "256", "--threads", "1"]
    verifier = start_service("verifier", "draftwood_verifier", arguments)
    try:
        served = ["--verifier", verifier.addresses["address"], "--sequences", "6", "--corpus", str(corpus)]
        assert main(["labels", "--output", str(labels), *served, *common]) == 0
    finally:
        verifier.stop()
    ids, lengths = load_labels(labels)
    assert ids.shape == (6, 256)
    assert (lengths > 32).all()
    small = ["--layers", "1", "--target-layer-ids", "1", "2", "--sequences", "2", "--anchors", "4", "--steps", "2"]
    paths = ["--output", str(drafter), "--labels", str(labels), "--prompts", str(prompts)]
    assert main(["drafter", *paths, *small, *common]) == 0
    capsys.readouterr()
    measured = ["--drafter", str(drafter), "--prompts", str(prompts), "--new-tokens", "8"]
    assert main(["evaluate", *measured, *common]) == 0
    assert '"accepted_length": {"chain": ' in capsys.readouterr().out


def test_labels_without_a_verifier_say_so(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", str(target), "--verifier", "127.0.0.1:1", "--sequences", "1", "--output", str(tmp_path)]
    assert main(["labels", *arguments]) == 2
    assert "UNAVAILABLE" in capsys.readouterr().err
