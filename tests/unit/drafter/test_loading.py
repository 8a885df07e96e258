"""What is read from both checkpoints, and which drafts are refused."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood_checkpoint.errors import MissingTensor, WrongShape
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_drafter.loading import load_draft_model
from draftwood_wire.errors import Incompatible
from tests.unit.drafter.pair import Pair, make_pair
from tests.unit.model.quantized import INT4_CONFIG, encode_int4, write_quantized
from tests.unit.model.targets import write_target


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
        ({"dflash_config": {"mask_token_id": 96, "target_layer_ids": [2, 2]}}, "names a layer twice"),
        ({"num_target_layers": 5}, "num_target_layers 5, the target's is 4"),
        ({"vocab_size": 98}, "vocab_size 98, the target's is 97"),
        ({"hidden_size": 60}, "hidden_size 60, the target's is 64"),
        ({"block_size": 1}, "block_size 1"),
    ],
)
def test_drafts_that_do_not_fit(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    pair = make_pair(tmp_path, **fields)
    with pytest.raises(Incompatible, match=message):
        load_draft_model(pair.target, pair.draft)


@pytest.mark.parametrize(
    "name",
    ["layers.0.attention_conv.base_kernel", "markov_head.weight", "lm_head.weight", "layers.1.self_attn.q_proj.bias"],
)
def test_other_variants_are_refused(tmp_path: Path, name: str) -> None:
    pair: Pair = make_pair(tmp_path)
    change_tensors(pair, **{name: torch.zeros(2, 2, 64)})
    with pytest.raises(Incompatible, match=f"^draft: {re.escape(name)} belongs to a variant"):
        load_draft_model(pair.target, pair.draft)


@pytest.mark.parametrize(
    "name", ["fc.weight", "norm.weight", "layers.1.self_attn.k_norm.weight", "layers.0.mlp.up_proj.weight"]
)
def test_missing_and_misshapen_tensors_are_named(tmp_path: Path, name: str) -> None:
    pair = make_pair(tmp_path)
    change_tensors(pair, **{name: torch.zeros(3)})
    with pytest.raises(WrongShape, match=f"^{re.escape(name)}: has shape"):
        load_draft_model(pair.target, pair.draft)
    change_tensors(pair, **{name: None})
    with pytest.raises(MissingTensor, match=f"^{re.escape(name)}: not in the checkpoint"):
        load_draft_model(pair.target, pair.draft)


def change_tensors(pair: Pair, **changes: torch.Tensor | None) -> None:
    tensors = {**load_file(pair.draft / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, pair.draft / "model.safetensors")


@pytest.mark.parametrize(("variant", "prefix"), [("kimi-k25-wide", "language_model."), ("kimi-k2-wide", "")])
@pytest.mark.parametrize("quantised", [True, False])
@torch.inference_mode()
def test_what_is_borrowed_from_a_kimi(tmp_path: Path, variant: str, prefix: str, quantised: bool) -> None:
    plain = write_target(variant, tmp_path / "plain")
    target = write_quantized(plain, tmp_path, encode_int4, INT4_CONFIG, ".experts.")[0] if quantised else plain
    draft = make_pair(tmp_path / "pair").draft
    model = load_draft_model(target, draft)
    tensors = load_file(target / "model.safetensors")
    embedding = tensors[f"{prefix}model.embed_tokens.weight"].float()
    head = tensors[f"{prefix}lm_head.weight"].float()
    assert torch.equal(model.weights.embedding, embedding)
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits(hidden), hidden @ head.T)
    assert not torch.equal(embedding, head)
