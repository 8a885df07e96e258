"""The policy that a verifier starts with: costs that an earlier run measured, else a measurement of a few seconds."""

import logging
from pathlib import Path

import torch

from draftwood_kernels.placement import Placement
from draftwood_verifier.budget import storage
from draftwood_verifier.budget.cost_table import Axes, batch_axis
from draftwood_verifier.budget.policy import Policy
from draftwood_verifier.budget.startup import measure_costs, still_true
from draftwood_verifier.config import VerifierConfig
from draftwood_verifier.plan import Runner

_LOG = logging.getLogger(__name__)


def first_policy(config: VerifierConfig, runner: Runner, costs: Path) -> Policy:
    """Reads `costs`, or measures and writes it. Nobody may hold pages of the runner yet."""
    policy = storage.load(costs, groups=config.draft_groups)
    room = {"pages": config.kv_pages, "page_size": config.page_size}
    if policy is None or not still_true(policy.costs, runner, **room):
        axes = Axes(sequences=batch_axis(config.max_batch))
        _LOG.info("measuring step costs, kept in %s", costs)
        measured = measure_costs(runner, axes=axes, **room)
        policy = Policy(measured, groups=config.draft_groups)
        storage.save(policy, costs)
    return policy


def costs_file(config: VerifierConfig, placement: Placement, *, ranks: int) -> Path:
    """Where the measured costs of this target on this machine are kept."""
    if config.costs:
        return Path(config.costs)
    name = storage.file_name(
        config.target,
        software=torch.__version__,
        device=f"{placement.machine} x {ranks}",
        threads=torch.get_num_threads(),
        axes=Axes(sequences=batch_axis(config.max_batch)),
    )
    return storage.cache_folder() / name
