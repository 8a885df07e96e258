"""Weights that are stored as small codes with scales, and how config.json announces them.

Shapes: O output rows, I inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from draftwood_checkpoint.errors import UnsupportedConfig, UnsupportedTensor, WrongShape
from draftwood_checkpoint.fields import Fields
from draftwood_checkpoint.safetensors_index import Checkpoint

CODES_A_WORD = 8
_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """weight[o, i] = code[o, i] * scales[o, i // group].

    codes: float8_e4m3fn [O, I]; or int32 [O, I / 8], eight codes of 4 bits a word, lowest bits first, each plus 8.
    scales float32 [O, ceil(I / group)]. One row of scales a row of codes, whatever the file shares among rows: so rows
    can be cut, joined and reordered. Of a file with one scale for 128 x 128 codes that makes 3 % more bytes.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int

    def map_rows(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "QuantizedTensor":
        """`change` cuts or reorders the first dimension of what it is given."""
        return replace(self, codes=change(self.codes), scales=change(self.scales))


Weight = torch.Tensor | QuantizedTensor


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What config.json says quantised tensors look like; none or false where it says nothing of that kind."""

    fp8_block: tuple[int, int] | None = None
    int4_group: int | None = None
    is_mxfp4: bool = False


def quantization(fields: Fields) -> Quantization:
    """From `quantization_config`. Raises UnsupportedConfig naming what is not implemented."""
    config = fields.get("quantization_config") or {}
    if not isinstance(config, dict):
        raise _unsupported("not an object")
    method = config.get("quant_method")
    if not config:
        return Quantization()
    if method == "fp8":
        return Quantization(fp8_block=_fp8_block(config))
    if method == "compressed-tensors":
        return Quantization(int4_group=_int4_group(config))
    if method == "mxfp4":
        return Quantization(is_mxfp4=True)
    raise _unsupported(f"quant_method: {method!r} is not one of fp8, compressed-tensors, mxfp4")


def load_weight(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    scheme: Quantization,
    *,
    rows: slice | None = None,
    columns: slice | None = None,
) -> Weight:
    """The matrix of the module `name`, of `shape` [O, I] as a whole: float32, or its codes where they are stored.

    `columns` of a quantised matrix start and end at groups. Raises MissingTensor, WrongShape or UnsupportedTensor,
    which name the tensor.
    """
    if f"{name}.weight_packed" in checkpoint:
        return _load_int4(checkpoint, name, shape, scheme, rows, columns)
    if f"{name}.weight" in checkpoint:
        if checkpoint.dtype(f"{name}.weight") == torch.float8_e4m3fn:
            return _load_fp8(checkpoint, name, shape, scheme, rows, columns)
    elif stored := checkpoint.children(name):
        raise UnsupportedTensor(
            f"{name}.{stored[0]}: the module is stored as {', '.join(stored)}, which is neither a plain weight, "
            "nor fp8 with weight_scale_inv, nor packed int4 with weight_scale"
        )
    weight = checkpoint.load(f"{name}.weight", shape, rows=rows, columns=columns)
    _refuse_others(checkpoint, name, ("weight",))
    return weight


def _fp8_block(config: Fields) -> tuple[int, int]:
    block, form = config.get("weight_block_size"), config.get("fmt", "e4m3")
    if form != "e4m3":
        raise _unsupported(f"fmt: {form!r} is not implemented, only e4m3")
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise _unsupported(f"weight_block_size: {block!r} is not rows and columns of a block")
    return block[0], block[1]


def _int4_group(config: Fields) -> int:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1 or config.get("format") != "pack-quantized":
        raise _unsupported("config_groups: only one group of format pack-quantized is implemented")
    (group,) = groups.values()
    weights = group.get("weights") or {}
    for field, value in _INT4.items():
        if weights.get(field) != value:
            raise _unsupported(f"weights: {field}: {weights.get(field)!r} is not implemented, only {value!r}")
    if group.get("input_activations"):
        raise _unsupported("input_activations: not implemented, only weights may be quantised")
    size = weights.get("group_size")
    if not isinstance(size, int) or size < CODES_A_WORD or size % CODES_A_WORD:
        raise _unsupported(f"weights: group_size: {size!r} is no multiple of {CODES_A_WORD}")
    return size


def _unsupported(complaint: str) -> UnsupportedConfig:
    return UnsupportedConfig(f"config.json: quantization_config: {complaint}")


def _load_fp8(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    scheme: Quantization,
    rows: slice | None,
    columns: slice | None,
) -> QuantizedTensor:
    if scheme.fp8_block is None:
        raise UnsupportedTensor(
            f"{name}.weight: holds float8_e4m3fn, but config.json has no quantization_config of method fp8"
        )
    _refuse_others(checkpoint, name, ("weight", "weight_scale_inv"))
    height, width = scheme.fp8_block
    blocks = (-(-shape[0] // height), -(-shape[1] // width))
    scales = checkpoint.load(f"{name}.weight_scale_inv", blocks).repeat_interleave(height, dim=0)[: shape[0]]
    return QuantizedTensor(
        codes=checkpoint.read(f"{name}.weight", shape, rows=rows, columns=columns),
        scales=scales[rows or slice(None), _grouped(name, columns, shape[1], width)].contiguous(),
        group=width,
    )


def _load_int4(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    scheme: Quantization,
    rows: slice | None,
    columns: slice | None,
) -> QuantizedTensor:
    group = scheme.int4_group
    if group is None:
        raise UnsupportedTensor(
            f"{name}.weight_packed: config.json has no quantization_config of method compressed-tensors"
        )
    _refuse_others(checkpoint, name, ("weight_packed", "weight_scale", "weight_shape"))
    stated = tuple(checkpoint.read(f"{name}.weight_shape", (2,)).tolist())
    if stated != shape:
        raise WrongShape(f"{name}.weight_shape: says {list(stated)}, config.json implies {list(shape)}")
    if shape[1] % group:
        raise UnsupportedTensor(f"{name}.weight_packed: {shape[1]} columns are no multiple of the group size {group}")
    if checkpoint.dtype(f"{name}.weight_packed") != torch.int32:
        raise UnsupportedTensor(f"{name}.weight_packed: holds {checkpoint.dtype(f'{name}.weight_packed')}, not int32")
    groups = _grouped(name, columns, shape[1], group)
    words = slice(groups.start * group // CODES_A_WORD, groups.stop * group // CODES_A_WORD)
    return QuantizedTensor(
        codes=checkpoint.read(f"{name}.weight_packed", (shape[0], shape[1] // CODES_A_WORD), rows=rows, columns=words),
        scales=checkpoint.load(f"{name}.weight_scale", (shape[0], shape[1] // group), rows=rows, columns=groups),
        group=group,
    )


def _grouped(name: str, columns: slice | None, width: int, group: int) -> slice:
    """Columns of codes to columns of scales."""
    first, end, _ = (columns or slice(None)).indices(width)
    if first % group or (end % group and end != width):
        raise UnsupportedTensor(f"{name}.weight: columns {first} to {end} do not start and end at groups of {group}")
    return slice(first // group, -(-end // group))


def _refuse_others(checkpoint: Checkpoint, name: str, known: tuple[str, ...]) -> None:
    """Zero points, orders of columns and the like change what the codes mean."""
    for part in checkpoint.children(name):
        if part.startswith("weight") and part not in known:
            raise UnsupportedTensor(f"{name}.{part}: is not implemented beside {known[0]}")
