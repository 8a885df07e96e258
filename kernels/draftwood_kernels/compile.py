"""`python -m draftwood_kernels.compile`: every kernel for every chip, without a GPU, and what each one takes of it.

A kernel that spills registers, or wants more shared memory than a block of the chip may have, is an error.
"""

# mypy: disable-error-code="import-untyped"

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from draftwood_kernels.specialisation import Specialisation

# Bytes of shared memory that one block may ask for, by compute capability. Source: CUDA C++ Programming Guide,
# table "Technical Specifications per Compute Capability".
SHARED_LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """`spilled_bytes` is the local memory of a thread: our kernels have no other use for it."""

    op: str
    name: str
    capability: int
    num_warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int

    @property
    def fits(self) -> bool:
        return self.spilled_bytes == 0 and self.shared_bytes <= SHARED_LIMITS[self.capability]


def ops() -> list[str]:
    """Every folder with a kernel.py."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/kernel.py"))


def specialisations(op: str) -> list[Specialisation]:
    """Raises ValueError for a kernel.py that registers nothing."""
    registered: list[Specialisation] = getattr(
        importlib.import_module(f"draftwood_kernels.{op}.kernel"), "SPECIALISATIONS", []
    )
    if not registered:
        raise ValueError(f"{op}/kernel.py: SPECIALISATIONS is missing or empty")
    return registered


def compile_all(chosen: list[str], processes: int) -> Iterator[Compiled]:
    """One for every op, specialisation and chip, in that order. A fresh process each, as triton's compiler likes it."""
    jobs = [
        (op, index, capability)
        for op in chosen
        for index in range(len(specialisations(op)))
        for capability in SHARED_LIMITS
    ]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_compile_job, jobs, chunksize=4)


def compile_one(op: str, specialisation: Specialisation, capability: int) -> Compiled:
    """Pointers are compiled as those of torch's allocator: 16-byte aligned."""
    kernel = specialisation.kernel
    types = specialisation.signature | dict.fromkeys(specialisation.constexprs, "constexpr")
    if set(types) != set(kernel.arg_names) or len(types) != len(kernel.arg_names):
        raise ValueError(f"{op} {specialisation.name}: arguments are {kernel.arg_names}, registered are {list(types)}")
    source = ASTSource(
        fn=kernel,
        signature={name: types[name] for name in kernel.arg_names},
        constexprs=specialisation.constexprs,
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(kernel.arg_names)
            if types[name].startswith("*")
        },
    )
    options = {"num_warps": specialisation.num_warps, "num_stages": specialisation.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = _resource_usage(compiled.asm["cubin"])
    return Compiled(
        op=op,
        name=specialisation.name,
        capability=capability,
        num_warps=specialisation.num_warps,
        registers=usage["REG"],
        spilled_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=compiled.metadata.shared,
    )


def table(compiled: list[Compiled]) -> str:
    """Markdown, one row a specialisation; registers and shared memory of each chip side by side."""
    chips = list(SHARED_LIMITS)
    head = ["op", "specialisation", "warps", *(f"sm_{chip}: registers, shared KiB" for chip in chips)]
    rows: dict[tuple[str, str, int], dict[int, str]] = {}
    for one in compiled:
        cell = f"{one.registers}, {one.shared_bytes / 1024:g}" + ("" if one.fits else f" **{_complaint(one)}**")
        rows.setdefault((one.op, one.name, one.num_warps), {})[one.capability] = cell
    lines = [head, ["---"] * len(head)]
    lines += [[op, name, str(warps), *(cells[chip] for chip in chips)] for (op, name, warps), cells in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m draftwood_kernels.compile", description=__doc__)
    parser.add_argument("ops", nargs="*", help="folders of kernels; all of them if none is named")
    parser.add_argument("--table", type=Path, help="write the table to this Markdown file too")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8))
    options = parser.parse_args(arguments)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: the interpreter's kernels cannot be compiled")
    unknown = sorted(set(options.ops) - set(ops()))
    if unknown:
        parser.error(f"no kernel.py in {', '.join(unknown)}; there is one in {', '.join(ops())}")
    compiled = list(compile_all(options.ops or ops(), options.processes))
    print(table(compiled))
    print(_summary(compiled))
    if options.table:
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(_page(compiled))
    failed = [one for one in compiled if not one.fits]
    for one in failed:
        print(f"{one.op} {one.name}, sm_{one.capability}: {_complaint(one)}", file=sys.stderr)
    return 1 if failed else 0


def _compile_job(job: tuple[str, int, int]) -> Compiled:
    op, index, capability = job
    return compile_one(op, specialisations(op)[index], capability)


def _resource_usage(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = re.findall(r"REG:\d+.*", output)
    assert len(usage) == 1, f"a cubin holds one kernel, cuobjdump says {output}"
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", usage[0])}


def _complaint(one: Compiled) -> str:
    if one.spilled_bytes:
        return f"spills {one.spilled_bytes} bytes a thread"
    return f"{one.shared_bytes} bytes of shared memory, {SHARED_LIMITS[one.capability]} are there"


def _summary(compiled: list[Compiled]) -> str:
    sources = {(one.op, one.name) for one in compiled}
    return (
        f"compiled {len(compiled)} kernels: {len(sources)} specialisations of {len({one.op for one in compiled})} ops "
        f"for {len({one.capability for one in compiled})} chips, {sum(not one.fits for one in compiled)} do not fit"
    )


def _page(compiled: list[Compiled]) -> str:
    limits = ", ".join(f"sm_{chip} {limit // 1024}" for chip, limit in SHARED_LIMITS.items())
    return (
        "# Kernels\n\n"
        "What each kernel takes of a chip, as compiled ahead of time; written by\n"
        f"`python -m draftwood_kernels.compile --table docs/kernels.md` with triton {triton.__version__}.\n"
        "A cell that names neither spills nor too much shared memory fits its chip. Shared memory that a block may\n"
        f"have, in KiB: {limits}. Nothing here was run on a GPU.\n\n"
        f"{table(compiled)}\n\n{_summary(compiled)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
