"""An examination in words, and as JSON."""

import itertools
import json
from dataclasses import asdict
from typing import Any

from draftwood.doctor.draft import Draft
from draftwood.doctor.examination import USABLE, Examination
from draftwood.doctor.memory import Memory
from draftwood.doctor.size import size
from draftwood.doctor.target import Target, largest_step_rows
from draftwood_verifier.config import VerifierConfig

_SOURCES = {"given": "as given", "cards": "the cards found", "host": "no card found: the host's memory, shared out"}


def as_json(found: Examination) -> str:
    """Sizes in bytes."""
    return json.dumps(
        {
            "servable": found.servable,
            "problems": found.problems,
            "notes": found.notes,
            "memory": {"gpus": found.memory.gpus, **asdict(found.memory)},
            "split": _split(found),
            "kv_tokens": found.kv_tokens,
            "target": _target_fields(found.target),
            "draft": _draft_fields(found.draft),
        },
        indent=2,
    )


def as_text(found: Examination) -> str:
    lines = [*_target_lines(found.target), *_draft_lines(found.draft), *_memory_lines(found)]
    lines += [f"note      {note}" for note in found.notes]
    lines += [f"problem   {problem}" for problem in found.problems]
    lines.append("servable" if found.servable else "not servable")
    return "\n".join(lines)


def _split(found: Examination) -> dict[str, int]:
    return {
        "verifier_ranks": len(found.target.ranks) if found.target else 0,
        "drafter_gpus": int(found.drafter_apart),
        "idle_gpus": found.idle_gpus,
    }


def _target_fields(target: Target | None) -> dict[str, Any] | None:
    if target is None:
        return None
    c = target.config
    return {
        "model_type": c.model_type,
        "layers": c.num_hidden_layers,
        "hidden_size": c.hidden_size,
        "vocab_size": c.vocab_size,
        "context_limit": c.max_position_embeddings,
        "quantization": target.quantization,
        "stored_bytes": target.stored_bytes,
        "ranks": [asdict(rank) for rank in target.ranks],
    }


def _draft_fields(draft: Draft | None) -> dict[str, Any] | None:
    if draft is None:
        return None
    c = draft.config
    return {
        "layers": c.num_hidden_layers,
        "block_size": c.block_size,
        "target_layer_ids": c.target_layer_ids,
        "weights_bytes": draft.weights_bytes,
        "borrowed_bytes": draft.borrowed_bytes,
        "context_a_token_bytes": draft.context_a_token_bytes,
        "context_bytes": draft.context_bytes,
        "wire": asdict(draft.wire),
        "head_on_verifier": {
            "saved_memory_bytes": draft.head_bytes,
            "added_round_bytes": draft.wire.hidden_rows_bytes - draft.wire.proposal_bytes,
        },
    }


def _target_lines(target: Target | None) -> list[str]:
    if target is None:
        return []
    c, ranks = target.config, target.ranks
    weights = [rank.weights_bytes for rank in ranks]
    spread = size(max(weights)) if len(set(weights)) == 1 else f"{size(min(weights))} to {size(max(weights))}"
    return [
        (
            f"target    {c.model_type}, {c.num_hidden_layers} layers, quantisation: {target.quantization}, "
            f"{size(target.stored_bytes)} in files"
        ),
        (
            f"          a rank of {len(ranks)}: weights {spread}, KV {size(ranks[0].kv_a_token_bytes)} a token, "
            f"step buffers {size(max(rank.step_bytes for rank in ranks))} ({largest_step_rows()} rows)"
        ),
    ]


def _draft_lines(draft: Draft | None) -> list[str]:
    if draft is None:
        return []
    c, wire = draft.config, draft.wire
    return [
        (
            f"draft     {c.num_hidden_layers} layers, block of {c.block_size}, features of layers "
            f"{', '.join(map(str, c.target_layer_ids))}"
        ),
        (
            f"          weights {size(draft.weights_bytes)}, of which the target's embedding and head "
            f"{size(draft.borrowed_bytes)}; context {size(draft.context_a_token_bytes)} a token, "
            f"{size(draft.context_bytes)} in all"
        ),
        (
            f"wire      verifier to drafter: {size(wire.features_a_token_bytes)} of features a token; a round's commit "
            f"{size(wire.commit_bytes)}, {size(wire.commit_a_further_token_bytes)} for every accepted token"
        ),
        f"          drafter to verifier: {size(wire.proposal_bytes)} a round of {VerifierConfig.node_limit} nodes",
        (
            f"          with `--head verifier`: {size(wire.hidden_rows_bytes)} a round in its "
            f"place, {size(draft.head_bytes)} less memory for the drafter"
        ),
    ]


def _memory_lines(found: Examination) -> list[str]:
    memory = found.memory
    lines = [f"memory    {_sizes(memory)} ({_SOURCES[memory.source]}), {USABLE:.0%} of it usable"]
    if found.target is None:
        return lines
    pages = found.kv_tokens // VerifierConfig.page_size
    return [
        *lines,
        f"split     {_split_words(found, len(found.target.ranks))}",
        f"KV        {found.kv_tokens} tokens fit (--kv-pages {pages})",
    ]


def _sizes(memory: Memory) -> str:
    """In the order of the GPUs, as ranks take them so."""
    return ", ".join(f"{len(list(run))} x {size(each)}" for each, run in itertools.groupby(memory.sizes_bytes))


def _split_words(found: Examination, ranks: int) -> str:
    """With the options of `draftwood up` that make it so."""
    on_cpu = found.memory.on_cpu
    parts = [f"verifier on {ranks} ({'' if on_cpu else '--device cuda '}--tensor-parallel {ranks})"]
    if found.drafter_apart:
        parts.append("the drafter on one more")
    elif found.draft:
        parts.append("the drafter beside it" if on_cpu else "the drafter beside it (--drafter-device cuda)")
    if found.idle_gpus:
        parts.append(f"{found.idle_gpus} idle")
    return ", ".join(parts)
