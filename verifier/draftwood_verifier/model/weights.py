"""The one place where a weight of the target is named, read and shaped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from draftwood_checkpoint.errors import UnexpectedTensor, UnsupportedConfig, UnsupportedTensor
from draftwood_checkpoint.mxfp4 import load_mxfp4
from draftwood_checkpoint.quantization import Quantization, QuantizedTensor, Weight, load_weight
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.quantized_linear import QuantizedLinear, dequantize
from draftwood_verifier.parallel.linear import Share

Linear = Callable[[torch.Tensor], torch.Tensor]
Reorder = Callable[[torch.Tensor], torch.Tensor]
# A buffer that old checkpoints keep and that follows from config.json.
_REDUNDANT = ".rotary_emb.inv_freq"


@dataclass(frozen=True, kw_only=True)
class Part:
    """The output rows that one module of the checkpoint brings to a linear.

    rows: of the whole module. held: this rank's of them; all, when it is none.
    reorder: a permutation of held rows, applied to all that has such rows: weight, scales, bias.
    """

    name: str
    rows: int
    held: slice | None = None
    bias: bool = False
    reorder: Reorder | None = None


class WeightReader:
    """Tensors under a prefix, as far as they are this rank's, where the model is placed; knows which names were asked
    for. All errors name the tensor."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        scheme: Quantization,
        share: Share,
        placement: Placement = CPU,
        prefix: str = "",
        asked: set[str] | None = None,
    ) -> None:
        self.share = share
        self.placement = placement
        self._checkpoint = checkpoint
        self._scheme = scheme
        self._prefix = prefix
        self._asked: set[str] = set() if asked is None else asked

    def under(self, prefix: str) -> "WeightReader":
        return WeightReader(
            self._checkpoint, self._scheme, self.share, self.placement, self._prefix + prefix, self._asked
        )

    def refuse_row_invariance(self, layer: str) -> None:
        """Raises UnsupportedConfig where kernels are to be row-invariant, which this layer has none of."""
        if self.placement.row_invariant:
            raise UnsupportedConfig(f"{layer} has no row-invariant kernel: start the verifier without --deterministic")

    def leave(self, module: str) -> None:
        """It is for other ranks to read."""
        name = self._prefix + module
        self._asked.update(f"{name}.{child}" for child in self._checkpoint.children(name))

    def inner(self, field: str, size: int) -> slice:
        """This rank's inner columns of an MLP, in whole groups of what is quantised."""
        block = self._scheme.fp8_block
        return self.share.part(field, size, step=block[1] if block else self._scheme.int4_group or 1)

    def tensor(self, name: str, *shape: int, rows: slice | None = None) -> torch.Tensor:
        """Numbers of exactly this shape, or some rows of it."""
        self._asked.add(self._prefix + name)
        return self.placement.place(self._checkpoint.load(self._prefix + name, shape, rows=rows))

    def exact(self, name: str, *shape: int) -> torch.Tensor:
        """`tensor` in float32, whatever type the model is placed in."""
        self._asked.add(self._prefix + name)
        return self._checkpoint.load(self._prefix + name, shape).to(self.placement.device)

    def matrix(self, name: str, rows: int, columns: int, *, held: slice | None = None) -> torch.Tensor:
        """The weight of a module, or some rows of it, as numbers [rows, columns], however it is stored."""
        weight = self._weight(Part(name=name, rows=rows, held=held), columns)
        if isinstance(weight, QuantizedTensor):
            return self.placement.place(dequantize(weight.codes, weight.scales, weight.group))
        return weight

    def linear(self, parts: Sequence[Part], columns: int, held: slice | None = None) -> PackedLinear | QuantizedLinear:
        """Modules of one input [.., columns] as one product; its output has their held rows in this order.

        With `held`, the input has only these columns, and of all ranks' outputs the sum is meant.
        """
        biases = None
        if any(part.bias for part in parts):
            biases = torch.cat([self._bias(part) for part in parts])
        if held is not None and biases is not None:
            biases = self.share.mine(biases)
        weights = [self._weight(part, columns, held) for part in parts]
        if isinstance(weights[0], torch.Tensor):
            plain = [weight for weight in weights if isinstance(weight, torch.Tensor)]
            self._check_alike(parts, len(plain))
            return PackedLinear(_join(plain), biases, row_invariant=self.placement.row_invariant)
        quantized = [
            weight
            for weight in weights
            if isinstance(weight, QuantizedTensor) and weight.codes.dtype == weights[0].codes.dtype
        ]
        self._check_alike(parts, len(quantized))
        return QuantizedLinear(
            _join([weight.codes for weight in quantized]),
            _join([weight.scales for weight in quantized]),
            weights[0].group,
            biases,
        )

    def stacked(
        self, name: str, expert: int, shape: tuple[int, int, int], reorder: Reorder | None = None
    ) -> PackedLinear | QuantizedLinear:
        """One of the experts that lie in one tensor, with its bias: float [X, I, O] or mxfp4. shape is (X, O, I)."""
        full, (experts, outputs, inputs) = self._prefix + name, shape
        one = slice(expert, expert + 1)
        parts = ("_blocks", "_scales") if self._scheme.is_mxfp4 else ("",)
        self._asked.update(f"{full}{part}" for part in (*parts, "_bias"))
        reorder = reorder or (lambda rows: rows)
        bias = self.placement.place(reorder(self._checkpoint.load(f"{full}_bias", (experts, outputs), rows=one)[0]))
        if self._scheme.is_mxfp4:
            codes = self._placed(load_mxfp4(self._checkpoint, full, expert, shape).map_rows(reorder))
            return QuantizedLinear(codes.codes, codes.scales, codes.group, bias)
        weight = reorder(self._checkpoint.load(full, (experts, inputs, outputs), rows=one)[0].T)
        return PackedLinear(self.placement.place(weight), bias, row_invariant=self.placement.row_invariant)

    def check_all_asked(self, ignored: Iterable[str]) -> None:
        """Raises UnexpectedTensor for a name that nobody asked for and that starts with nothing of `ignored`."""
        prefixes = tuple(ignored)
        for name in self._checkpoint.names():
            if name not in self._asked and not name.startswith(prefixes) and not name.endswith(_REDUNDANT):
                raise UnexpectedTensor(
                    f"{name}: is in the checkpoint, but this model type has no use for it: served without it, "
                    "the model would not be the one that was trained"
                )

    def _weight(self, part: Part, columns: int, held: slice | None = None) -> Weight:
        name = self._prefix + part.name
        self._asked.update(f"{name}.{child}" for child in self._checkpoint.children(name) if child.startswith("weight"))
        shape = (part.rows, columns)
        weight = load_weight(self._checkpoint, name, shape, self._scheme, rows=part.held, columns=held)
        reorder = part.reorder or (lambda rows: rows)
        if isinstance(weight, QuantizedTensor):
            return self._placed(weight.map_rows(reorder))
        return self.placement.place(reorder(weight))

    def _placed(self, weight: QuantizedTensor) -> QuantizedTensor:
        """Codes and scales keep their types."""
        device = self.placement.device
        return replace(weight, codes=weight.codes.to(device), scales=weight.scales.to(device))

    def _bias(self, part: Part) -> torch.Tensor:
        if not part.bias:
            return self.placement.place(torch.zeros(len(range(*(part.held or slice(None)).indices(part.rows)))))
        bias = self.tensor(f"{part.name}.bias", part.rows, rows=part.held)
        return bias if part.reorder is None else part.reorder(bias)

    def _check_alike(self, parts: Sequence[Part], alike: int) -> None:
        if alike < len(parts):
            names = ", ".join(part.name for part in parts)
            raise UnsupportedTensor(f"{self._prefix}{parts[0].name}: is not stored in the way of all of {names}")


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
