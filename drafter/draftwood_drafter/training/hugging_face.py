"""Targets as Hugging Face folders."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


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
