"""A GPU's steps, run on the CPU, draft what the CPU's backend drafts: by torch, and by kernels in the interpreter."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from draftwood_drafter import context_step, device_backend, draft_step
from draftwood_drafter import model as model_module
from draftwood_drafter.__main__ import first_wishes, make_engine
from draftwood_drafter.backend import ContextPiece, Draft
from draftwood_drafter.config import DrafterConfig
from draftwood_drafter.context_cache import ContextCache, PageTable
from draftwood_drafter.context_step import ContextSize, ContextStep
from draftwood_drafter.device_backend import DeviceBackend, turns
from draftwood_drafter.engine import DraftEngine, choose_backend
from draftwood_drafter.host_backend import HostBackend
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import DraftParams, FeatureRows, Shape
from draftwood_kernels.append_context import kernel as append_context_kernel
from draftwood_kernels.block_attention import kernel as block_attention_kernel
from draftwood_kernels.build_tree import kernel as build_tree_kernel
from draftwood_kernels.packed_buffer import Field, PackedBuffer
from draftwood_kernels.perturb import kernel as perturb_kernel
from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.rms_norm import kernel as rms_norm_kernel
from draftwood_kernels.silu_and_mul import kernel as silu_and_mul_kernel
from draftwood_kernels.store_kv import kernel as store_kv_kernel
from draftwood_wire.errors import Incompatible
from tests.unit.drafter.pair import make_pair

TREE = DraftParams(shape=Shape.TREE, node_limit=20)
CHAIN = DraftParams(shape=Shape.CHAIN, node_limit=256)
SAMPLED = DraftParams(shape=Shape.TREE, node_limit=9, temperature=0.8, seed=2**64 - 3)
UNSEEDED = DraftParams(shape=Shape.TREE, node_limit=9, temperature=1.5)
SAMPLED_CHAIN = DraftParams(shape=Shape.CHAIN, node_limit=3, temperature=0.6, seed=0)

VARIANTS: dict[str, dict[str, Any]] = {
    "full attention": {},
    "sliding and full": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 12,
        "use_sliding_window": True,
    },
    "short window, not causal": {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 5,
        "use_sliding_window": True,
        "is_causal": False,
    },
    "all causal": {"is_causal": True},
    "biases, block of 5": {"attention_bias": True, "block_size": 5},
    "scaled": {"input_embedding_scale": 3.0, "output_multiplier": 0.25, "final_logit_softcapping": 0.5},
}
SHORT = Placement(device=torch.device("cpu"), dtype=torch.bfloat16)
# Interpreted kernels take seconds for what a GPU does in one step.
FEW = (1, 22, 9)
Rounds = list[dict[int, Draft]]


def load(folder: Path, variant: str, *, with_head: bool = True, block_size: int = 8, **more: Any) -> DraftModel:
    pair = make_pair(folder, seed=3, **{"block_size": block_size, **VARIANTS[variant]})
    return load_draft_model(pair.target, pair.draft, with_head=with_head, **more)


def engine_of(model: DraftModel, backend: Callable[[DraftModel, ContextCache], Any]) -> DraftEngine:
    return DraftEngine(model, context_pages=128, page_size=4, make_backend=backend)


def device_engine(model: DraftModel) -> tuple[DraftEngine, DeviceBackend]:
    """An engine and what it drafts with."""
    made = []

    def make(model: DraftModel, cache: ContextCache) -> DeviceBackend:
        made.append(DeviceBackend(model, cache))
        return made[-1]

    engine = engine_of(model, make)
    return engine, made[-1]


def play(
    engine: DraftEngine, wishes: list[DraftParams], rounds: int, prompts: tuple[int, ...] = (1, 37, 9, 22, 64)
) -> Rounds:
    """Drafts of some rounds in which unequal sessions commit, wait, end, and begin on the pages of others."""
    rng = np.random.default_rng(7)
    block, lengths = engine.model.config.block_size, dict(enumerate(prompts))
    played = []

    def features(rows: int) -> np.ndarray:
        return rng.normal(size=(rows, engine.model.feature_width)).astype(np.float32)

    def start(session_id: int) -> FeatureRows:
        length = lengths[session_id]
        tokens = rng.integers(0, 96, length).tolist()
        engine.open(session_id, tokens, wishes[session_id % len(wishes)], decoding=True)
        return FeatureRows(session_id=session_id, start=0, features=features(length - 1))

    rows = [start(session_id) for session_id in lengths]
    for number in range(rounds):
        assert engine.append(rows) == []
        drafts, faults = engine.draft(engine.ready())
        assert faults == []
        played.append({draft.session_id: draft for draft in drafts})
        rows = []
        for session_id in list(lengths):
            if rng.random() < 0.3:
                continue
            committed = int(rng.integers(1, block + 1))
            engine.commit(session_id, lengths[session_id], rng.integers(0, 96, committed).tolist(), 5 + number)
            rows.append(FeatureRows(session_id=session_id, start=lengths[session_id] - 1, features=features(committed)))
            lengths[session_id] += committed
        # Another one takes the pages of one that ends.
        ended, begun = min(lengths), max(lengths) + 1
        engine.close(ended)
        del lengths[ended]
        rows = [each for each in rows if each.session_id != ended]
        lengths[begun] = int(rng.integers(2, 50))
        rows.append(start(begun))
    return played


def assert_same(ours: Rounds, expected: Rounds) -> None:
    assert [round_.keys() for round_ in ours] == [round_.keys() for round_ in expected]
    assert min(len(round_) for round_ in ours) >= 2
    for session_id, draft, other in (
        (session_id, round_[session_id], others[session_id])
        for round_, others in zip(ours, expected, strict=True)
        for session_id in round_
    ):
        assert (draft.session_id, draft.base_len) == (session_id, other.base_len)
        assert draft.tree.token_ids.tolist() == other.tree.token_ids.tolist()
        assert draft.tree.parents.tolist() == other.tree.parents.tolist()
        np.testing.assert_allclose(draft.tree.log_probs, other.tree.log_probs, atol=1e-4)
        assert (draft.hidden_states is None) == (other.hidden_states is None)
        if draft.hidden_states is not None and other.hidden_states is not None:
            np.testing.assert_allclose(draft.hidden_states, other.hidden_states, atol=1e-4)


def by_kernels(patch: pytest.MonkeyPatch) -> None:
    """What a GPU's tensors would choose; products stay torch's, as there."""
    for module in (context_step, draft_step, model_module):
        for name, run in (
            ("append_context", append_context_kernel.append_context),
            ("rms_norm", rms_norm_kernel.rms_norm),
            ("add_rms_norm", rms_norm_kernel.add_rms_norm),
            ("silu_and_mul", silu_and_mul_kernel.silu_and_mul),
            ("store_kv", store_kv_kernel.store_kv),
            ("block_attention", block_attention_kernel.block_attention),
            ("perturb_rows", perturb_kernel.perturb_rows),
            ("top_candidates", build_tree_kernel.top_candidates),
            ("build_trees", build_tree_kernel.build_trees),
        ):
            if hasattr(module, name):
                patch.setattr(module, name, run)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rounds_equal_the_hosts(tmp_path: Path, variant: str) -> None:
    model = load(tmp_path, variant)
    for wishes in ([TREE, CHAIN, SAMPLED, UNSEEDED, SAMPLED_CHAIN], [TREE, CHAIN], [CHAIN]):
        host, device = engine_of(model, HostBackend), engine_of(model, DeviceBackend)
        assert_same(play(device, wishes, 4), play(host, wishes, 4))
        # Nothing is written but what is meant: padding and old rows of the buffers reach no page.
        torch.testing.assert_close(device.cache.keys_values, host.cache.keys_values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["full attention", "sliding and full"])
def test_rounds_of_kernels_equal_the_hosts(tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, wishes = load(tmp_path, variant, block_size=4), [TREE, CHAIN, SAMPLED]
    host, device = engine_of(model, HostBackend), engine_of(model, DeviceBackend)
    expected = play(host, wishes, 2, FEW)
    by_kernels(monkeypatch)
    assert_same(play(device, wishes, 2, FEW), expected)
    torch.testing.assert_close(device.cache.keys_values, host.cache.keys_values, atol=1e-4, rtol=1e-4)


def test_hidden_states_equal_the_hosts(tmp_path: Path) -> None:
    model = load(tmp_path, "sliding and full", with_head=False)
    expected = play(engine_of(model, HostBackend), [TREE, SAMPLED], 3)
    ours = play(engine_of(model, DeviceBackend), [TREE, SAMPLED], 3)
    assert_same(ours, expected)
    assert all(draft.hidden_states is not None for draft in ours[0].values())


def test_bfloat16_stays_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the type that a GPU has: weights, context and rows; the results are rounded, nothing else."""
    small: dict[str, Any] = {"with_head": False, "block_size": 4}
    expected = play(engine_of(load(tmp_path, "sliding and full", **small), HostBackend), [TREE], 1, FEW)[0]
    model = load(tmp_path, "sliding and full", placement=SHORT, **small)
    assert {model.weights.embedding.dtype, model.weights.context_k_norm.dtype} == {torch.bfloat16}
    by_kernels(monkeypatch)
    device = engine_of(model, DeviceBackend)
    assert device.cache.keys_values.dtype == torch.bfloat16
    for session_id, draft in play(device, [TREE], 1, FEW)[0].items():
        ours, theirs = draft.hidden_states, expected[session_id].hidden_states
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == np.float32
        assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(theirs)


