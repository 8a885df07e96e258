"""Costs on disk, so that the next start of the same target on the same device knows them at once.

How long drafts take is not kept: the next drafter may be another.
"""

import hashlib
import json
import os
import platform
from pathlib import Path

import numpy as np

from draftwood_verifier.budget.cost_table import Axes, CostTable
from draftwood_verifier.budget.gaps import GapTable
from draftwood_verifier.budget.policy import Policy

# Of the file's format and of what its numbers mean.
_VERSION = 1


def cache_folder() -> Path:
    """Where such files are kept: XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwood" / "costs"


def file_name(target: Path, *, software: str, device: str, threads: int, axes: Axes) -> str:
    """Equal for equal weights (by size), device, software, threads and grid."""
    digest = hashlib.sha256((target / "config.json").read_bytes())
    for path in sorted(target.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    digest.update(f"{software} {device} {platform.machine()} {threads} {axes.sequences} {axes.nodes}".encode())
    return f"{digest.hexdigest()[:24]}.json"


def save(policy: Policy, path: Path) -> None:
    """Write what was measured, whole or not at all."""
    axes = policy.costs.axes
    content = {
        "version": _VERSION,
        "axes": {"sequences": axes.sequences, "nodes": axes.nodes, "context": axes.context},
        "seconds": policy.costs.settled(),
        "pauses": policy.pauses.known,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(content))
    unfinished.replace(path)


def load(path: Path, *, groups: int = 0) -> Policy | None:
    """None when there is no such file, or none of this version that can be read."""
    try:
        content = json.loads(path.read_text())
        if content["version"] != _VERSION:
            return None
        axes = Axes(**{name: tuple(lines) for name, lines in content["axes"].items()})
        seconds = np.array(content["seconds"], np.float64)
        if seconds.shape != (len(axes.context), len(axes.sequences), len(axes.nodes)) or not (seconds > 0).all():
            return None
        pauses = GapTable({int(size): float(value) for size, value in content["pauses"].items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return Policy(CostTable(axes, seconds.tolist()), pauses=pauses, groups=groups)
