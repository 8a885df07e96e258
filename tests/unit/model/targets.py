"""Tiny random targets that transformers writes, and their logits as transformers computes them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from draftwood_verifier.plan import StepPlan, Walk
from draftwood_wire.tree import EMPTY_TREE
from draftwood_kernels.sample import SamplingParams
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

PAGE_SIZE = 4
VOCAB = 97

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "qwen3-tied": {"family": "qwen3", "tie_word_embeddings": True, "head_dim": 16},
    "qwen3-untied": {"family": "qwen3", "tie_word_embeddings": False, "head_dim": 8},
    "qwen3-yarn": {
        "family": "qwen3",
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "qwen3-sharded": {"family": "qwen3", "head_dim": 16, "max_shard_size": "40KB"},
    "llama": {"family": "llama", "tie_word_embeddings": False},
    "llama-bias": {"family": "llama", "attention_bias": True},
    "llama-one-kv-head": {"family": "llama", "num_key_value_heads": 1},
    "llama-llama3": {"family": "llama", "rope_parameters": _LLAMA3},
    "llama-linear": {
        "family": "llama", "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
}  # fmt: skip


def write_target(variant: str, folder: Path) -> Path:
    options = {**_SIZES, **VARIANTS[variant]}
    family, shard = options.pop("family"), options.pop("max_shard_size", "1GB")
    torch.manual_seed(sum(map(ord, variant)))
    if family == "qwen3":
        model: Any = Qwen3ForCausalLM(Qwen3Config(**options))
    else:
        model = LlamaForCausalLM(LlamaConfig(**options))
    for name, parameter in model.named_parameters():
        # Fresh norms are all ones and fresh biases all zeros, which would hide a norm or bias applied wrongly.
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


class Oracle:
    """transformers on the same checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """[len(ids), vocab]."""
        logits: NDArray[np.float32] = self._model(torch.tensor([ids])).logits[0].numpy()
        return logits

    @torch.inference_mode()
    def features(self, ids: list[int], layer_ids: tuple[int, ...]) -> NDArray[np.float32]:
        """Outputs of 0-based decoder layers, side by side: [len(ids), len(layer_ids) * hidden]."""
        states = self._model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        features: NDArray[np.float32] = torch.cat([states[layer + 1][0] for layer in layer_ids], dim=-1).numpy()
        return features


def make_plan(segments: list[tuple[list[int], int, list[int], list[int]]]) -> StepPlan:
    """Segments of (token ids, prefix length, parents, page table), every row wanting logits."""
    sizes = [len(ids) for ids, _, _, _ in segments]
    positions = []
    for ids, prefix, parents, _ in segments:
        depth: list[int] = []
        for parent in parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        positions += [prefix + d for d in depth]
        assert len(ids) == len(parents)
    rows = sum(sizes)
    return StepPlan(
        token_ids=np.array([t for ids, _, _, _ in segments for t in ids], np.int32),
        positions=np.array(positions, np.int32),
        row_offsets=np.cumsum([0, *sizes]).astype(np.int32),
        prefix_lens=np.array([prefix for _, prefix, _, _ in segments], np.int32),
        block_tables=[np.array(table, np.int32) for _, _, _, table in segments],
        parents=np.array([p for _, _, parents, _ in segments for p in parents], np.int32),
        is_chain=np.array([parents == list(range(-1, len(parents) - 1)) for _, _, parents, _ in segments]),
        logit_rows=np.arange(rows, dtype=np.int32),
        walks=[],
    )


def chain(start: int, count: int) -> list[int]:
    return list(range(start - 1, start + count - 1))


def plain_walk(segment: int, first_logit: int, root_row: int, position: int) -> Walk:
    return Walk(
        segment=segment, first_logit=first_logit, root_row=root_row, tree=EMPTY_TREE, position=position,
        sampling=SamplingParams(),
    )  # fmt: skip
