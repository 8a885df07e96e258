"""How a model is spread over ranks, and that every rank reads its own part and no more."""

from pathlib import Path

import pytest
import torch

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.model_config import load_model_config
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_verifier.model.weights import load_layer
from draftwood_verifier.parallel.linear import Share, share_of, spread
from tests.unit.model.targets import write_target
from tests.unit.parallel.ranks import on_ranks


def indices(part: slice) -> list[int]:
    return list(range(part.start, part.stop))


@pytest.mark.parametrize(("size", "ranks", "step"), [(97, 4, 4), (8, 8, 1), (13, 4, 4), (151_936, 7, 4), (5, 1, 4)])
def test_pieces_make_up_the_whole(size: int, ranks: int, step: int) -> None:
    pieces = [spread("x", size, rank, ranks, step=step) for rank in range(ranks)]
    assert [index for piece in pieces for index in indices(piece)] == list(range(size))
    assert all(piece.start % step == 0 for piece in pieces)
    sizes = [piece.stop - piece.start for piece in pieces]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) < 2 * step


def shares(folder: Path, ranks: int) -> list[Share]:
    config = load_model_config(folder)
    return on_ranks(ranks, lambda group: share_of(config, group))


def test_too_few_kv_heads_are_held_several_times(tmp_path: Path) -> None:
    """6 query heads on 2 KV heads: three ranks a KV head, each beside the query heads that read it."""
    held = shares(write_target("qwen3-tied", tmp_path), 6)
    assert [indices(share.heads) for share in held] == [[0], [1], [2], [3], [4], [5]]
    assert [indices(share.kv_heads) for share in held] == [[0], [0], [0], [1], [1], [1]]


@pytest.mark.parametrize(
    ("ranks", "message"), [(4, "num_attention_heads: 6 can't be split evenly over 4 ranks"), (3, "num_key_value_heads")]
)
def test_a_split_that_does_not_work_names_the_field(tmp_path: Path, ranks: int, message: str) -> None:
    with pytest.raises(UnsupportedConfig, match=message):
        shares(write_target("qwen3-tied", tmp_path), ranks)


def test_a_vocabulary_smaller_than_the_group() -> None:
    with pytest.raises(UnsupportedConfig, match="vocab_size: 5 is too small for 4 ranks"):
        spread("vocab_size", 5, 0, 4, step=4)


class CountingCheckpoint(Checkpoint):
    """Counts the numbers that were read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read = 0

    def load(
        self,
        name: str,
        shape: tuple[int, ...] | None = None,
        *,
        rows: slice | None = None,
        columns: slice | None = None,
    ) -> torch.Tensor:
        tensor = super().load(name, shape, rows=rows, columns=columns)
        self.read += tensor.numel()
        return tensor


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("variant", ["qwen3-untied", "llama-bias"])
def test_a_rank_reads_its_share(variant: str, ranks: int, tmp_path: Path) -> None:
    folder = write_target(variant, tmp_path)
    config = load_model_config(folder)
    whole, held = CountingCheckpoint(folder), CountingCheckpoint(folder)
    load_layer(whole, config, share_of(config, None), 0)
    load_layer(held, config, shares(folder, ranks)[-1], 0)
    hidden, head = config.hidden_size, config.head_dim
    # Norms and the output's bias are whole everywhere.
    small = 2 * hidden + (2 * head if config.qk_norm else 0) + (hidden if config.attention_bias else 0)
    assert (held.read - small) * ranks == whole.read - small
