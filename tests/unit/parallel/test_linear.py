"""How a model is spread over ranks, and that every rank reads its own part and no more."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.quantization import Quantization
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_verifier.model.loading import load_blueprint, load_model
from draftwood_verifier.model.weights import WeightReader
from draftwood_verifier.parallel.experts import held_experts
from draftwood_verifier.parallel.linear import VOCABULARY_STEP, Share
from tests.unit.parallel.ranks import on_ranks

T = TypeVar("T")
Target = Callable[[str], Path]


def on_shares(ranks: int, act: Callable[[Share], T]) -> list[T]:
    return on_ranks(ranks, lambda group: act(Share(group)))


def indices(part: slice) -> list[int]:
    return list(range(part.start, part.stop))


@pytest.mark.parametrize(("size", "ranks", "step"), [(97, 4, 4), (8, 8, 1), (13, 4, 4), (151_936, 7, 4), (640, 3, 128)])
def test_pieces_make_up_the_whole(size: int, ranks: int, step: int) -> None:
    pieces = on_shares(ranks, lambda share: share.part("x", size, step=step))
    assert [index for piece in pieces for index in indices(piece)] == list(range(size))
    assert all(piece.start % step == 0 for piece in pieces)
    sizes = [piece.stop - piece.start for piece in pieces]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) < 2 * step


def test_alone_everything_is_ours() -> None:
    share = Share(None)
    assert (share.heads(6), share.kv_heads(1), share.vocabulary(97)) == (slice(0, 6), slice(0, 1), slice(0, 97))
    assert held_experts(share, 5) == range(5)


def test_too_few_kv_heads_are_held_several_times() -> None:
    """6 query heads on 2 KV heads: three ranks a KV head, each beside the query heads that read it."""
    held = on_shares(6, lambda share: (indices(share.heads(6)), indices(share.kv_heads(2))))
    assert held == [([0], [0]), ([1], [0]), ([2], [0]), ([3], [1]), ([4], [1]), ([5], [1])]


def test_every_expert_is_held_once() -> None:
    held = on_shares(3, lambda share: held_experts(share, 8))
    assert [expert for experts in held for expert in experts] == list(range(8))


@pytest.mark.parametrize(
    ("variant", "ranks", "message"),
    [
        ("qwen3-tied", 4, "num_attention_heads: 6 can't be split evenly over 4 ranks"),
        ("qwen3-tied", 3, "num_key_value_heads: 2 is neither a multiple nor a divisor of 3 ranks"),
        ("deepseek", 5, "num_attention_heads: 6"),
    ],
)
def test_a_split_that_does_not_work_names_the_field(variant: str, ranks: int, message: str, target: Target) -> None:
    with pytest.raises(UnsupportedConfig, match=message):
        on_shares(ranks, lambda share: load_model(target(variant), share))


def test_fewer_tokens_or_experts_than_ranks() -> None:
    with pytest.raises(UnsupportedConfig, match="vocab_size: 5 is too small for 4 ranks"):
        on_shares(4, lambda share: share.vocabulary(VOCABULARY_STEP + 1))
    with pytest.raises(UnsupportedConfig, match="num_experts: 3 is too small for 4 ranks"):
        on_shares(4, lambda share: held_experts(share, 3))


class CountingCheckpoint(Checkpoint):
    """Counts the numbers that were read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.numbers = 0

    def read(
        self,
        name: str,
        shape: tuple[int, ...] | None = None,
        *,
        rows: slice | None = None,
        columns: slice | None = None,
    ) -> torch.Tensor:
        tensor = super().read(name, shape, rows=rows, columns=columns)
        self.numbers += tensor.numel()
        return tensor


@pytest.mark.parametrize("variant", ["qwen3-untied", "llama-bias", "qwen3-moe", "deepseek"])
def test_a_rank_reads_its_share(variant: str, target: Target) -> None:
    folder = target(variant)
    blueprint = load_blueprint(folder)

    def numbers(share: Share) -> int:
        checkpoint = CountingCheckpoint(folder)
        reader = WeightReader(checkpoint, Quantization(), share)
        blueprint.load_layer(reader.under("model.layers.1."), 1)
        return checkpoint.numbers

    whole = {name: Checkpoint(folder).shape(name) for name in Checkpoint(folder).names() if ".layers.1." in name}
    # Norms, routers, what leads to latents, and biases of whole outputs are on every rank.
    everywhere = ("norm.weight", "mlp.gate.weight", "score_correction_bias", "_a_proj.weight", "with_mqa.weight")
    counts = {name: torch.Size(shape).numel() for name, shape in whole.items()}
    common = sum(count for name, count in counts.items() if name.endswith((*everywhere, "o_proj.bias")))
    assert numbers(Share(None)) == sum(counts.values())
    assert [2 * (read - common) for read in on_shares(2, numbers)] == [sum(counts.values()) - common] * 2
