"""Every kernel compiled for every chip, in a process of its own: here, kernels belong to the interpreter."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import draftwood_kernels

PACKAGE = Path(draftwood_kernels.__file__).parent
LIMITS_KIB = {80: 163, 90: 227, 100: 227, 120: 99}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    command = [sys.executable, "-m", "draftwood_kernels.compile", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.timeout(1800)
def test_every_kernel_fits_every_chip(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    page = tmp_path / "kernels.md"
    done = run("--table", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")][2:]
    assert {row[0] for row in rows} == {path.parent.name for path in PACKAGE.glob("*/kernel.py")}
    for op, name, _warps, *cells in rows:
        for (chip, limit), cell in zip(LIMITS_KIB.items(), cells, strict=True):
            usage = re.fullmatch(r"(\d+), ([\d.e+-]+)", cell)
            assert usage, f"{op} {name}, sm_{chip}: {cell}"
            assert 0 < int(usage[1]) <= 255
            assert float(usage[2]) <= limit
    summary = re.search(r"^compiled (\d+) kernels: (\d+) specialisations.*$", done.stdout, re.MULTILINE)
    assert summary
    assert int(summary[2]) == len(rows)
    assert int(summary[1]) == len(rows) * len(LIMITS_KIB)
    record_property("said", summary[0])


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [((), {"TRITON_INTERPRET": "1"}, "TRITON_INTERPRET is set"), (("no_such_op",), {}, "no kernel.py in no_such_op")],
)
def test_what_cannot_be_compiled_is_said(arguments: tuple[str, ...], environment: dict[str, str], message: str) -> None:
    done = run(*arguments, **environment)
    assert done.returncode == 2
    assert message in done.stderr
