"""A whole step made of this package's ops on random weights: forward, sampling, walk and commit, no host between."""

from dataclasses import dataclass

import torch

from draftwood_kernels.bench.shapes import ModelShape, Setting
from draftwood_kernels.bench.step_inputs import StepInputs
from draftwood_kernels.commit_kv import commit_kv
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rms_norm import add_rms_norm, rms_norm
from draftwood_kernels.rotary import RotaryTable
from draftwood_kernels.sample.kernel import sample_rows
from draftwood_kernels.silu_and_mul import silu_and_mul
from draftwood_kernels.store_kv import store_kv
from draftwood_kernels.tree_attention import tree_attention
from draftwood_kernels.walk_tree.kernel import WalkedPaths, walk_sampled

_EPS = 1e-6


@dataclass(frozen=True)
class _Rope:
    theta: float = 1e6
    kind: str = "default"

    @property
    def parameters(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True, kw_only=True)
class _Layer:
    norm: torch.Tensor
    qkv: PackedLinear
    head_norm: torch.Tensor
    o: PackedLinear
    post_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear


class Decoder:
    def __init__(self, shape: ModelShape, setting: Setting, context_limit: int, *, row_invariant: bool = False) -> None:
        s, self._setting, self._row_invariant = shape, setting, row_invariant
        self.shape = shape
        self.weight_bytes = 0
        heads = s.heads + 2 * s.kv_heads
        self._embedding = self._random(s.vocab, s.hidden)
        self._layers = [
            _Layer(
                norm=self._random(s.hidden),
                qkv=self._linear(heads * s.head_dim, s.hidden),
                head_norm=self._random(s.heads + s.kv_heads, s.head_dim),
                o=self._linear(s.hidden, s.heads * s.head_dim),
                post_norm=self._random(s.hidden),
                gate_up=self._linear(2 * s.intermediate, s.hidden),
                down=self._linear(s.hidden, s.intermediate),
            )
            for _ in range(s.layers)
        ]
        self._norm = self._random(s.hidden)
        self._head = self._linear(s.vocab, s.hidden)
        self._phases = RotaryTable(_Rope(), s.head_dim, context_limit).phase_table.to(setting.device)

    def new_pages(self, slots: int) -> torch.Tensor:
        """[L, slots + 1, 2G, D]; the last slot takes what is not committed."""
        s = self.shape
        return torch.randn(
            s.layers, slots + 1, 2 * s.kv_heads, s.head_dim, device=self._setting.device, dtype=self._setting.dtype
        )

    def kv_bytes(self, positions: int) -> int:
        s = self.shape
        return positions * s.layers * 2 * s.kv_heads * s.head_dim * self._setting.dtype.itemsize

    def logits(self, step: StepInputs, pages: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        """[N, V]; keys and values of the rows fill scratch [L, N, 2G, D]."""
        residual = self._embedding.index_select(0, step.token_ids)
        phases = self._phases.index_select(0, step.positions)[:, None]
        normed = rms_norm(residual, self._layers[0].norm, _EPS)
        norms = [*(layer.norm for layer in self._layers[1:]), self._norm]
        for index, (layer, next_norm) in enumerate(zip(self._layers, norms, strict=True)):
            fused = layer.qkv(normed).view(len(normed), -1, self.shape.head_dim)
            queries = store_kv(fused, layer.head_norm, _EPS, phases, scratch[index])
            attended = tree_attention(
                queries, scratch[index], pages[index], None, step.layout, row_invariant=self._row_invariant
            )
            normed, residual = add_rms_norm(layer.o(attended), residual, layer.post_norm, _EPS)
            normed, residual = add_rms_norm(layer.down(silu_and_mul(layer.gate_up(normed))), residual, next_norm, _EPS)
        return self._head(normed)

    def step(self, step: StepInputs, pages: torch.Tensor, scratch: torch.Tensor, paths: WalkedPaths) -> None:
        """Logits, one token a row at temperature 1, the walk, and the path's keys and values into the pages."""
        logits = self.logits(step, pages, scratch)
        places = paths.nodes.shape[1]
        seeds = torch.arange(len(logits), device=logits.device)
        sampled = sample_rows(logits, torch.ones(len(logits), device=logits.device), seeds, step.positions)
        walk_sampled(sampled, step.trees, places - 1, paths)
        taken = torch.arange(places, device=logits.device) < paths.lengths[:, None]
        rows = torch.where(taken, step.trees.first_rows[:, None] + paths.nodes, 0).long()
        slots = torch.where(taken, step.slots, pages.shape[1] - 1)
        commit_kv(scratch, pages, rows.flatten(), slots.flatten())

    def new_paths(self, batch: int, places: int) -> WalkedPaths:
        nodes, tokens = (torch.zeros(batch, places, dtype=torch.int32, device=self._setting.device) for _ in range(2))
        return WalkedPaths(nodes=nodes, tokens=tokens, lengths=torch.zeros_like(nodes[:, 0]))

    def _linear(self, outputs: int, inputs: int) -> PackedLinear:
        weight = self._random(outputs, inputs)
        self.weight_bytes += weight.numel() * weight.element_size()
        return PackedLinear(weight, row_invariant=self._row_invariant)

    def _random(self, *sizes: int) -> torch.Tensor:
        scale = sizes[-1] ** -0.5 if len(sizes) == 2 else 1.0
        return torch.randn(*sizes, device=self._setting.device, dtype=self._setting.dtype) * scale