def test_trees_of_bfloat16_logits_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_kernels(monkeypatch)
    device = engine_of(load(tmp_path, "scaled", placement=SHORT, block_size=4), DeviceBackend)
    wishes = [TREE, SAMPLED, CHAIN]
    sizes = {session_id: len(draft.tree) for session_id, draft in play(device, wishes, 1, FEW)[0].items()}
    assert sizes == {0: TREE.node_limit, 1: SAMPLED.node_limit, 2: 3}


def test_large_batches_go_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(tmp_path, "full attention")
    expected = play(engine_of(model, HostBackend), [TREE, SAMPLED], 3)
    monkeypatch.setattr(device_backend, "MOST_ROWS", 16)
    monkeypatch.setattr(device_backend, "MOST_PIECES", 2)
    monkeypatch.setattr(device_backend, "MOST_SESSIONS", 2)
    assert_same(play(engine_of(model, DeviceBackend), [TREE, SAMPLED], 3), expected)


def test_turns_keep_every_row_once_and_both_bounds() -> None:
    def piece(session_id: int, start: int, rows: int) -> ContextPiece:
        features = np.arange(start, start + rows, dtype=np.float32)[:, None]
        return ContextPiece(session_id=session_id, table=PageTable(), start=start, features=features)

    pieces = [piece(0, 0, 25), piece(1, 4, 1), piece(2, 9, 2), piece(3, 0, 0), piece(4, 1, 1), piece(5, 0, 10)]
    cut = list(turns(pieces, 10, 3))
    assert all(sum(len(each.features) for each in turn) <= 10 and len(turn) <= 3 for turn in cut)
    # No turn ends early.
    assert [len(turn) for turn in cut] == [1, 1, 3, 2, 1]
    rows = [(e.session_id, e.start + i, row) for turn in cut for e in turn for i, row in enumerate(e.features[:, 0])]
    assert rows == [(p.session_id, p.start + i, row) for p in pieces for i, row in enumerate(p.features[:, 0])]


