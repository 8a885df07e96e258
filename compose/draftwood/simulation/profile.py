"""A machine, its models and its load as numbers: a JSON file, shipped ones in `profiles/`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftwood.simulation.acceptance import RoundKind
from draftwood.simulation.cost import DraftCost, StepCost

_SHIPPED = Path(__file__).parent / "profiles"


@dataclass(frozen=True, kw_only=True)
class Known:
    """A speed that was measured on the real machine, to hold the simulation against."""

    clients: int
    mode: str
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """`provenance` says of each part who measured, fitted or guessed it. Prompt and output tokens are log-uniform in
    their ranges; `node_limit` is the largest tree that auto may look at; `round_trip_s` is the way to the drafter and
    back.
    """

    name: str
    provenance: dict[str, str]
    step: StepCost
    draft: DraftCost
    round_trip_s: float
    acceptance: tuple[RoundKind, ...]
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    node_limit: int
    prefill_chunk: int
    max_batch: int
    known: tuple[Known, ...] = ()

    def __post_init__(self) -> None:
        if not self.acceptance:
            raise ValueError("acceptance: must have a kind of round")
        if self.node_limit < 1 or self.prefill_chunk < 1 or self.max_batch < 1 or self.round_trip_s < 0:
            raise ValueError("node_limit, prefill_chunk, max_batch: at least 1; round_trip_s: at least 0")
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name}: shortest and longest, 1 or more")


def shipped_profiles() -> list[str]:
    return sorted(file.stem for file in _SHIPPED.glob("*.json"))


def load_profile(name: str) -> Profile:
    """A shipped profile by name, or a file. Raises ValueError when it is neither, or breaks a rule."""
    shipped = _SHIPPED / f"{name}.json"
    path = shipped if shipped.exists() else Path(name)
    if not path.is_file():
        raise ValueError(f"profile {name!r} is no file and none of {', '.join(shipped_profiles())}")
    try:
        return parse_profile(json.loads(path.read_text()))
    except (KeyError, TypeError) as error:
        raise ValueError(f"profile {path}: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"profile {path}: {error}") from error


def parse_profile(data: dict[str, Any]) -> Profile:
    step, draft = data.pop("step"), data.pop("draft")
    return Profile(
        step=StepCost(
            rows=tuple(step["rows"]),
            context=tuple(step["context"]),
            seconds=tuple(map(tuple, step["seconds"])),
            session_seconds=tuple(step["session_seconds"]),
        ),
        draft=DraftCost(sessions=tuple(draft["sessions"]), seconds=tuple(draft["seconds"])),
        acceptance=tuple(
            RoundKind(share=kind["share"], ranks=tuple(map(tuple, kind["ranks"]))) for kind in data.pop("acceptance")
        ),
        known=tuple(Known(**known) for known in data.pop("known", ())),
        prompt_tokens=_pair(data.pop("prompt_tokens")),
        output_tokens=_pair(data.pop("output_tokens")),
        **data,
    )


def save_profile(profile: Profile, path: Path) -> None:
    path.write_text(json.dumps(asdict(profile), indent=1) + "\n")


def _pair(numbers: list[int]) -> tuple[int, int]:
    low, high = numbers
    return low, high
