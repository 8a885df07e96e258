"""The draft model and its greedy chain loop against the published `dflash` package, fp32 on the CPU."""

import time
from pathlib import Path
from typing import Any

import dflash.model
import numpy as np
import pytest
import torch
from dflash.model import (
    DFlashDraftModel,
    _draft_value,
    _raw_input_embeddings,
    dflash_generate,
    extract_context_feature,
)
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.host_backend import HostBackend
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.session import DraftParams, FeatureRows, Shape
from draftwood_wire.tree import TokenTree
from tests.unit.drafter.pair import Pair, make_pair

MODELS = Path(__file__).parents[3] / "models"

VARIANTS: dict[str, dict[str, Any]] = {
    "full attention": {},
    "untied": {"tie": False},
    "block of 4": {"block_size": 4},
    "nested block size": {
        "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2], "block_size": 6, "num_target_layers": 4}
    },
    "sliding and full": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 12,
        "use_sliding_window": True,
    },
    "all sliding, not causal": {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 12,
        "use_sliding_window": True,
        "is_causal": False,
    },
    "short window": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5, "use_sliding_window": True},
    "all causal": {"is_causal": True},
    "biases": {"attention_bias": True},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn and sliding": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 12,
        "use_sliding_window": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "scaled": {"input_embedding_scale": 3.0, "output_multiplier": 0.25, "final_logit_softcapping": 0.5},
    "scaled, nested": {
        "dflash_config": {
            "mask_token_id": 96,
            "target_layer_ids": [0, 1, 2],
            "input_embedding_scale": 0.2,
            "output_multiplier": 2.0,
            "final_logit_softcapping": 4.0,
        },
        "output_multiplier": 9.0,
    },
}


def load_pair(pair: Pair) -> tuple[PreTrainedModel, DFlashDraftModel]:
    target = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    return target, DFlashDraftModel.from_pretrained(pair.draft, dtype=torch.float32).eval()


