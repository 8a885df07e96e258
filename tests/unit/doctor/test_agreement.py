"""The doctor's figures and reasons against those of the real loaders."""

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.doctor.draft import examine_draft
from draftwood.doctor.examination import examine
from draftwood.doctor.target import RankMemory, Target, examine_target
from draftwood_drafter.context_cache import ContextCache
from draftwood_drafter.device_backend import check_supported
from draftwood_drafter.loading import load_draft_model
from draftwood_kernels.block_attention.layout import MOST_HEAD_DIM
from draftwood_kernels.placement import Placement
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.linear import ALONE, Share
from draftwood_verifier.runner import load_runner
from draftwood_wire.errors import Incompatible
from draftwood_wire.tensor import tensor_to_proto
from draftwood_wire.v1 import tensor_pb2
from tests.unit.drafter.pair import make_pair
from tests.unit.model.quantized import FP8_CONFIG, INT4_CONFIG, encode_fp8, encode_int4, write_mxfp4, write_quantized
from tests.unit.model.targets import KINDS, write_target
from tests.unit.parallel.ranks import on_ranks

T = TypeVar("T")
VARIANTS = (*KINDS, "kimi-k2", "qwen3-sharded", "llama-one-kv-head", "llama-bias", "gpt-oss-default-rope")
QUANTIZED = {
    "qwen3-moe": "fp8 mlp",
    "deepseek": "fp8 mlp",
    "kimi-k2-wide": "int4",
    "kimi-k25-wide": "int4",
    "gpt-oss-wide": "mxfp4",
}
# A GPU's types where every machine can load them.
GPU_TYPES = Placement(device=torch.device("cpu"), dtype=torch.bfloat16)
_MEASURING = threading.Lock()


def kept_bytes(load: Callable[[], T]) -> tuple[T, int]:
    """What `load` gives, and the bytes of all tensors that are there since, wherever they are."""
    gc.collect()
    before = _tensors()
    made = load()
    gc.collect()
    known = {id(tensor) for tensor in before}
    new = [tensor for tensor in _tensors() if id(tensor) not in known]
    # oneDNN's tensors have no storage to ask.
    packed = sum(4 * tensor.numel() for tensor in new if tensor.layout == torch._mkldnn)  # type: ignore[attr-defined]
    plain = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in new
        if tensor.layout == torch.strided
    }
    return made, packed + sum(plain.values())


def _tensors() -> list[torch.Tensor]:
    # Asking an object's type, unlike isinstance, wakes no proxy.
    return [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]


def examined(folder: Path, ranks: int) -> Target:
    found = examine_target(folder, most_ranks=ranks, on_cpu=True)
    assert len(found.ranks) == ranks
    return found


def loaded(folder: Path, ranks: int) -> list[tuple[int, int]]:
    """(weight bytes, KV bytes a token) of every rank."""

    def measure(group: Group | None) -> tuple[int, int]:
        # Ranks are threads here, and tensors are counted in the whole process.
        with _MEASURING:
            _, weights = kept_bytes(lambda: load_model(folder, Share(group) if group else ALONE))
            pages = load_runner(folder, pages=3, page_size=4, group=group)._pool.pages
            return weights, pages.nbytes // 12

    return on_ranks(ranks, measure) if ranks > 1 else [measure(None)]


def figures(ranks: tuple[RankMemory, ...]) -> list[tuple[int, int]]:
    return [(rank.weights_bytes, rank.kv_a_token_bytes) for rank in ranks]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_takes_what_the_doctor_says(variant: str, ranks: int, target: Callable[[str], Path]) -> None:
    assert figures(examined(target(variant), ranks).ranks) == loaded(target(variant), ranks)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("variant", "scheme"), QUANTIZED.items())
