"""python -m draftwood_verifier: serve one target model until SIGTERM or SIGINT."""

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

import torch

from draftwood_checkpoint.model_config import tokenizer_fingerprint
from draftwood_verifier.budget import storage
from draftwood_verifier.budget.cost_table import Axes, batch_axis
from draftwood_verifier.budget.policy import Policy
from draftwood_verifier.budget.startup import measure_costs
from draftwood_verifier.config import VerifierConfig, parse_config
from draftwood_verifier.runner import Runner, load_runner
from draftwood_verifier.service import VerifierService
from draftwood_wire.errors import DraftwoodError

_LOG = logging.getLogger(__name__)


async def serve(config: VerifierConfig) -> None:
    """Load, listen, say so on stdout, and stop in order when told to."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    runner = load_runner(config.target, pages=config.kv_pages, page_size=config.page_size)
    costs = costs_file(config)
    policy = first_policy(config, runner, costs)
    service = VerifierService(config, runner, policy, tokenizer_fingerprint=tokenizer_fingerprint(config.target))
    await service.start()
    host = config.listen.rpartition(":")[0]
    print(json.dumps({"event": "listening", "address": f"{host}:{service.port}"}), flush=True)
    stopped, failed = asyncio.create_task(stop.wait()), asyncio.create_task(service.failure())
    await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        failed.result()
    failed.cancel()
    await service.stop()
    storage.save(policy, costs)


def costs_file(config: VerifierConfig) -> Path:
    """Where this target's measured costs are kept on this machine."""
    if config.costs:
        return Path(config.costs)
    name = storage.file_name(
        config.target,
        software=torch.__version__,
        device=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        axes=Axes(sequences=batch_axis(config.max_batch)),
    )
    return storage.cache_folder() / name


def first_policy(config: VerifierConfig, runner: Runner, costs: Path) -> Policy:
    """What an earlier run measured, or a measurement of a few seconds that is kept for later runs."""
    policy = storage.load(costs)
    if policy is None:
        axes = Axes(sequences=batch_axis(config.max_batch))
        _LOG.info("measuring step costs, kept in %s", costs)
        policy = Policy(measure_costs(runner, axes=axes, pages=config.kv_pages, page_size=config.page_size))
        storage.save(policy, costs)
    return policy


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
