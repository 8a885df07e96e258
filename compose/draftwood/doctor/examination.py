"""A target, a draft and the GPUs together: what fits, and what stands in the way."""

from dataclasses import dataclass
from pathlib import Path

from draftwood.doctor.draft import Draft, examine_draft
from draftwood.doctor.memory import Memory, find_memory
from draftwood.doctor.size import size
from draftwood.doctor.target import RankMemory, Target, examine_target
from draftwood_checkpoint.errors import CheckpointError
from draftwood_wire.errors import DraftwoodError

# The rest is for what comes and goes in a step, and for the device's own needs.
USABLE = 0.9
_GATEWAY_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, kw_only=True)
class Examination:
    """problems: each is enough to make it not servable. notes: worth knowing. kv_tokens: of all sessions together."""

    memory: Memory
    target: Target | None
    draft: Draft | None
    kv_tokens: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def servable(self) -> bool:
        return not self.problems

    @property
    def drafter_apart(self) -> bool:
        """Whether the drafter has a GPU of its own."""
        return self.draft is not None and self.memory.gpus > 1

    @property
    def idle_gpus(self) -> int:
        used = len(self.target.ranks) if self.target else 0
        return self.memory.gpus - used - self.drafter_apart


def examine(model: Path, draft: Path | None, *, gpus: int | None, memory_bytes: int | None) -> Examination:
    """Reads configs and headers. Never raises for what is wrong with the checkpoints: that is a problem it reports."""
    problems: list[str] = []
    try:
        memory = find_memory(gpus, memory_bytes)
    except ValueError as error:
        problems.append(str(error))
        memory = find_memory(None, None)
    target = found_draft = None
    try:
        most_ranks = memory.gpus - 1 if draft is not None and memory.gpus > 1 else memory.gpus
        target = examine_target(model, most_ranks=most_ranks, on_cpu=memory.on_cpu)
    except CheckpointError as error:
        problems.append(f"target: {error}")
    if draft is not None:
        try:
            found_draft = examine_draft(model, draft, on_cpu=memory.on_cpu)
        except (CheckpointError, DraftwoodError) as error:
            problems.append(str(error) if str(error).startswith(("draft:", "target:")) else f"draft: {error}")
    kv_tokens, lacking = _fit(memory, target, found_draft)
    return Examination(
        memory=memory,
        target=target,
        draft=found_draft,
        kv_tokens=kv_tokens,
        problems=(*problems, *lacking),
        notes=tuple(_notes(model, target)),
    )


def _fit(memory: Memory, target: Target | None, draft: Draft | None) -> tuple[int, list[str]]:
    """KV tokens that fit beside everything else, and what does not fit."""
    usable = int(memory.of_each_bytes * USABLE)
    draft_bytes = draft.weights_bytes + draft.context_bytes if draft else 0
    shared = memory.gpus == 1
    problems = []
    if draft_bytes > usable and not shared:
        problems.append(f"memory: the drafter needs {size(draft_bytes)} of a GPU, {size(usable)} are usable")
    if target is None:
        return 0, problems
    beside = draft_bytes if shared else 0
    tokens = min((usable - beside - _fixed_bytes(rank)) // rank.kv_a_token_bytes for rank in target.ranks)
    if tokens < 1:
        most = max(map(_fixed_bytes, target.ranks)) + beside
        problems.append(
            f"memory: {size(most)} of a GPU are taken before the first token's keys, {size(usable)} are usable: "
            "more GPUs, or larger ones"
        )
    return max(tokens, 0), problems


def _fixed_bytes(rank: RankMemory) -> int:
    return rank.weights_bytes + rank.step_bytes


def _notes(model: Path, target: Target | None) -> list[str]:
    missing = [name for name in _GATEWAY_FILES if not (model / name).is_file()]
    notes = [f"{name}: not in {model}; the gateway needs it (--tokenizer)" for name in missing]
    if target is not None:
        notes += [f"{count} ranks: {reason}" for count, reason in target.refused_ranks.items()]
    return notes
