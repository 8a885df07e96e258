"""`python -m draftwood_gateway`: one JSON line on stdout once it listens; SIGTERM or SIGINT drains and ends it."""

import asyncio
import json
import logging
import signal
import sys
from dataclasses import asdict

from draftwood_gateway.app import running_gateway
from draftwood_gateway.config import GatewayConfig, parse_config
from draftwood_wire.errors import DraftwoodError
from draftwood_wire.heap import settle_heap


async def _serve(config: GatewayConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_gateway(config) as listening:
        settle_heap()
        addresses = {name: address for name, address in asdict(listening).items() if address}
        print(json.dumps({"event": "listening", **addresses}), flush=True)
        await stop.wait()


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(parse_config()))
    except (DraftwoodError, ValueError) as error:
        print(f"draftwood_gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
