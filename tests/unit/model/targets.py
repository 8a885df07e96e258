"""Tiny random targets that transformers writes, their logits as transformers computes them, and step plans."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25Config
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25ForConditionalGeneration

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.plan import CommitPlan, StepPlan, Walk
from draftwood_wire.tree import EMPTY_TREE, TokenTree

PAGE_SIZE = 4
VOCAB = 97
GREEDY = SamplingParams(temperature=0)

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
_MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "mscale": 0.8, "mscale_all_dim": 0.6, "beta_fast": 32.0, "beta_slow": 1.0,
    },
}  # fmt: skip
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
    "qwen3-moe": {"family": "qwen3_moe", **_MOE, "norm_topk_prob": True},
    "qwen3-moe-some": {"family": "qwen3_moe", **_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "deepseek": {"family": "deepseek_v3", **_LATENT},
    "deepseek-no-query-latent": {
        "family": "deepseek_v3", **_LATENT, "q_lora_rank": None, "norm_topk_prob": False, "rope_interleave": False,
    },
    "deepseek-dense-bias": {
        "family": "deepseek_v3", **_LATENT, "first_k_dense_replace": 4, "attention_bias": True, "rope_parameters": None,
        "rope_interleave": False,
    },
    "kimi-k2": {"family": "kimi_k2", **_LATENT, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.8},
    "kimi-k25": {"family": "kimi_k25", **_LATENT, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    "gpt-oss": {
        "family": "gpt_oss", "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8,
    },
    "gpt-oss-default-rope": {
        "family": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 4, "head_dim": 8, "sliding_window": 5,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "num_key_value_heads": 1,
    },
}  # fmt: skip
# Sizes that groups of 32 divide, for quantised copies.
_WIDE = {"hidden_size": 64, "moe_intermediate_size": 64}
QUANTIZED_VARIANTS = {f"{name}-wide": {**VARIANTS[name], **_WIDE} for name in ("qwen3-moe", "kimi-k2", "kimi-k25")} | {
    "gpt-oss-wide": {**VARIANTS["gpt-oss"], "hidden_size": 64, "intermediate_size": 96}
}
# One of every kind of layer and cache.
KINDS = ("qwen3-tied", "llama-llama3", "qwen3-moe", "deepseek", "deepseek-no-query-latent", "kimi-k25", "gpt-oss")


def write_target(variant: str, folder: Path) -> Path:
    options = {**_SIZES, **(VARIANTS | QUANTIZED_VARIANTS)[variant]}
    family, shard = options.pop("family"), options.pop("max_shard_size", "1GB")
    torch.manual_seed(sum(map(ord, variant)))
    model = _make_model(family, options)
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        # Fresh norms are all ones and fresh biases all zeros, which would hide a norm or bias applied wrongly.
        if "norm" in name or "bias" in name or "sinks" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=shard)
    if family == "kimi_k2":
        _set_fields(folder, model_type="kimi_k2")
    if family == "kimi_k25":
        _name_as_published(folder)
    return folder


def _make_model(family: str, options: dict[str, Any]) -> Any:
    if family == "kimi_k25":
        vision = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
        text = {**options, "model_type": "deepseek_v3"}
        config = Kimi_K25Config(
            text_config=text, vision_config=vision, projection_hidden_size=32, tie_word_embeddings=False
        )
        return Kimi_K25ForConditionalGeneration(config)
    # transformers knows Kimi-K2 by the name of the architecture it shares.
    config = AutoConfig.for_model("deepseek_v3" if family == "kimi_k2" else family, **options)
    return AutoModelForCausalLM.from_config(config)


def _name_as_published(folder: Path) -> None:
    """transformers 5.17 reads published names, but on writing its renames of vision blocks hit the text layers too."""
    file = folder / "model.safetensors"
    renames = (
        ("language_model.model.blocks.", "language_model.model.layers."),
        ("model.mm_projector.", "mm_projector."),
    )
    tensors = load_file(file)
    for wrong, right in renames:
        tensors = {
            right + name.removeprefix(wrong) if name.startswith(wrong) else name: tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, file, metadata={"format": "pt"})


def _set_fields(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


class Oracle:
    """transformers on the same checkpoint."""

    def __init__(self, folder: Path) -> None:
        fields = json.loads((folder / "config.json").read_text())
        loader: Any = Kimi_K25ForConditionalGeneration if "text_config" in fields else AutoModelForCausalLM
        chosen = {}
        if fields.pop("model_type") == "kimi_k2":
            chosen["config"] = AutoConfig.for_model("deepseek_v3", **fields)
        self._model: Any = loader.from_pretrained(folder, dtype=torch.float32, **chosen).eval()

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


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One segment: its tokens at prefix_len + depth, hung by `parents`; `tree` makes it a decode segment."""

    ids: list[int]
    prefix_len: int
    parents: list[int]
    table: list[int]
    tree: TokenTree | None = None
    sampling: SamplingParams = GREEDY


def chain(ids: list[int], prefix_len: int, table: list[int]) -> Rows:
    """A prefill chunk or a replay."""
    return Rows(ids=ids, prefix_len=prefix_len, parents=list(range(-1, len(ids) - 1)), table=table)


def decode(
    root: int, prefix_len: int, table: list[int], tree: TokenTree = EMPTY_TREE, sampling: SamplingParams = GREEDY
) -> Rows:
    """The root alone, or the root and a tree."""
    return Rows(
        ids=[root, *tree.token_ids.tolist()],
        prefix_len=prefix_len,
        parents=[-1, *tree.parents.tolist()],
        table=table,
        tree=tree,
        sampling=sampling,
    )


def make_plan(segments: list[Rows], logit_rows: list[int] | None = None) -> StepPlan:
    """Every row wants logits unless `logit_rows` says which."""
    sizes = [len(segment.ids) for segment in segments]
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    return StepPlan(
        token_ids=np.array([token for s in segments for token in s.ids], np.int32),
        positions=np.array([s.prefix_len + depth for s in segments for depth in _depths(s.parents)], np.int32),
        row_offsets=offsets,
        prefix_lens=np.array([s.prefix_len for s in segments], np.int32),
        block_tables=[np.array(s.table, np.int32) for s in segments],
        parents=np.array([parent for s in segments for parent in s.parents], np.int32),
        logit_rows=np.array(list(range(sum(sizes))) if logit_rows is None else logit_rows, np.int32),
        walks=[_walk(index, s, int(offsets[index])) for index, s in enumerate(segments) if s.tree is not None],
    )


def _depths(parents: list[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def _walk(index: int, rows: Rows, first: int) -> Walk:
    assert rows.tree is not None
    return Walk(
        segment=index,
        first_logit=first,
        root_row=first,
        tree=rows.tree,
        position=rows.prefix_len + 1,
        sampling=rows.sampling,
    )


def make_tree(token_ids: list[int], parents: list[int]) -> TokenTree:
    return TokenTree(
        token_ids=np.array(token_ids, np.int32),
        parents=np.array(parents, np.int32),
        log_probs=-np.arange(len(parents), dtype=np.float32),
    )


def commit_plan(rows: list[int], first_position: int, table: list[int]) -> CommitPlan:
    """`rows` to the slots of the positions from `first_position` on."""
    positions = range(first_position, first_position + len(rows))
    slots = [table[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in positions]
    return CommitPlan(rows=np.array(rows, np.int32), slots=np.array(slots, np.int32))
