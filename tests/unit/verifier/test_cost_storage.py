"""Costs survive a restart, and only of the very same target, device and software."""

import json
from pathlib import Path

import pytest

from draftwood_verifier.budget import storage
from draftwood_verifier.budget.cost_table import Axes, CostTable
from draftwood_verifier.budget.policy import Policy

AXES = Axes(sequences=(1, 2), nodes=(0, 4), context=(0, 64))


def test_what_was_measured_is_there_after_a_restart(tmp_path: Path) -> None:
    policy = Policy(CostTable(AXES))
    for _ in range(20):
        policy.costs.observe(2, 4, 30, 0.5)
        policy.pauses.observe(2, 0.003)
        policy.waits.observe(2, 0.1)
    path = tmp_path / "deep" / "costs.json"
    storage.save(policy, path)
    again = storage.load(path)
    assert again is not None
    assert again.costs.axes == AXES
    assert again.costs.seconds == policy.costs.seconds
    assert again.pauses.seconds(2) == policy.pauses.seconds(2)
    assert not again.waits.knows(2)  # another drafter may come
    assert [p.name for p in path.parent.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"seconds": [[[1.0]]]},
        {"seconds": [[[1.0, -1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]},
        {"axes": {"sequences": [1]}},
        {"axes": None},
        {"pauses": {"two": 1}},
    ],
)
def test_a_file_that_makes_no_sense_is_measured_anew(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "costs.json"
    storage.save(Policy(CostTable(AXES)), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert storage.load(path) is None
    path.write_text("half a fi")
    assert storage.load(path) is None
    assert storage.load(tmp_path / "none.json") is None


def test_names_tell_targets_and_machines_apart(tmp_path: Path) -> None:
    def target(name: str, size_bytes: int) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(size_bytes))
        return folder

    def name(folder: Path, **options: object) -> str:
        fields = {"software": "2.13", "device": "AVX512", "threads": 2, "axes": AXES, **options}
        return storage.file_name(folder, **fields)  # type: ignore[arg-type]

    one, same, other = target("one", 8), target("same", 8), target("other", 9)
    assert name(one) == name(same)
    different = {name(one), name(other), name(one, threads=1), name(one, device="H200"), name(one, software="2.11")}
    assert len(different) == 5
