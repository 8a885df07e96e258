import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from draftwood_drafter.training.corpus import Document
from draftwood_drafter.training.drafter import DrafterPlan, default_layer_ids, train_drafter
from draftwood_drafter.training.hugging_face import load_target
from draftwood_drafter.training.target import train_target

from .conftest import TEXTS, same_weights, tiny_plan


def test_default_layers_follow_the_published_formula() -> None:
    assert default_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_layer_ids(64, 6) == (1, 13, 25, 37, 49, 61)
    assert default_layer_ids(10, 3) == (1, 4, 7)
    assert default_layer_ids(10, 1) == (5,)


def test_a_resumed_target_equals_an_uninterrupted_one(tiny_target: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_target / "tokenizer.json"))
    documents = [Document(name=str(i), text=text) for i, text in enumerate(TEXTS)]
    train_target(tiny_plan(tmp_path / "whole", 4), tokenizer, documents, documents)
    train_target(tiny_plan(tmp_path / "again", 4), tokenizer, documents, documents)
    assert same_weights(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again")
    _interrupt(lambda: train_target(tiny_plan(tmp_path / "again", 4), tokenizer, documents, documents), after=3)
    train_target(tiny_plan(tmp_path / "again", 4), tokenizer, documents, documents)
    assert same_weights(tmp_path / "whole", tmp_path / "again")


def test_a_resumed_drafter_equals_an_uninterrupted_one(tiny_target: Path, tmp_path: Path) -> None:
    target = load_target(tiny_target)
    ids = torch.randint(4, target.config.vocab_size, (6, 24), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([24, 24, 20, 24, 9, 24])

    def train(name: str) -> None:
        plan = DrafterPlan(
            output=tmp_path / name, steps=4, mask_token_id=1, layers=1, block=4, layer_ids=(1, 2), sequences=2,
            anchors=3, save_every=2,
        )  # fmt: skip
        train_drafter(plan, target, ids, lengths, check=lambda: 1.0)

    train("whole")
    _interrupt(lambda: train("again"), after=3)
    train("again")
    assert same_weights(tmp_path / "whole", tmp_path / "again")
    with safe_open(tmp_path / "whole" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == _published_names(layers=1)


def _interrupt(run: object, after: int) -> None:
    """Run a training and break it off in the update after `after` whole ones."""
    steps = 0
    original = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *args: object) -> object:
        nonlocal steps
        steps += 1
        if steps > after:
            raise KeyboardInterrupt
        return original(self, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step)
        with pytest.raises(KeyboardInterrupt):
            run()  # type: ignore[operator]


def _published_names(layers: int) -> set[str]:
    parts = [
        "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
        "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    ]  # fmt: skip
    return {f"layers.{i}.{part}.weight" for i in range(layers) for part in parts} | {
        "fc.weight", "hidden_norm.weight", "norm.weight",
    }  # fmt: skip
