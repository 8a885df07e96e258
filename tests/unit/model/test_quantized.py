"""Quantised checkpoints against transformers on float copies of what their codes mean; complaints about bad ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood_checkpoint.errors import CheckpointError, MissingTensor, UnsupportedConfig, UnsupportedTensor, WrongShape
from draftwood_verifier.runner import load_runner
from tests.unit.model.quantized import (
    FP8_CONFIG,
    INT4_CONFIG,
    encode_fp8,
    encode_int4,
    write_mxfp4,
    write_quantized,
)
from tests.unit.model.targets import PAGE_SIZE, Oracle, chain, commit_plan, decode, make_plan, make_tree

# The codes are exact in float32, so that only the order of sums differs: the bound of float checkpoints holds.
ATOL = 1e-4
TABLE = [7, 3, 60, 1, 22, 40, 5, 6, 12, 11]
SCHEMES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "fp8": (encode_fp8, FP8_CONFIG, ""),
    # As Kimi-K2 does: the routed experts alone.
    "int4": (encode_int4, INT4_CONFIG, ".experts."),
}
Targets = Callable[[str], Path]


def quantize(source: Path, folder: Path, scheme: str) -> tuple[Path, Path]:
    if scheme == "mxfp4":
        return write_mxfp4(source, folder)
    encode, config, chosen = SCHEMES[scheme]
    return write_quantized(source, folder, encode, config, chosen)


@pytest.mark.parametrize(
    ("variant", "scheme"),
    [
        ("qwen3-moe", "fp8"),
        ("llama", "fp8"),
        ("deepseek", "fp8"),
        ("deepseek-no-query-latent", "fp8"),
        ("qwen3-moe-wide", "int4"),
        ("kimi-k2-wide", "int4"),
        ("kimi-k25-wide", "int4"),
        ("gpt-oss-wide", "mxfp4"),
    ],
)
def test_a_quantised_target_is_its_dequantised_copy(variant: str, scheme: str, target: Targets, tmp_path: Path) -> None:
    quantized, dequantized = quantize(target(variant), tmp_path, scheme)
    oracle = Oracle(dequantized)
    runner = load_runner(quantized, pages=64, page_size=PAGE_SIZE)
    ids = [int(token) for token in np.random.default_rng(0).integers(0, 97, 30)]
    np.testing.assert_allclose(runner.forward(make_plan([chain(ids, 0, TABLE)])), oracle.logits(ids), atol=ATOL)
    runner.commit(commit_plan(list(range(30)), 0, TABLE))
    tree = make_tree([5, 0, 11], [0, 0, 2])
    logits = runner.forward(make_plan([decode(9, 30, TABLE, tree)]))
    paths = [[9], [9, 5], [9, 0], [9, 0, 11]]
    np.testing.assert_allclose(logits, [oracle.logits(ids + path)[-1] for path in paths], atol=ATOL)
    plain = Oracle(target(variant)).logits(ids)
    assert np.abs(plain - oracle.logits(ids)).max() > 10 * ATOL, "quantisation changed nothing: the test is blind"


@pytest.mark.parametrize(
    ("scheme", "part", "value", "error", "message"),
    [
        ("fp8", "weight_scale_inv", None, MissingTensor, "weight_scale_inv: not in the checkpoint"),
        ("fp8", "weight_scale_inv", torch.ones(2, 2), WrongShape, r"weight_scale_inv: has shape \[2, 2\]"),
        ("fp8", "weight", torch.ones(40, 48, dtype=torch.int8), UnsupportedTensor, "weight: holds torch.int8"),
        ("fp8", "weight", None, UnsupportedTensor, "weight_scale_inv: the module is stored as weight_scale_inv, which"),
        ("int4", "weight_scale", None, MissingTensor, "weight_scale: not in the checkpoint"),
        ("int4", "weight_shape", torch.tensor([1, 2]), WrongShape, r"weight_shape: says \[1, 2\]"),
        ("int4", "weight_packed", torch.ones(64, 3, dtype=torch.int32), WrongShape, "weight_packed: has shape"),
        ("int4", "weight_packed", torch.ones(64, 8), UnsupportedTensor, "weight_packed: holds torch.float32"),
        ("int4", "weight_zero_point", torch.ones(8, 2), UnsupportedTensor, "weight_zero_point: is not implemented"),
        ("int4", "weight_g_idx", torch.ones(64), UnsupportedTensor, "weight_g_idx: is not implemented"),
    ],
)
def test_what_is_wrong_names_the_tensor(
    scheme: str,
    part: str,
    value: torch.Tensor | None,
    error: type[CheckpointError],
    message: str,
    target: Targets,
    tmp_path: Path,
) -> None:
    variant = {"fp8": "qwen3-moe", "int4": "qwen3-moe-wide"}[scheme]
    quantized, _ = quantize(target(variant), tmp_path, scheme)
    module = "model.layers.2.mlp.experts.3.up_proj"
    tensors = load_file(quantized / "model.safetensors")
    tensors.pop(f"{module}.{part}", None)
    save_file(tensors if value is None else {**tensors, f"{module}.{part}": value}, quantized / "model.safetensors")
    with pytest.raises(error, match=rf"^{module}\.{message}"):
        load_runner(quantized, pages=4, page_size=4)


@pytest.mark.parametrize(
    ("scheme", "change", "message"),
    [
        ("fp8", {"quant_method": "awq"}, "quant_method: 'awq' is not one of fp8, compressed-tensors, mxfp4"),
        ("fp8", {"weight_block_size": None}, "weight_block_size: None"),
        ("fp8", {"fmt": "e5m2"}, "fmt: 'e5m2'"),
        ("int4", {"format": "int-quantized"}, "pack-quantized"),
        ("int4", {"num_bits": 8}, "num_bits: 8"),
        ("int4", {"symmetric": False}, "symmetric: False"),
        ("int4", {"group_size": 12}, "group_size: 12"),
    ],
)
def test_unsupported_schemes_name_the_field(
    scheme: str, change: dict[str, Any], message: str, target: Targets, tmp_path: Path
) -> None:
    quantized, _ = quantize(target("qwen3-moe-wide"), tmp_path, scheme)
    fields = json.loads((quantized / "config.json").read_text())
    config = fields["quantization_config"]
    weights = config["config_groups"]["group_0"]["weights"] if scheme == "int4" else {}
    place = weights if next(iter(change)) in weights else config
    place.update(change)
    (quantized / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UnsupportedConfig, match=rf"^config\.json: quantization_config: .*{message}"):
        load_runner(quantized, pages=4, page_size=4)


@pytest.mark.parametrize("scheme", ["fp8", "int4"])
def test_codes_without_a_word_in_the_config_are_refused(scheme: str, target: Targets, tmp_path: Path) -> None:
    quantized, dequantized = quantize(target("qwen3-moe-wide"), tmp_path, scheme)
    (quantized / "config.json").write_bytes((dequantized / "config.json").read_bytes())
    with pytest.raises(
        UnsupportedTensor, match=r"^model\.layers\.0\..*\.weight.*config\.json has no quantization_config"
    ):
        load_runner(quantized, pages=4, page_size=4)


@pytest.mark.parametrize(
    ("part", "value", "error", "message"),
    [
        ("gate_up_proj_blocks", None, MissingTensor, "not in the checkpoint"),
        ("down_proj_scales", torch.ones(6, 64, 2, dtype=torch.uint8), WrongShape, r"has shape \[6, 64, 2\]"),
        ("down_proj_bias", torch.ones(6, 65), WrongShape, r"has shape \[6, 65\]"),
    ],
)
def test_what_is_wrong_with_stacks_names_the_tensor(
    part: str, value: torch.Tensor | None, error: type[CheckpointError], message: str, target: Targets, tmp_path: Path
) -> None:
    quantized, _ = quantize(target("gpt-oss-wide"), tmp_path, "mxfp4")
    name = f"model.layers.3.mlp.experts.{part}"
    tensors = load_file(quantized / "model.safetensors")
    del tensors[name]
    save_file(tensors if value is None else {**tensors, name: value}, quantized / "model.safetensors")
    with pytest.raises(error, match=rf"^{name}: {message}"):
        load_runner(quantized, pages=4, page_size=4)


@pytest.mark.parametrize("size", ["hidden_size", "intermediate_size"])
def test_mxfp4_needs_whole_groups(size: str, target: Targets, tmp_path: Path) -> None:
    quantized, _ = quantize(target("gpt-oss-wide"), tmp_path, "mxfp4")
    fields = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**fields, size: 72}))
    with pytest.raises(UnsupportedConfig, match=rf"^config\.json: {size}: 72 is no multiple of the 32"):
        load_runner(quantized, pages=4, page_size=4)
