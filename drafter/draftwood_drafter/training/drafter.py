"""Train a DFlash drafter for a frozen target on the target's own text."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from draftwood_checkpoint.draft_config import load_draft_config
from draftwood_drafter.training.blocks import Blocks, choose_anchors, make_blocks
from draftwood_drafter.training.checkpointing import load_state, save_state, write_weights
from draftwood_drafter.training.model import TrainableDrafter
from draftwood_drafter.training.schedule import make_optimizers, set_learning_rate

# Features of the whole label set are kept when they fit, since the target never changes.
_FEATURE_CACHE_BYTES = 6 * 1024**3


@dataclass(frozen=True, kw_only=True)
class DrafterPlan:
    """One step sees `sequences * anchors` blocks. `layer_ids` empty: the published formula."""

    output: Path
    steps: int
    mask_token_id: int
    layers: int = 2
    block: int = 8
    layer_ids: tuple[int, ...] = ()
    sequences: int = 32
    anchors: int = 24
    decay: float = 4.0
    matrix_lr: float = 0.02
    vector_lr: float = 3e-3
    save_every: int = 100
    seed: int = 2


def default_layer_ids(target_layers: int, count: int) -> tuple[int, ...]:
    """`count` layers from 1 to N - 3, as published drafters choose them."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def write_draft_config(plan: DrafterPlan, target_config: Any) -> None:
    """config.json in the published format; sizes follow the target, the rope is plain."""
    layer_ids = plan.layer_ids or default_layer_ids(target_config.num_hidden_layers, 3)
    theta = _rope_theta(target_config)
    head_dim = (
        getattr(target_config, "head_dim", None) or target_config.hidden_size // target_config.num_attention_heads
    )
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": plan.block,
        "dflash_config": {"mask_token_id": plan.mask_token_id, "target_layer_ids": list(layer_ids)},
        "num_target_layers": target_config.num_hidden_layers,
        "num_hidden_layers": plan.layers,
        "hidden_size": target_config.hidden_size,
        "intermediate_size": target_config.intermediate_size,
        "num_attention_heads": target_config.num_attention_heads,
        "num_key_value_heads": target_config.num_key_value_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rope_theta": theta,
        "rope_scaling": None,
        "max_position_embeddings": target_config.max_position_embeddings,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * plan.layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": plan.layers,
        "tie_word_embeddings": True,
        "vocab_size": target_config.vocab_size,
        "dtype": "bfloat16",
        "use_cache": True,
        "initializer_range": 0.02,
    }
    plan.output.mkdir(parents=True, exist_ok=True)
    (plan.output / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _rope_theta(target_config: Any) -> float:
    theta = (getattr(target_config, "rope_parameters", None) or {}).get("rope_theta")
    theta = theta or getattr(target_config, "rope_theta", None)
    if theta is None:
        raise ValueError(f"{target_config.model_type}: config.json names no rope_theta; add it")
    return float(theta)


class FeatureSource:
    """Target hidden states [S, T, layers * hidden] of label rows; id l is the output of decoder layer l."""

    def __init__(self, target: Any, ids: Tensor, layer_ids: tuple[int, ...]) -> None:
        self._target, self._ids, self._layer_ids = target, ids, layer_ids
        width = len(layer_ids) * target.config.hidden_size
        self._kept: dict[int, Tensor] | None = {} if ids.numel() * width * 2 <= _FEATURE_CACHE_BYTES else None

    def rows(self, chosen: Tensor) -> Tensor:
        if self._kept is None:
            return self._compute(self._ids[chosen])
        missing = [i for i in chosen.tolist() if i not in self._kept]
        if missing:
            fresh = self._compute(self._ids[missing]).to(torch.bfloat16)
            self._kept |= dict(zip(missing, fresh.unbind(0), strict=True))
        return torch.stack([self._kept[i] for i in chosen.tolist()])

    def _compute(self, ids: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            states = self._target.get_decoder()(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        return torch.cat([states[layer + 1] for layer in self._layer_ids], dim=-1)


def train_drafter(plan: DrafterPlan, target: Any, ids: Tensor, lengths: Tensor, check: Callable[[], float]) -> None:
    """Train on label rows ids int64 [n, T], resuming from the last saved state.

    Args:
        check: measures the exported drafter (mean accepted length); called at every save.
    """
    if not (plan.output / "config.json").exists():
        write_draft_config(plan, target.config)
    config = load_draft_config(plan.output)
    torch.manual_seed(plan.seed)
    model = TrainableDrafter(config)
    optimizers = make_optimizers(model, plan.matrix_lr, plan.vector_lr)
    first = load_state(plan.output, model, optimizers)
    source = FeatureSource(target, ids, config.target_layer_ids)
    started = time.monotonic()
    for step in range(first, plan.steps):
        set_learning_rate(optimizers, (plan.matrix_lr, plan.vector_lr), step, plan.steps)
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
        chosen = torch.randint(len(ids), (plan.sequences,), generator=generator)
        anchors = choose_anchors(lengths[chosen], plan.anchors, generator)
        blocks = make_blocks(
            ids[chosen],
            lengths[chosen],
            anchors,
            block=plan.block,
            mask_token_id=config.mask_token_id,
            decay=plan.decay,
        )
        loss, right = _step(model, optimizers, target, source.rows(chosen), blocks)
        if step % 20 == 0:
            line = {
                "step": step,
                "loss": round(loss, 4),
                "right": right,
                "elapsed_s": round(time.monotonic() - started, 1),
            }
            print(json.dumps(line), flush=True)
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save_state(plan.output, step + 1, model, optimizers)
            export_drafter(model, plan.output)
            print(json.dumps({"step": step + 1, "accepted_length": round(check(), 3)}), flush=True)


def export_drafter(model: TrainableDrafter, output: Path) -> None:
    """Weights in bf16 under the published tensor names."""
    weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in model.named_parameters()}
    write_weights(weights, output / "model.safetensors")


def block_logits(model: TrainableDrafter, target: Any, features: Tensor, input_ids: Tensor, anchors: Tensor) -> Tensor:
    """Marginals of slots 1 .. b - 1 as logits [S, A, b - 1, vocab]; embedding and head are the target's, frozen."""
    embedded = target.get_input_embeddings()(input_ids)
    hidden = model(embedded, features, anchors).unflatten(1, (anchors.shape[1], -1))[:, :, 1:]
    return target.get_output_embeddings()(hidden)  # type: ignore[no-any-return]


def _step(
    model: TrainableDrafter, optimizers: list[torch.optim.Optimizer], target: Any, features: Tensor, blocks: Blocks
) -> tuple[float, list[float]]:
    """One update; returns the loss and the share of right argmax tokens at each slot."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = block_logits(model, target, features, blocks.input_ids, blocks.anchors).float()
    losses = functional.cross_entropy(logits.flatten(0, 2), blocks.labels.flatten(), reduction="none")
    loss = (losses * blocks.weights.flatten()).sum() / blocks.weights.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    counted = blocks.weights > 0
    right = ((logits.detach().argmax(-1) == blocks.labels) & counted).sum((0, 1)) / counted.sum((0, 1)).clamp(min=1)
    return float(loss.detach()), [round(share, 3) for share in right.tolist()]
