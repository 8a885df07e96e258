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
    usable = [int(each * USABLE) for each in memory.sizes_bytes]
    draft_bytes = draft.weights_bytes + draft.context_bytes if draft else 0
    if target is None:
        return 0, []
    problems = []
    beside, apart = (draft_bytes, 0) if memory.gpus == 1 else (0, draft_bytes)
    drafters = len(target.ranks)
    if apart and apart > usable[drafters]:
        problems.append(
            f"memory: the drafter needs {size(apart)} of GPU {drafters}, {size(usable[drafters])} are usable: "
            f"{_remedy(memory)}"
        )
    taken = [_fixed_bytes(rank) + beside for rank in target.ranks]
    rooms = [(usable[gpu] - taken[gpu]) // rank.kv_a_token_bytes for gpu, rank in enumerate(target.ranks)]
    tightest = rooms.index(min(rooms))
    if rooms[tightest] < 1:
        problems.append(
            f"memory: {size(taken[tightest])} of GPU {tightest} are taken before the first token's keys, "
            f"{size(usable[tightest])} are usable: {_remedy(memory)}"
        )
    return max(rooms[tightest], 0), problems


def _remedy(memory: Memory) -> str:
    if len(set(memory.sizes_bytes)) == 1:
        return "more GPUs, or larger ones"
    return "a larger one, or CUDA_VISIBLE_DEVICES to leave it out or have it come later"


def _fixed_bytes(rank: RankMemory) -> int:
    return rank.weights_bytes + rank.step_bytes


def _notes(model: Path, target: Target | None) -> list[str]:
    missing = [name for name in _GATEWAY_FILES if not (model / name).is_file()]
    notes = [f"{name}: not in {model}; the gateway needs it (--tokenizer)" for name in missing]
    if target is not None:
        notes += [f"{count} ranks: {reason}" for count, reason in target.refused_ranks.items()]
    return notes
