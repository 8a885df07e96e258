"""`draftwood bench`: measurements of the whole system."""

import argparse

from draftwood.bench import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    measurements = parser.add_subparsers(required=True, metavar="MEASUREMENT")
    command = measurements.add_parser("load", help="speed and latency under load", description=load.__doc__)
    load.add_arguments(command)
    command.set_defaults(measure=load.run)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.measure(arguments))
