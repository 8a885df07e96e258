"""Context rows in Triton's interpreter against the reference, and that one against the drafter's model and cache."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from draftwood_checkpoint.draft_config import DraftConfig
from draftwood_checkpoint.model_config import RopeConfig
from draftwood_drafter.model import DraftModel, DraftWeights
from draftwood_kernels.append_context import ContextRows, append_context, kernel
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rotary import RotaryTable

EPS, PAGE_SIZE, CONTEXT = 1e-6, 4, 128
# Both compute in float32 and round once; where two products of a rotation cancel, the error is that of the products.
TOLERANCE = {torch.float32: (1e-5, 5e-6), torch.float16: (2e-3, 5e-6), torch.bfloat16: (1.6e-2, 5e-6)}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Rope:
    theta = 1000.0
    kind = "default"
    parameters: dict[str, float] = {}  # noqa: RUF012


def phase_table(head_dim: int) -> torch.Tensor:
    return RotaryTable(Rope(), head_dim, CONTEXT).phase_table


def context_rows(room: list[int], lengths: list[int], starts: list[int], seed: int = 0) -> tuple[ContextRows, int]:
    """Rows on scattered pages, and how many slots there are; behind a table's end, a page that does not exist."""
    rng = np.random.default_rng(seed)
    counts = [
        -(-(start + min(length, rows)) // PAGE_SIZE) for start, length, rows in zip(starts, lengths, room, strict=True)
    ]
    order = rng.permutation(sum(counts) + 2).astype(np.int32)
    tables = np.full((len(room), max(counts, default=0) + 1), 2**30, np.int32)
    for row, pages in zip(tables, np.split(order, np.cumsum(counts)), strict=False):
        row[: len(pages)] = pages
    if len(counts):
        for row, count in zip(tables, counts, strict=True):
            row[count:] = 2**30

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    rows = ContextRows(
        row_offsets=ints([0, *np.cumsum(room, dtype=int).tolist()]),
        lengths=ints(lengths),
        starts=ints(starts),
        block_tables=torch.from_numpy(tables),
        page_size=PAGE_SIZE,
    )
    return rows, len(order) * PAGE_SIZE


def check(projected: torch.Tensor, rows: ContextRows, slots: int) -> torch.Tensor:
    """Slots that nobody names, and features beyond a length, are poisoned: they have to stay as they are, unread."""
    _, layers, _, _, head_dim = projected.shape
    k_norm, table = torch.randn(layers, 1, head_dim).to(projected.dtype), phase_table(head_dim)
    cache = torch.full((slots, *projected.shape[1:]), torch.nan, dtype=projected.dtype)
    kernel.append_context(projected, k_norm, EPS, table, rows, cache)
    expected = torch.full(cache.shape, torch.nan)
    append_context(projected.float(), k_norm.float(), EPS, table, rows, expected)
    rtol, atol = TOLERANCE[projected.dtype]
    torch.testing.assert_close(cache, expected.to(cache.dtype), rtol=rtol, atol=atol, equal_nan=True)
    return cache


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 64), (2, 80), (8, 128), (11, 64), (2, 256)])
def test_shapes(kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    rows, slots = context_rows([5, 3], [5, 2], [7, 0])
    check(torch.randn(8, 3, 2, kv_heads, head_dim).to(dtype), rows, slots)


@pytest.mark.parametrize("seed", range(5))
def test_ragged_sessions_with_lengths_below_at_and_above_their_room(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sessions = int(rng.integers(1, 7))
    room = rng.integers(0, 9, sessions).tolist()
    lengths, starts = rng.integers(0, 11, sessions).tolist(), rng.integers(0, 60, sessions).tolist()
    rows, slots = context_rows(room, lengths, starts, seed)
    projected = torch.full((sum(room) + 3, 2, 2, 2, 64), torch.nan)  # rows of nobody behind the last offset
    first, written = 0, 0
    for count, length in zip(room, lengths, strict=True):
        used = min(count, length)
        projected[first : first + used] = torch.randn(used, 2, 2, 2, 64)
        first, written = first + count, written + used
    cache = check(projected, rows, slots)
    assert int((~cache.isnan().flatten(1).any(dim=1)).sum()) == written


def test_nothing_to_append() -> None:
    rows, _ = context_rows([2], [0], [5])
    cache = torch.zeros(8, 1, 2, 1, 64)
    projected = torch.full((2, 1, 2, 1, 64), torch.nan)
    kernel.append_context(projected, torch.ones(1, 1, 64), EPS, phase_table(64), rows, cache)
    kernel.append_context(projected[:0], torch.ones(1, 1, 64), EPS, phase_table(64), rows, cache)
    assert not cache.any()


def test_rows_are_those_of_the_draft_model() -> None:
    layers, kv_heads, head_dim, hidden = 3, 2, 16, 24
    config = DraftConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=8,
        vocab_size=11,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        block_size=4,
        mask_token_id=0,
        target_layer_ids=(0, 1),
        model_type="qwen3",
        rope=RopeConfig(theta=Rope.theta, kind=Rope.kind, parameters={}),
        tie_word_embeddings=True,
        attention_bias=False,
        eos_token_ids=(),
        num_target_layers=4,
        layer_types=("full_attention",) * layers,
        sliding_window=None,
        is_causal=None,
    )
    rotary = RotaryTable(Rope(), head_dim, CONTEXT)
    weights = DraftWeights(
        embedding=torch.randn(11, hidden),
        head=PackedLinear(torch.randn(11, hidden)),
        fc=PackedLinear(torch.randn(hidden, 2 * hidden)),
        hidden_norm=torch.randn(hidden),
        context_kv=PackedLinear(torch.randn(layers * 2 * kv_heads * head_dim, hidden)),
        context_k_norm=torch.randn(layers, 1, head_dim),
        layers=[],
        norm=torch.randn(hidden),
    )
    features, model = torch.randn(5, 2 * hidden), DraftModel(config, weights, rotary)
    expected = model.context_rows(features, torch.arange(9, 14))
    rows, slots = context_rows([5], [5], [9])
    cache = torch.zeros(slots, layers, 2, kv_heads, head_dim)
    fused = torch.nn.functional.rms_norm(weights.fc(features), (hidden,), weights.hidden_norm, EPS)
    projected = weights.context_kv(fused).view(-1, layers, 2, kv_heads, head_dim)
    append_context(projected, weights.context_k_norm, EPS, rotary.phase_table, rows, cache)
    table = rows.block_tables[0].long()
    places = [int(table[position // PAGE_SIZE]) * PAGE_SIZE + position % PAGE_SIZE for position in range(9, 14)]
    torch.testing.assert_close(cache[places], expected, rtol=1e-5, atol=1e-5)


def test_unlike_shapes_are_named() -> None:
    rows, _ = context_rows([2], [2], [0])
    with pytest.raises(ValueError, match=r"^projected: .* does not fit cache"):
        kernel.append_context(
            torch.zeros(2, 1, 2, 1, 64), torch.ones(1, 1, 64), EPS, phase_table(64), rows, torch.zeros(8, 1, 2, 2, 64)
        )
    with pytest.raises(ValueError, match=r"^cache: has to be dense"):
        kernel.append_context(
            torch.zeros(2, 1, 2, 1, 64),
            torch.ones(1, 1, 64),
            EPS,
            phase_table(64),
            rows,
            torch.zeros(16, 1, 2, 1, 64)[::2],
        )