def published_hidden(
    target: PreTrainedModel, draft: DFlashDraftModel, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [L - 1, F] of all tokens but the last, and the draft's hidden states [B - 1, E] from there."""
    length = tokens.shape[1]
    states = target(tokens[:, :-1], output_hidden_states=True).hidden_states
    features = extract_context_feature(states, draft.target_layer_ids)
    block = torch.full((1, draft.block_size), draft.mask_token_id)
    block[0, 0] = tokens[0, -1]
    hidden = draft(
        target_hidden=features,
        noise_embedding=_raw_input_embeddings(
            target, block, float(_draft_value(draft.config, "input_embedding_scale", 1.0))
        ),
        position_ids=torch.arange(length - 1 + draft.block_size)[None],
    )
    return features[0], hidden[0, 1:]


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_hidden_states_and_logits_equal_the_published_model(tmp_path: Path, variant: str) -> None:
    pair = make_pair(tmp_path, seed=3, **VARIANTS[variant])
    target, draft = load_pair(pair)
    engine = DraftEngine(load_draft_model(pair.target, pair.draft), context_pages=64, page_size=4)
    rng = np.random.default_rng(5)
    for session_id, length in enumerate([2, 9, 30]):
        tokens = rng.integers(0, 96, length).tolist()
        features, hidden = published_hidden(target, draft, torch.tensor([tokens]))
        params = DraftParams(shape=Shape.CHAIN, node_limit=8)
        engine.open(session_id, tokens, params, decoding=True)
        engine.append([FeatureRows(session_id=session_id, start=0, features=features.numpy())])
        session = engine.session(session_id)
        assert session is not None
        ours = HostBackend(engine.model, engine.cache).hidden_states([session])[0]
        torch.testing.assert_close(ours, hidden, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            engine.model.logits(ours), draft.compute_logits(hidden, target.lm_head), atol=1e-4, rtol=1e-4
        )


def greedy_chain_loop(
    engine: DraftEngine, target: PreTrainedModel, prompt: list[int], max_new_tokens: int
) -> tuple[list[int], list[int]]:
    """Prompt plus output, and tokens committed a round, of our drafts verified by an in-process target.

    The loop stops and cuts as the published one does: the block never reaches beyond the limit.
    """
    cache = DynamicCache(config=target.config)
    tokens = list(prompt)
    first, features = _forward(engine, target, cache, tokens)
    engine.open(0, tokens, DraftParams(shape=Shape.CHAIN, node_limit=256), decoding=False)
    engine.append([FeatureRows(session_id=0, start=0, features=features)])
    engine.commit(0, len(tokens), [first[-1]])
    tokens.append(first[-1])
    accepted_lengths = []
    limit = len(prompt) + max_new_tokens
    while len(tokens) < limit:
        session = engine.session(0)
        assert session is not None
        drafts, faults = engine.draft(engine.ready())
        assert not faults
        chain = _ids(drafts[0].tree)[: limit - len(tokens)]
        drawn, features = _forward(engine, target, cache, [tokens[-1], *chain])
        matches = [a == b for a, b in zip(chain, drawn, strict=False)]
        produced = min((matches.index(False) if False in matches else len(matches)) + 1, limit - len(tokens))
        rejected = cache.get_seq_length() - (len(tokens) - 1 + produced)
        if rejected:
            cache.crop(-rejected)
        engine.commit(0, len(tokens), drawn[:produced])
        engine.append([FeatureRows(session_id=0, start=len(tokens) - 1, features=features[:produced])])
        tokens += drawn[:produced]
        accepted_lengths.append(produced)
    engine.close(0)
    return tokens, accepted_lengths


def _ids(tree: TokenTree) -> list[int]:
    return [int(token) for token in tree.token_ids]


def _forward(
    engine: DraftEngine, target: PreTrainedModel, cache: DynamicCache, tokens: list[int]
) -> tuple[list[int], np.ndarray]:
    """Argmax after every row, and the rows' features."""
    positions = torch.arange(cache.get_seq_length(), cache.get_seq_length() + len(tokens))[None]
    output = target(torch.tensor([tokens]), position_ids=positions, past_key_values=cache, output_hidden_states=True)
    features = extract_context_feature(output.hidden_states, list(engine.model.config.target_layer_ids))
    return output.logits[0].argmax(dim=-1).tolist(), features[0].numpy()


def assert_loops_agree(pair: Pair, prompts: list[list[int]], new_tokens: int) -> list[int]:
    """Compare both loops on every prompt; returns all accepted lengths."""
    target, draft = load_pair(pair)
    engine = DraftEngine(load_draft_model(pair.target, pair.draft), context_pages=256, page_size=16)
    everything = []
    for prompt in prompts:
        published = dflash_generate(draft, target, torch.tensor([prompt]), new_tokens, None, return_stats=True)
        tokens, accepted_lengths = greedy_chain_loop(engine, target, prompt, new_tokens)
        assert tokens == published.output_ids[0].tolist()
        assert accepted_lengths == published.acceptance_lengths
        everything += accepted_lengths
    return everything


@pytest.fixture(autouse=True)
def _clock_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dflash.model, "_cuda_time", time.perf_counter)


@pytest.mark.parametrize("block_size", [2, 4, 8])
@torch.inference_mode()
def test_greedy_chain_loop_equals_the_published_one(tmp_path: Path, block_size: int) -> None:
    pair = make_pair(tmp_path, seed=1, tie=False, two_words=True, block_size=block_size)
    rng = np.random.default_rng(17)
    prompts = [rng.integers(0, 96, length).tolist() for length in (1, 7, 23)]
    accepted_lengths = assert_loops_agree(pair, prompts, 64)
    assert {1, 2} <= set(accepted_lengths)
    assert block_size == 2 or max(accepted_lengths) > 2


@torch.inference_mode()
def test_greedy_chain_loop_on_the_embedded_pair() -> None:
    pair = Pair(target=MODELS / "target", draft=MODELS / "drafter")
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    texts = [
        "import os\n\n\nclass Reader:\n    def __init__(self, path):\n",
        "def main(arguments=None):\n    parser = ",
    ]
    accepted_lengths = assert_loops_agree(pair, [tokenizer.encode(text).ids for text in texts], 96)
    assert max(accepted_lengths) > 2
