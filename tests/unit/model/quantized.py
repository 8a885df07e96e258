"""Quantised copies of a checkpoint, beside float copies of the very numbers that their codes stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
# weight -> what is stored in its place, by the part's name, and the float32 weight that this means.
Encode = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]

FP8_BLOCK = (16, 32)
INT4_GROUP = 32


def write_quantized(
    source: Path, folder: Path, encode: Encode, config: dict[str, Any], chosen: str
) -> tuple[Path, Path]:
    """(quantised, dequantised) folders below `folder`; weights whose name holds `chosen` are encoded."""
    stored: Tensors = {}
    meant: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith(("_proj.weight", "_proj_with_mqa.weight")) and chosen in name:
            parts, meant[name] = encode(tensor)
            stored.update({f"{name.removesuffix('weight')}{part}": value for part, value in parts.items()})
        else:
            stored[name] = meant[name] = tensor
    fields = json.loads((source / "config.json").read_text())
    quantized, dequantized = folder / "quantized", folder / "dequantized"
    _write(quantized, stored, {**fields, "quantization_config": config})
    _write(dequantized, meant, fields)
    return quantized, dequantized


def write_mxfp4(source: Path, folder: Path) -> tuple[Path, Path]:
    """`write_quantized` for gpt-oss, whose experts lie in stacks [X, I, O]."""
    stored: Tensors = {}
    meant: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, numbers = _encode_mxfp4(tensor.mT.contiguous())
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            meant[name] = numbers.mT
        else:
            stored[name] = meant[name] = tensor
    fields = json.loads((source / "config.json").read_text())
    quantized, dequantized = folder / "quantized", folder / "dequantized"
    _write(quantized, stored, {**fields, "quantization_config": {"quant_method": "mxfp4"}})
    _write(dequantized, meant, fields)
    return quantized, dequantized


def _encode_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight [X, O, I] -> blocks uint8 [X, O, I / 32, 16], scales uint8 [X, O, I / 32], float32 [X, O, I]."""
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    grouped = weight.unflatten(-1, (-1, 32))
    exponents = (grouped.abs().amax(-1) / 6).log2().ceil()
    scaled = grouped / torch.exp2(exponents)[..., None]
    nearest = (scaled.abs()[..., None] - magnitudes).abs().argmin(-1)
    codes = nearest + 8 * (scaled < 0)
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    numbers = magnitudes[nearest] * scaled.sign() * torch.exp2(exponents)[..., None]
    return blocks, (exponents + 127).to(torch.uint8), numbers.flatten(-2)


def encode_fp8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """One scale a block, as DeepSeek-V3 stores it; blocks at the edges are smaller."""
    height, width = FP8_BLOCK
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // height), -(-columns // width))
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    meant = torch.empty(rows, columns)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width))
            scales[i, j] = weight[block].abs().max() / 448
            codes[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            meant[block] = codes[block].float() * scales[i, j]
    return {"weight": codes, "weight_scale_inv": scales}, meant


def encode_int4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Groups along a row, codes -8 … 7, the lowest bits of a word first, as compressed-tensors packs them."""
    rows, columns = weight.shape
    grouped = weight.view(rows, -1, INT4_GROUP)
    scales = (grouped.abs().amax(dim=-1) / 7.5).to(torch.bfloat16)
    codes = (grouped / scales.float()[..., None]).round().clamp(-8, 7)
    words = torch.zeros(rows, columns // 8, dtype=torch.int64)
    for place in range(8):
        words |= (codes.view(rows, columns)[:, place::8].long() + 8) << (4 * place)
    packed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    parts = {"weight_packed": packed, "weight_scale": scales, "weight_shape": torch.tensor([rows, columns])}
    return parts, (codes * scales.float()[..., None]).view(rows, columns)


FP8_CONFIG = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(FP8_BLOCK),
}  # fmt: skip
INT4_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": INT4_GROUP,
            },
        }
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
}  # fmt: skip


def _write(folder: Path, tensors: Tensors, fields: dict[str, Any]) -> None:
    folder.mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(fields))
