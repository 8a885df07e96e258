"""The target's own text: what a drafter has to guess is what the target would say, not what people wrote."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

FILE = "labels.safetensors"


@dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """`sequences` texts of `prompt_tokens + new_tokens`; `sampled_share` of them at `temperature`, the rest greedy."""

    output: Path
    sequences: int
    prompt_tokens: int = 32
    new_tokens: int = 224
    sampled_share: float = 0.3
    temperature: float = 0.8
    batch: int = 128
    seed: int = 1


def load_target(folder: Path) -> Any:
    """Any Hugging Face causal language model folder, in float32, frozen."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.requires_grad_(False).eval()


def eos_of(target: Any) -> int:
    """The end-of-text id; of several, the first one."""
    eos = target.generation_config.eos_token_id
    if eos is None:
        raise ValueError(f"{target.name_or_path}: generation_config.json names no eos_token_id")
    return int(eos[0] if isinstance(eos, list) else eos)


def generate_labels(plan: LabelPlan, target: Any, tokens: NDArray[np.int32], eos_token_id: int) -> None:
    """Continue random windows of `tokens` int32 [n] and write ids [sequences, length] with their valid lengths."""
    generator = np.random.default_rng(plan.seed)
    torch.manual_seed(plan.seed)
    rows = []
    for first in range(0, plan.sequences, plan.batch):
        starts = generator.integers(0, len(tokens) - plan.prompt_tokens, min(plan.batch, plan.sequences - first))
        prompts = np.stack([tokens[s : s + plan.prompt_tokens] for s in starts]).astype(np.int64)
        sampled = first + plan.batch <= plan.sequences * plan.sampled_share
        rows.append(_continue(target, torch.from_numpy(prompts), plan, eos_token_id, sampled=sampled))
        print(f"labels: {first + len(prompts)} of {plan.sequences}", flush=True)
    ids = torch.cat(rows)
    plan.output.mkdir(parents=True, exist_ok=True)
    lengths = valid_lengths(ids, plan.prompt_tokens, eos_token_id)
    save_file({"token_ids": ids.to(torch.int32), "lengths": lengths}, plan.output / FILE)


def load_labels(folder: Path) -> tuple[Tensor, Tensor]:
    """(token_ids int64 [sequences, length], lengths int64 [sequences])."""
    tensors = load_file(folder / FILE)
    return tensors["token_ids"].long(), tensors["lengths"].long()


def valid_lengths(ids: Tensor, prompt_tokens: int, eos_token_id: int) -> Tensor:
    """Tokens of each row up to and including the first generated end-of-text token: int64 [sequences]."""
    ended = (ids[:, prompt_tokens:] == eos_token_id).int()
    first = torch.where(ended.any(1), ended.argmax(1) + 1, ended.shape[1])
    return (first + prompt_tokens).long()


@torch.inference_mode()
def _continue(target: Any, prompts: Tensor, plan: LabelPlan, eos: int, *, sampled: bool) -> Tensor:
    how = {"do_sample": True, "temperature": plan.temperature, "top_k": 0} if sampled else {"do_sample": False}
    ids: Tensor = target.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=plan.new_tokens,
        eos_token_id=eos,
        pad_token_id=eos,
        # The default cache is copied whole for every token.
        cache_implementation="static",
        **how,
    )
    missing = prompts.shape[1] + plan.new_tokens - ids.shape[1]
    return torch.nn.functional.pad(ids, (0, missing), value=eos)
