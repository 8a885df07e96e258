"""`python -m draftwood_kernels.bench`: every kernel and whole steps on the GPU at hand, in one table.

Without a GPU there is nothing to measure. `--check` runs every case at a tiny size instead, in Triton's interpreter
where there is no GPU, and compares it with its reference.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from draftwood_kernels.bench.case import Case, check
from draftwood_kernels.bench.cases import kernel_cases
from draftwood_kernels.bench.measure import Card, environment, measure_card, median_us
from draftwood_kernels.bench.report import KernelRow, Report
from draftwood_kernels.bench.shapes import (
    KERNEL_EXPERTS,
    KERNEL_MODEL,
    KERNEL_STEP,
    MODELS,
    STEPS,
    TINY_EXPERTS,
    TINY_MODEL,
    TINY_STEPS,
    Setting,
)
from draftwood_kernels.bench.steps import StepRow, check_steps, measure_steps
from draftwood_kernels.step_graphs import capture

_INTERPRET = "TRITON_INTERPRET"
# float32 at tiny sizes: some hundred terms, added up in another order.
_RTOL, _ATOL = 1e-4, 1e-4


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m draftwood_kernels.bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    parser.add_argument("--check", action="store_true", help="compare every case with its reference, at tiny sizes")
    parser.add_argument("--no-steps", action="store_true", help="kernels only")
    parser.add_argument("--models", nargs="*", default=[model.name for model in MODELS], help="shapes of whole steps")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.models) - {model.name for model in MODELS})
    if unknown:
        parser.error(f"--models: {', '.join(unknown)} is none of {', '.join(model.name for model in MODELS)}")
    if options.check:
        return _check()
    if not torch.cuda.is_available():
        print("no GPU: nothing to measure here. --check compares every case with its reference.", file=sys.stderr)
        return 2
    card = measure_card()
    report = Report(
        environment=environment(),
        card=card,
        kernels=_measure_kernels(card),
        steps=[] if options.no_steps else _measure_steps(options.models, card),
    )
    print(report.text(), end="")
    if options.json:
        options.json.write_text(report.json())
    return 0


def _check() -> int:
    on_gpu = torch.cuda.is_available()
    if not on_gpu and os.environ.get(_INTERPRET) != "1":
        # Triton reads it when it is imported, which has happened: once more, then.
        command = [sys.executable, "-m", "draftwood_kernels.bench", "--check"]
        os.execve(sys.executable, command, os.environ | {_INTERPRET: "1"})
    setting = Setting(device=torch.device("cuda" if on_gpu else "cpu"), dtype=torch.float32, page_size=4)
    torch.manual_seed(0)
    cases = kernel_cases(TINY_MODEL, TINY_EXPERTS, TINY_STEPS[-1], setting)
    for case in cases:
        check(case, _RTOL, _ATOL)
        for rival in case.rivals.values():
            rival()
        print(f"right: {case.op}: {case.name}")
    with torch.inference_mode():
        check_steps(TINY_MODEL, TINY_STEPS, setting)
    how = "on the GPU" if on_gpu else "in Triton's interpreter"
    print(f"checked {len(cases)} kernel cases and {len(TINY_STEPS)} steps in two modes {how}")
    return 0


def _measure_kernels(card: Card) -> list[KernelRow]:
    setting = Setting(device=torch.device("cuda"), dtype=torch.bfloat16, page_size=16)
    with torch.inference_mode():
        cases = kernel_cases(KERNEL_MODEL, KERNEL_EXPERTS, KERNEL_STEP, setting)
        return [_measure(case, card) for case in cases]


def _measure(case: Case, card: Card) -> KernelRow:
    time_us = median_us(capture(case.run))
    return KernelRow(
        name=case.name,
        time_us=time_us,
        bytes_moved=case.bytes_moved,
        bandwidth_share=case.bytes_moved / time_us * 1e6 / card.bandwidth,
        matrix_share=case.operations / time_us * 1e6 / card.matrix_rate,
        rivals={name: _rival_us(run) for name, run in case.rivals.items()},
    )


def _rival_us(run: Callable[[], object]) -> float | None:
    try:
        return median_us(capture(run))
    except RuntimeError:
        return None


def _measure_steps(names: list[str], card: Card) -> list[StepRow]:
    setting = Setting(device=torch.device("cuda"), dtype=torch.bfloat16, page_size=16)
    chosen = [model for model in MODELS if model.name in names]
    return [row for model in chosen for row in measure_steps(model, STEPS, setting, card)]


if __name__ == "__main__":
    sys.exit(main())
