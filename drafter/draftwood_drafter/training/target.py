"""Train a small Qwen3-shaped target from scratch on packed documents."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from draftwood_drafter.training.checkpointing import load_state, save_state, write_weights
from draftwood_drafter.training.corpus import Document
from draftwood_drafter.training.schedule import make_optimizers, set_learning_rate
from draftwood_drafter.training.tokenizer import EOS


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """Sizes are those of the embedded pair; one step sees `sequences * length` tokens."""

    output: Path
    steps: int
    hidden_size: int = 256
    layers: int = 10
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 768
    length: int = 1024
    context_limit: int = 1024
    sequences: int = 4
    matrix_lr: float = 0.02
    vector_lr: float = 3e-3
    save_every: int = 100
    seed: int = 0


def pack(documents: list[Document], tokenizer: Tokenizer) -> NDArray[np.int32]:
    """All documents' ids in one row, an end-of-text token before each: int32 [tokens]."""
    eos = tokenizer.token_to_id(EOS)
    pieces = [[eos, *e.ids] for e in tokenizer.encode_batch([d.text for d in documents])]
    return np.concatenate([np.array(piece, dtype=np.int32) for piece in pieces])


def build_target(plan: TargetPlan, tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    torch.manual_seed(plan.seed)
    eos = tokenizer.token_to_id(EOS)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=plan.hidden_size,
        intermediate_size=plan.intermediate_size,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        num_key_value_heads=plan.kv_heads,
        head_dim=plan.head_dim,
        max_position_embeddings=plan.context_limit,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def train_target(plan: TargetPlan, tokenizer: Tokenizer, train: list[Document], held_out: list[Document]) -> None:
    """Train, resuming from the last saved state; logs a line of JSON every 10 steps."""
    model = build_target(plan, tokenizer)
    optimizers = make_optimizers(model, plan.matrix_lr, plan.vector_lr)
    first = load_state(plan.output, model, optimizers)
    tokens, check = pack(train, tokenizer), pack(held_out, tokenizer)
    print(json.dumps({"train_tokens": len(tokens), "held_out_tokens": len(check), "first_step": first}), flush=True)
    started = time.monotonic()
    for step in range(first, plan.steps):
        set_learning_rate(optimizers, (plan.matrix_lr, plan.vector_lr), step, plan.steps)
        loss = _step(model, optimizers, _batch(tokens, plan, step))
        if step % 10 == 0:
            elapsed = round(time.monotonic() - started, 1)
            print(json.dumps({"step": step, "loss": round(loss, 4), "elapsed_s": elapsed}), flush=True)
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save_state(plan.output, step + 1, model, optimizers)
            export_target(model, tokenizer, plan.output)
            measured = round(held_out_loss(model, check, plan), 4)
            print(json.dumps({"step": step + 1, "held_out_loss": measured}), flush=True)


def held_out_loss(model: Qwen3ForCausalLM, tokens: NDArray[np.int32], plan: TargetPlan) -> float:
    """Mean cross-entropy, in nats a token, over up to 32 held-out sequences."""
    count = min(32, len(tokens) // plan.length)
    with torch.no_grad():
        losses = [
            _loss(model, torch.from_numpy(tokens[i * plan.length : (i + 1) * plan.length].astype(np.int64))[None])
            for i in range(count)
        ]
    return float(torch.stack(losses).mean())


def export_target(model: Qwen3ForCausalLM, tokenizer: Tokenizer, output: Path) -> None:
    """Write config and bf16 weights in Hugging Face layout; a tied head is left out, as published checkpoints do."""
    model.config.dtype = torch.bfloat16
    model.config.architectures = ["Qwen3ForCausalLM"]
    model.config.save_pretrained(output)
    generation = {"eos_token_id": tokenizer.token_to_id(EOS), "do_sample": False}
    (output / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    weights = {n: p.detach().to(torch.bfloat16).contiguous() for n, p in model.named_parameters()}
    write_weights(weights, output / "model.safetensors")


def _batch(tokens: NDArray[np.int32], plan: TargetPlan, step: int) -> Tensor:
    generator = np.random.default_rng([plan.seed, step])
    starts = generator.integers(0, len(tokens) - plan.length, plan.sequences)
    rows = np.stack([tokens[s : s + plan.length] for s in starts])
    return torch.from_numpy(rows.astype(np.int64))


def _loss(model: Qwen3ForCausalLM, ids: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def _step(model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], ids: Tensor) -> float:
    loss = _loss(model, ids)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())
