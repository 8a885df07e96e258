"""python -m draftwood_verifier: serve one target model until SIGTERM or SIGINT; under torchrun, on several ranks."""

import asyncio
import json
import logging
import signal
import sys

import torch

from draftwood_checkpoint.model_config import tokenizer_fingerprint
from draftwood_kernels.placement import Placement, placement_of
from draftwood_verifier.budget import storage
from draftwood_verifier.budget.first_policy import costs_file, first_policy
from draftwood_verifier.config import VerifierConfig, parse_config
from draftwood_verifier.parallel.groups import Group, GroupLost
from draftwood_verifier.parallel.launch import is_follower, joined, own_device
from draftwood_verifier.parallel.lifeline import end_process
from draftwood_verifier.ranks import Leader, follow
from draftwood_verifier.runner import Runner, load_runner
from draftwood_verifier.service import VerifierService
from draftwood_wire.errors import DraftwoodError
from draftwood_wire.heap import settle_heap

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(config: VerifierConfig, placement: Placement, group: Group | None) -> None:
    """Load, listen, say so on stdout, and stop in order when told to."""
    stop = asyncio.Event()
    for name in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    runner = _load(config, placement, group)
    leader = Leader(runner, group) if group else None
    costs = costs_file(config, placement, ranks=group.size if group else 1)
    policy = first_policy(config, leader or runner, costs)
    service = VerifierService(
        config, leader or runner, policy, tokenizer_fingerprint=tokenizer_fingerprint(config.target)
    )
    await service.start()
    settle_heap()
    host = config.listen.rpartition(":")[0]
    metrics = {"metrics": service.telemetry.metrics_address} if config.metrics else {}
    print(json.dumps({"event": "listening", "address": f"{host}:{service.port}", **metrics}), flush=True)
    stopped, failed = asyncio.create_task(stop.wait()), asyncio.create_task(service.failure())
    await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        _raise_failure(failed)
    failed.cancel()
    await service.stop()
    storage.save(policy, costs)
    if leader:
        leader.stop()


def _raise_failure(failed: "asyncio.Task[None]") -> None:
    try:
        failed.result()
    except GroupLost as error:
        # While calls are still open: they break, and a gateway goes on elsewhere. Unwinding would cancel them.
        end_process(str(error))


def _run(config: VerifierConfig) -> None:
    placement = placement_of(own_device(config.device), deterministic=config.deterministic)
    with joined() as group:
        if group is None or group.leads:
            asyncio.run(serve(config, placement, group))
        else:
            runner = _load(config, placement, group)
            settle_heap()
            follow(runner, group)


def _load(config: VerifierConfig, placement: Placement, group: Group | None) -> Runner:
    pages, page_size, rejection = config.kv_pages, config.page_size, config.rejection
    if not placement.is_gpu:
        return load_runner(config.target, pages=pages, page_size=page_size, group=group, rejection=rejection)
    # Only here: it needs triton.
    from draftwood_verifier.gpu.runner import load_gpu_runner  # noqa: PLC0415

    torch.cuda.set_device(placement.device)
    return load_gpu_runner(config.target, placement, pages=pages, page_size=page_size, group=group, rejection=rejection)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = parse_config()
    if config.threads:
        torch.set_num_threads(config.threads)
    if is_follower():
        # Whoever ends the service tells all of its processes; these are needed until rank 0 is done.
        for name in _SIGNALS:
            signal.signal(name, signal.SIG_IGN)
    try:
        _run(config)
    except GroupLost as error:
        end_process(str(error))
    except (DraftwoodError, ValueError, OSError) as error:
        print(f"draftwood_verifier: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
