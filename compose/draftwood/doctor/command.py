"""`draftwood doctor MODEL`: can this target, with this draft, be served here? Nothing is loaded to find out.

Exit code 0: it can. 1: it can't, and the reason is printed. 2: the command line is wrong.
"""

import argparse
import importlib
from pathlib import Path

GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of the target's checkpoint")
    parser.add_argument("--draft", type=Path, metavar="D", help="folder of the DFlash checkpoint")
    parser.add_argument("--gpus", type=_count, metavar="N", help="GPUs to spread both over; default: those found, or 1")
    parser.add_argument(
        "--gpu-memory", type=_gibibytes, metavar="GIB", help="memory of each GPU; default: that of the cards found"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    # Imported by name and late: it brings torch, which the other commands start without.
    examination = importlib.import_module("draftwood.doctor.examination")
    report = importlib.import_module("draftwood.doctor.report")
    found = examination.examine(
        arguments.model, arguments.draft, gpus=arguments.gpus, memory_bytes=arguments.gpu_memory
    )
    print(report.as_json(found) if arguments.json else report.as_text(found))
    return 0 if found.servable else 1


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is below 1")
    return count


def _gibibytes(text: str) -> int:
    size = float(text)
    if not 0 < size < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a size")
    return int(size * GIB)