def test_quantised_weights_take_what_the_doctor_says(
    variant: str, scheme: str, ranks: int, target: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = quantize(target(variant), tmp_path, scheme)
    found = examined(folder, ranks)
    assert found.quantization.startswith(scheme.split()[0])
    assert found.stored_bytes == sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert figures(found.ranks) == loaded(folder, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_on_gpus_floats_are_half_as_large(variant: str, ranks: int, target: Callable[[str], Path]) -> None:
    found = examine_target(target(variant), most_ranks=ranks, on_cpu=False)
    for rank, memory in enumerate(found.ranks):
        model, weights = kept_bytes(
            lambda rank=rank: load_model(target(variant), Share.planned(rank, ranks), placement=GPU_TYPES)
        )
        heads, size = model.cache_row
        a_token = model.config.num_hidden_layers * heads * size * 2
        assert (memory.weights_bytes, memory.kv_a_token_bytes) == (weights, a_token)
        # 64 trees of a root and 16 nodes, and 256 rows of a prompt; scratch grows by powers of two.
        assert memory.step_bytes == 2048 * a_token + 1344 * len(range(found.config.vocab_size)[model.vocabulary]) * 2
    assert len(found.ranks) == ranks


def quantize(source: Path, folder: Path, scheme: str) -> Path:
    if scheme == "mxfp4":
        return write_mxfp4(source, folder)[0]
    if scheme == "int4":
        return write_quantized(source, folder, encode_int4, INT4_CONFIG, ".experts.")[0]
    return write_quantized(source, folder, encode_fp8, FP8_CONFIG, scheme.removeprefix("fp8").strip())[0]


def test_a_split_that_no_load_could_do_is_not_suggested(target: Callable[[str], Path], tmp_path: Path) -> None:
    folder = quantize(target("qwen3-moe"), tmp_path, "fp8")
    found = examine_target(folder, most_ranks=3, on_cpu=True)
    assert figures(found.ranks) == loaded(folder, 1)
    for ranks, reason in found.refused_ranks.items():
        with pytest.raises(ValueError, match=r"columns 0 to 48|num_key_value_heads: 2 is neither") as error:
            loaded(folder, ranks)
        assert str(error.value) == reason
    assert set(found.refused_ranks) == {2, 3}


@pytest.mark.parametrize("tie", [True, False])
def test_a_draft_takes_what_the_doctor_says(tie: bool, tmp_path: Path) -> None:
    pair = make_pair(tmp_path, tie=tie)
    found = examine_draft(pair.target, pair.draft, on_cpu=True)
    model, weights = kept_bytes(lambda: load_draft_model(pair.target, pair.draft))
    assert found.weights_bytes == weights
    c = model.config
    sizes = {"layers": c.num_hidden_layers, "kv_heads": c.num_key_value_heads, "head_dim": c.head_dim}
    _, context = kept_bytes(lambda: ContextCache(pages=4096, page_size=16, **sizes))
    assert found.context_bytes == context
    assert found.context_a_token_bytes == context // (4097 * 16)
    row = tensor_to_proto(np.zeros((1, model.feature_width), np.float32), tensor_pb2.DATA_TYPE_FLOAT32)
    assert found.wire.features_a_token_bytes == len(row.data)
    assert found.wire.commit_bytes > len(row.data)


@pytest.mark.parametrize("tie", [True, False])
def test_a_draft_on_a_gpu_takes_half_and_a_tied_matrix_once(tie: bool, tmp_path: Path) -> None:
    pair = make_pair(tmp_path, tie=tie)
    found = examine_draft(pair.target, pair.draft, on_cpu=False)
    model, weights = kept_bytes(lambda: load_draft_model(pair.target, pair.draft, placement=GPU_TYPES))
    assert found.weights_bytes == weights
    c = model.config
    matrix = model.vocab_size * c.hidden_size * 2
    assert (found.borrowed_bytes, found.head_bytes) == ((matrix, 0) if tie else (2 * matrix, matrix))
    assert found.context_a_token_bytes == c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim * 2
    assert found.context_bytes == 4097 * 16 * found.context_a_token_bytes


def test_a_draft_that_gpus_do_not_take_is_a_problem_there(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, head_dim=MOST_HEAD_DIM + 2)
    with pytest.raises(Incompatible, match="--device cpu") as error:
        check_supported(load_draft_model(pair.target, pair.draft))
    found = examine(pair.target, pair.draft, gpus=2, memory_bytes=2**40)
    assert found.problems == (str(error.value),)
    examine_draft(pair.target, pair.draft, on_cpu=True)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def lose_shard(folder: Path) -> None:
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


@pytest.mark.parametrize(
    ("variant", "breaks", "reason"),
    [
        ("llama", lambda f: change_tensors(f, **{"lm_head.weight": None}), "lm_head.weight: not in the checkpoint"),
        ("llama", lambda f: change_tensors(f, **{"model.norm.weight": torch.ones(3)}), "model.norm.weight: has shape"),
        ("llama", lambda f: change_tensors(f, extra=torch.ones(3)), "extra: is in the checkpoint"),
        ("llama", lambda f: change_config(f, model_type="gpt2"), "model_type: 'gpt2'"),
        ("llama", lambda f: change_config(f, quantization_config={"quant_method": "awq"}), "quant_method: 'awq'"),
        ("llama", lambda f: (f / "config.json").unlink(), "not there"),
        ("llama", lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors.index.json nor"),
        ("llama", cut, "not a whole safetensors file"),
        ("qwen3-sharded", lose_shard, "which is not there"),
        ("deepseek", lambda f: change_config(f, kv_lora_rank=None), "kv_lora_rank: None"),
    ],
)
def test_the_reason_is_the_loaders(variant: str, breaks: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    folder = write_target(variant, tmp_path)
    breaks(folder)
    with pytest.raises(ValueError, match=reason) as error:
        load_model(folder)
    found = examine(folder, None, gpus=1, memory_bytes=2**40)
    assert found.problems == (f"target: {error.value}",)
    assert not found.servable


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 1]}}, "mask_token_id 97"),
        ({"dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 4]}}, "target_layer_ids"),
        ({"hidden_size": 60}, "hidden_size 60"),
        ({"vocab_size": 98}, "vocab_size 98"),
        ({"num_target_layers": 5}, "num_target_layers 5"),
        ({"block_size": 1}, "block_size 1"),
    ],
)
def test_a_drafts_reason_is_the_loaders(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    pair = make_pair(tmp_path, **fields)
    with pytest.raises(Exception, match=reason) as error:
        load_draft_model(pair.target, pair.draft)
    found = examine(pair.target, pair.draft, gpus=2, memory_bytes=2**40)
    assert found.problems == (str(error.value),)
    assert found.draft is None
    assert found.target is not None
