"""The benchmark where there is no GPU: it says so, its cases are right, and its report says what it was given."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from draftwood_kernels.bench.cases import kernel_cases
from draftwood_kernels.bench.measure import Card, idle_us
from draftwood_kernels.bench.report import KernelRow, Report
from draftwood_kernels.bench.shapes import TINY_EXPERTS, TINY_MODEL, TINY_STEPS, Setting
from draftwood_kernels.bench.steps import StepRow
from draftwood_kernels.compile import ops, specialisations

# What joins the splits of a row, and no tiny row has two; and the words of the noise, which tests alone ask for.
NOT_LAUNCHED = {"block_attention._combine", "linear._join_kernel", "sample.reduce_kernel", "sample.words_kernel"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Without a GPU and without the interpreter, as somebody would type it."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "draftwood_kernels.bench", *arguments]
    environment = variables | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_a_gpu_there_is_nothing_to_measure() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("no GPU: nothing to measure here.")


def test_an_unknown_model_is_named() -> None:
    done = run("--models", "8B", "70B")
    assert done.returncode == 2
    assert "--models: 70B is none of 0.6B, 8B" in done.stderr


def test_every_case_is_right(record_property: Callable[[str, object], None]) -> None:
    done = run("--check")
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.removeprefix("right: ") for line in done.stdout.splitlines() if line.startswith("right: ")]
    summary = re.search(
        r"^checked (\d+) kernel cases and 2 steps in two modes in Triton's interpreter$", done.stdout, re.M
    )
    assert summary
    assert int(summary[1]) == len(said) == len(set(said))
    assert {line.split(": ")[0] for line in said} == set(ops())
    record_property("said", summary[0])


def test_every_kernel_is_launched_by_a_case_of_its_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name alone could say what is not measured, and an op may have more kernels than one."""
    seen: set[Any] = set()
    kernels = {op: {each.kernel for each in specialisations(op)} for op in ops()}
    for kernel in set().union(*kernels.values()):
        monkeypatch.setattr(kernel, "pre_run_hooks", [*kernel.pre_run_hooks, partial(_see, seen, kernel)])
    setting = Setting(device=torch.device("cpu"), dtype=torch.float32, page_size=4)
    launched = set()
    for case in kernel_cases(TINY_MODEL, TINY_EXPERTS, TINY_STEPS[-1], setting):
        seen.clear()
        case.run()
        assert seen & kernels[case.op], f"{case.op}: {case.name}"
        launched |= seen
    missing = {f"{op}.{kernel.__name__}" for op in kernels for kernel in kernels[op] - launched}
    assert missing == NOT_LAUNCHED


def _see(seen: set[Any], kernel: Any, *_arguments: object, **_options: object) -> None:
    seen.add(kernel)


@pytest.mark.parametrize(
    ("spans", "idle"),
    [
        ([], 0.0),
        ([(0.0, 2.0)], 0.0),
        ([(0.0, 2.0), (3.0, 4.0), (4.0, 5.0), (7.5, 8.0)], 3.5),
        ([(0.0, 9.0), (1.0, 2.0), (10.0, 11.0)], 1.0),  # one inside another
    ],
)
def test_gaps_are_what_no_kernel_covers(spans: list[tuple[float, float]], idle: float) -> None:
    assert idle_us(spans) == idle


def report() -> Report:
    steps = [
        StepRow(model="m", batch=1, context=9, nodes=0, time_us=200.0, floor_us=160.0, kernels=7, idle_us=12.0),
        StepRow(model="m", batch=1, context=9, nodes=8, time_us=230.0, floor_us=160.0, kernels=7, idle_us=13.0),
        StepRow(model="m", batch=64, context=9, nodes=8),
    ]
    kernel = KernelRow(
        name="k",
        time_us=10.0,
        bytes_moved=4_000_000,
        bandwidth_share=0.8,
        matrix_share=0.0,
        rivals={"torch": 20.0, "other": None},
    )
    card = Card(bandwidth=5e11, matrix_rate=1e12)
    return Report(environment={"card": "none"}, card=card, kernels=[kernel], steps=steps)


def test_the_table_compares_with_the_plain_step_and_says_what_does_not_fit() -> None:
    lines = [re.split(r" {2,}", line) for line in report().text().splitlines()]
    assert ["card: none"] in lines
    assert ["k", "10.0", "4.00", "80%", "torch 20.0, other not capturable"] in lines
    assert ["m", "1", "9", "0", "200", "1.00", "1.25", "7", "12"] in lines
    assert ["m", "1", "9", "8", "230", "1.15", "1.44", "7", "13"] in lines
    assert ["m", "64", "9", "8", "does not fit into memory"] in lines


def test_json_has_every_number() -> None:
    read = json.loads(report().json())
    assert read["kernels"][0]["rivals"] == {"torch": 20.0, "other": None}
    assert [row["time_us"] for row in read["steps"]] == [200.0, 230.0, None]
    assert read["card"] == {"bandwidth": 5e11, "matrix_rate": 1e12}
