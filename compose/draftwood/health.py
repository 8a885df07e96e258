"""Ask a service whether it serves. A probe for orchestrators: the answer is the exit code.

0: it serves. 1: it answers, but does not serve (it starts, drains, or has no such service). 2: wrong usage, or a file
that can't be used. 3: no answer in time.
"""

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwood_wire.tls import ChannelTls
from draftwood_wire.transport import open_blocking_channel

SERVING, NOT_SERVING, WRONG_USAGE, NO_ANSWER = 0, 1, 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="HOST:PORT", help="gRPC address of the service")
    parser.add_argument("--service", default="", help="full name of one gRPC service; default: the server as a whole")
    parser.add_argument("--timeout-s", type=float, default=3.0)
    parser.add_argument("--ca", default="", help="PEM file of the service's authority; plaintext when absent")
    parser.add_argument("--certificate", default="", help="PEM file of a client certificate, where one is demanded")
    parser.add_argument("--key", default="", help="PEM file of its key")


def run(arguments: argparse.Namespace) -> int:
    try:
        tls = ChannelTls(ca=arguments.ca, certificate=arguments.certificate, key=arguments.key)
        with open_blocking_channel(arguments.address, tls) as channel:
            code, answer = _ask(channel, arguments.service, arguments.timeout_s)
    except ValueError as error:
        code, answer = WRONG_USAGE, str(error)
    print(f"{arguments.address}: {answer}", file=sys.stdout if code == SERVING else sys.stderr)
    return code


def _ask(channel: grpc.Channel, service: str, timeout_s: float) -> tuple[int, str]:
    """The exit code and what to say."""
    request = health_pb2.HealthCheckRequest(service=service)
    try:
        reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s, wait_for_ready=True)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.NOT_FOUND:
            return NOT_SERVING, f"has no service {service!r}"
        return NO_ANSWER, f"{error.code().name}: {error.details()}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return (SERVING if reply.status == health_pb2.HealthCheckResponse.SERVING else NOT_SERVING), status


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Of `python -m draftwood.health`; exits with 2 when they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m draftwood.health", description=__doc__)
    add_arguments(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Apart from the `draftwood` command, whose other imports a probe of every few seconds need not pay for.
    sys.exit(run(parse_arguments()))
