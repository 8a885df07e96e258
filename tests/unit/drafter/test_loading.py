"""What is read from both checkpoints, and which drafts are refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_drafter.loading import load_draft_model
from draftwood_wire.errors import Incompatible
from tests.unit.drafter.pair import Pair, make_pair


@pytest.mark.parametrize(
    ("tie", "with_head", "wanted"),
    [
        (True, True, {"model.embed_tokens.weight"}),
        (False, True, {"model.embed_tokens.weight", "lm_head.weight"}),
        (False, False, {"model.embed_tokens.weight"}),
    ],
)
def test_only_needed_tensors_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tie: bool, with_head: bool, wanted: set[str]
) -> None:
    pair = make_pair(tmp_path, tie=tie)
    read: dict[Path, set[str]] = {}
    load, init = Checkpoint.load, Checkpoint.__init__
    folders: dict[int, Path] = {}

    def noted_init(self: Checkpoint, folder: Path) -> None:
        folders[id(self)] = folder
        init(self, folder)

    def noted_load(self: Checkpoint, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        read.setdefault(folders[id(self)], set()).add(name)
        return load(self, name, shape)

    monkeypatch.setattr(Checkpoint, "__init__", noted_init)
    monkeypatch.setattr(Checkpoint, "load", noted_load)
    load_draft_model(pair.target, pair.draft, with_head=with_head)
    assert read[pair.target] == wanted
    assert read[pair.draft] == set(load_file(pair.draft / "model.safetensors"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 1]}}, "mask_token_id 97"),
        ({"dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 4]}}, "target_layer_ids"),
    ],
)
def test_drafts_that_do_not_fit(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    pair = make_pair(tmp_path, **fields)
    with pytest.raises(Incompatible, match=message):
        load_draft_model(pair.target, pair.draft)


def test_other_variants_are_refused(tmp_path: Path) -> None:
    pair: Pair = make_pair(tmp_path)
    tensors = load_file(pair.draft / "model.safetensors")
    tensors["layers.0.attention_conv.base_kernel"] = torch.zeros(2, 2, 64)
    save_file(tensors, pair.draft / "model.safetensors")
    with pytest.raises(Incompatible, match=r"layers\.0\.attention_conv\.base_kernel"):
        load_draft_model(pair.target, pair.draft)
