"""What a measurement ran on; every benchmark prints it."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from draftwood import tuning


def describe() -> str:
    """One line: processor, cores, interpreter, torch, threads of the services."""
    threads = f"{tuning.VERIFIER_THREADS} verifier and {tuning.DRAFTER_THREADS} drafter threads"
    software = f"Python {platform.python_version()}, torch {version('torch')}"
    return f"{_processor()}, {os.cpu_count()} cores, {software}, {threads}"


def _processor() -> str:
    """The kernel's name of the first processor, where there is one to read."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
