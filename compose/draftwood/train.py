"""`draftwood train`: the drafter's training program, with its own arguments and help."""

import importlib
from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    # Imported by name and late: it brings torch, which the other commands start without.
    training = importlib.import_module("draftwood_drafter.training.__main__")
    return int(training.main(list(argv)))
