"""python -m draftwood_verifier: serve one target model until SIGTERM or SIGINT."""

import asyncio
import json
import logging
import signal
import sys

import torch

from draftwood_checkpoint.model_config import tokenizer_fingerprint
from draftwood_verifier.config import VerifierConfig, parse_config
from draftwood_verifier.runner import load_runner
from draftwood_verifier.service import VerifierService
from draftwood_wire.errors import DraftwoodError


async def serve(config: VerifierConfig) -> None:
    """Load, listen, say so on stdout, and stop in order when told to."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    runner = load_runner(config.target, pages=config.kv_pages, page_size=config.page_size)
    service = VerifierService(config, runner, tokenizer_fingerprint=tokenizer_fingerprint(config.target))
    await service.start()
    host = config.listen.rpartition(":")[0]
    metrics = {"metrics": service.telemetry.metrics_address} if config.metrics else {}
    print(json.dumps({"event": "listening", "address": f"{host}:{service.port}", **metrics}), flush=True)
    stopped, failed = asyncio.create_task(stop.wait()), asyncio.create_task(service.failure())
    await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        failed.result()
    failed.cancel()
    await service.stop()


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = parse_config()
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        asyncio.run(serve(config))
    except (DraftwoodError, ValueError, OSError) as error:
        print(f"draftwood_verifier: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
