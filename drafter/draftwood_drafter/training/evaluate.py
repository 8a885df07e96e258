"""Accepted length of a drafter, exactly as the serving loop would see it at temperature 0.

Greedy speculative text is the target's greedy text, so the rounds can be replayed on it: a round accepts as many
tokens as the tree shares with the text, and one more is the bonus.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from draftwood_checkpoint.draft_config import load_draft_config
from draftwood_drafter.training.drafter import FeatureSource, block_logits
from draftwood_drafter.training.hugging_face import eos_of
from draftwood_drafter.training.model import TrainableDrafter
from draftwood_kernels.build_tree import best_first


@dataclass(frozen=True, kw_only=True)
class GreedyText:
    """ids int64 [1, T] of prompt and greedy continuation; features [1, T, F]; the prompt's length."""

    ids: Tensor
    features: Tensor
    prompt_tokens: int


def load_drafter(folder: Path) -> TrainableDrafter:
    model = TrainableDrafter(load_draft_config(folder))
    model.load_state_dict({name: value.float() for name, value in load_file(folder / "model.safetensors").items()})
    return model.eval()


@torch.inference_mode()
def greedy_texts(
    target: Any, prompts: list[list[int]], new_tokens: int, layer_ids: tuple[int, ...]
) -> list[GreedyText]:
    texts = []
    eos = eos_of(target)
    for prompt in prompts:
        row = torch.tensor([prompt])
        mask = torch.ones_like(row)
        ids = target.generate(row, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, pad_token_id=eos)
        features = FeatureSource(target, ids, layer_ids).rows(torch.tensor([0]))
        texts.append(GreedyText(ids=ids, features=features.float(), prompt_tokens=len(prompt)))
    return texts


@torch.inference_mode()
def accepted_length(model: TrainableDrafter, target: Any, texts: list[GreedyText], nodes: int) -> float:
    """Mean tokens committed a round, bonus included, with trees of `nodes` nodes; 0 nodes drafts a chain."""
    tokens = rounds = 0
    for text in texts:
        accepted = _rounds(model, target, text, nodes)
        tokens, rounds = tokens + sum(accepted), rounds + len(accepted)
    return tokens / max(1, rounds)


def _rounds(model: TrainableDrafter, target: Any, text: GreedyText, nodes: int) -> list[int]:
    """Tokens committed in each round of one text; the last round is cut where the text ends."""
    ids = text.ids[0].tolist()
    # The first token comes from prefill: it is the first root.
    roots = torch.arange(text.prompt_tokens, len(ids) - 1)[None]
    if roots.numel() == 0:
        return []
    config = model.config
    masks = torch.full((1, roots.shape[1], config.block_size - 1), config.mask_token_id)
    inputs = torch.cat([text.ids.gather(1, roots)[..., None], masks], dim=2).flatten(1)
    marginals = block_logits(model, target, text.features, inputs, roots)[0].log_softmax(-1)
    committed, root = [], text.prompt_tokens
    while root < len(ids) - 1:
        follow = ids[root + 1 :]
        m = min(_match(marginals[root - text.prompt_tokens], follow, nodes) + 1, len(follow))
        committed.append(m)
        root += m
    return committed


def _match(marginals: Tensor, follow: list[int], nodes: int) -> int:
    """Tokens of `follow` that the tree spells from its root."""
    top = marginals.topk(max(1, min(nodes, marginals.shape[-1])), dim=-1)
    if nodes == 0:
        chain = top.indices[:, 0].tolist()
        hits = [a == b for a, b in zip(chain, follow, strict=False)]
        return hits.index(False) if False in hits else len(hits)
    token_ids, parents, _ = best_first(top.values.tolist(), top.indices.tolist(), nodes)
    child = {(int(p), int(t)): i + 1 for i, (p, t) in enumerate(zip(parents, token_ids, strict=True))}
    node = depth = 0
    while depth < len(follow) and (node, follow[depth]) in child:
        node, depth = child[node, follow[depth]], depth + 1
    return depth