@pytest.mark.parametrize("kernels", [False, True])
@torch.inference_mode()
def test_rows_behind_a_length_reach_no_page(model: DraftModel, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels:
        by_kernels(monkeypatch)
    c = model.config
    sizes = {"layers": c.num_hidden_layers, "kv_heads": c.num_key_value_heads, "head_dim": c.head_dim}
    cache, tables = ContextCache(pages=16, page_size=4, **sizes), [PageTable(), PageTable()]
    pieces = []
    for session_id, (table, start, rows) in enumerate(zip(tables, (3, 0), (2, 3), strict=True)):
        cache.reserve(table, start + rows)
        features = np.ones((rows, model.feature_width), np.float32)
        pieces.append(ContextPiece(session_id=session_id, table=table, start=start, features=features))
    step = ContextStep(model, cache, ContextSize(rows=8, pieces=4, pages=64))
    step.inputs.host["features"].fill_(torch.nan)
    step.fill(pieces)
    step.inputs.upload()
    # The device alone knows that one row less of the first session is meant.
    step.inputs.device["lengths"][0] = 1
    step()
    written = cache.keys_values.flatten(1).ne(0).any(1).nonzero()[:, 0].tolist()
    assert written == sorted([tables[0].slots[3], *tables[1].slots[:3]])


def test_a_draft_that_is_not_finite_ends_its_session_alone(tmp_path: Path) -> None:
    for with_head in (True, False):
        engine = engine_of(load(tmp_path, "full attention", with_head=with_head), DeviceBackend)
        for session_id, value in ((1, 1.0), (2, 3e38), (3, -1.0)):
            engine.open(session_id, [5] * 6, TREE, decoding=True)
            features = np.full((5, engine.model.feature_width), value, np.float32)
            engine.append([FeatureRows(session_id=session_id, start=0, features=features)])
        drafts, faults = engine.draft(engine.ready())
        assert [(fault.session_id, fault.reason) for fault in faults] == [(2, "the draft is not finite")]
        assert {draft.session_id for draft in drafts} == {1, 3}


def test_drafts_outlive_the_next_step(tmp_path: Path) -> None:
    for with_head in (True, False):
        engine = engine_of(load(tmp_path, "full attention", with_head=with_head), DeviceBackend)
        kept = []
        for token in (5, 6):
            engine.open(1, [token], TREE, decoding=True)
            draft = engine.draft(engine.ready())[0][0]
            array = draft.tree.token_ids if with_head else draft.hidden_states
            assert array is not None
            kept.append((array, array.copy()))
        assert all((now == then).all() for now, then in kept)
        assert not np.array_equal(kept[0][1], kept[1][1])


def test_what_is_behind_a_group_has_no_context(tmp_path: Path) -> None:
    engine, backend = device_engine(load(tmp_path, "full attention"))
    for sessions in (4, 3):
        engine.close_all()
        for session_id in range(sessions):
            engine.open(session_id, [5] * 6, TREE, decoding=True)
            features = np.ones((5, engine.model.feature_width), np.float32)
            engine.append([FeatureRows(session_id=session_id, start=0, features=features)])
        assert len(engine.draft(engine.ready())[0]) == sessions
        (step,) = backend._draft_steps.values()
        assert step.inputs.device["lengths"].tolist() == [5] * sessions + [0] * (4 - sessions)


class _SeenOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("with_head", [True, False])
def test_a_step_asks_the_host_nothing(tmp_path: Path, with_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is read on the host, or made there: what a graph could not hold."""
    by_kernels(monkeypatch)
    engine, backend = device_engine(load(tmp_path, "sliding and full", with_head=with_head, block_size=2))
    play(engine, [SAMPLED], 1, (2,))
    for step in (*backend._context_steps.values(), *backend._draft_steps.values()):
        with torch.inference_mode(), _SeenOps() as seen:
            step()
        # How reading or making a number on the host looks from here; tolist and numpy resolve conjugates first.
        waits = ("item", "_local_scalar_dense", "nonzero", "lift_fresh", "aten.to.", "_to_copy", "resolve_conj")
        assert [name for name in seen.names if any(wait in name for wait in waits)] == []
        assert any("linear" in name for name in seen.names)


def test_sizes_are_few(tmp_path: Path) -> None:
    """A step is made once a size, not once a batch."""
    engine, backend = device_engine(load(tmp_path, "full attention"))
    play(engine, [TREE, CHAIN], 24)
    drafts, contexts = backend._draft_steps, backend._context_steps
    assert 2 <= len(drafts) <= 8
    assert {size.sessions for size in drafts} <= {2, 4, 8}
    assert {size.nodes for size in drafts} <= {8, 16, 32}
    assert {size.rows for size in contexts} <= {8, 16, 32, 64, 128, 256}
    assert {size.pages for size in (*drafts, *contexts)} == {64}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 512}, "draft: head_dim: 512, .* --device cpu"),
        ({"num_attention_heads": 66}, "draft: num_attention_heads: 33 a KV head, .* --device cpu"),
        ({"block_size": 258}, "draft: block_size 258, a GPU drafts up to 257 rows; .* --device cpu"),
        ({"block_size": 17, "max_position_embeddings": 16}, "draft: block_size 17, a GPU drafts up to 16 rows"),
    ],
)
def test_what_no_step_can_be_made_of_is_refused_at_once(
    model: DraftModel, fields: dict[str, int], message: str
) -> None:
    changed = DraftModel(replace(model.config, **fields), model.weights, model.rotary)
    cache = ContextCache(pages=1, page_size=1, layers=1, kv_heads=1, head_dim=2)
    with pytest.raises(Incompatible, match=message):
        DeviceBackend(changed, cache)


def test_the_placement_chooses(model: DraftModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContextCache(pages=1, page_size=1, layers=1, kv_heads=1, head_dim=2)
    assert isinstance(choose_backend(model, cache), HostBackend)
    # No build of torch for CPUs has it.
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    gpu = Placement(device=torch.device("cuda", 0), dtype=torch.bfloat16)
    assert isinstance(choose_backend(DraftModel(model.config, model.weights, model.rotary, gpu), cache), DeviceBackend)


def test_a_device_that_is_not_there_ends_the_start() -> None:
    config = partial(DrafterConfig, target=Path("t"), draft=Path("d"), verifier="127.0.0.1:1")
    with pytest.raises(ValueError, match=r"^device: tpu is neither cpu nor cuda"):
        make_engine(config(device="tpu"))
    with pytest.raises(ValueError, match=r"^device: cuda:99 is not here"):
        make_engine(config(device="cuda:99"))


@pytest.mark.parametrize("node_limit", [1, 8, 20, 256])
def test_the_start_drafts_in_every_size_of_tree(node_limit: int) -> None:
    config = DrafterConfig(target=Path("t"), draft=Path("d"), verifier="127.0.0.1:1", node_limit=node_limit)
    assert [params.node_limit for params in first_wishes(config, CPU)] == [node_limit]
    wishes = first_wishes(config, replace(CPU, device=torch.device("cuda", 0)))
    for is_sampled in (False, True):
        limits = [params.node_limit for params in wishes if (params.temperature > 0) == is_sampled]
        # What is captured for one limit serves all up to the next power of two.
        reached = {max(8, 1 << (limit - 1).bit_length()) for limit in limits}
        assert reached >= {max(8, 1 << (limit - 1).bit_length()) for limit in range(1, node_limit + 1)}
        assert max(limits) == node_limit


def test_fields_of_a_buffer_travel_in_one_copy() -> None:
    fields = {
        "flags": Field(shape=(3,), dtype=torch.int32),
        "seeds": Field(shape=(2,), dtype=torch.int64),
        "nothing": Field(shape=(0, 4), dtype=torch.float32),
        "rows": Field(shape=(3, 3), dtype=torch.bfloat16),
        "last": Field(shape=(1,), dtype=torch.float32),
    }
    buffer = PackedBuffer(fields, torch.device("cpu"))
    for index, array in enumerate(buffer.host.values()):
        array.fill_(index + 1)
    buffer.upload()
    buffer.settle()
    for index, (name, array) in enumerate(buffer.device.items()):
        assert (array.shape, array.dtype) == (fields[name].shape, fields[name].dtype)
        assert array.eq(index + 1).all()
        assert array.data_ptr() % 16 == 0
    buffer.device["seeds"].fill_(9)
    buffer.download()
    assert buffer.host["seeds"].tolist() == [9, 9]
    assert buffer.host["rows"].eq(4).all()
