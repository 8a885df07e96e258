"""Where the embedded pair lies: `models/` of a checkout, or `draftwood/models` of an installed wheel."""

from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parent
_PLACES = (_PACKAGE.parents[1] / "models", _PACKAGE / "models")


@dataclass(frozen=True, kw_only=True)
class ModelPair:
    """Two checkpoint folders and the file of held-out prompts beside them."""

    target: Path
    drafter: Path
    prompts: Path


def embedded_pair() -> ModelPair:
    """The pair that ships with Draftwood; raises FileNotFoundError when it was left out of this installation."""
    for place in _PLACES:
        if (place / "target" / "config.json").exists():
            return ModelPair(
                target=place / "target", drafter=place / "drafter", prompts=place / "prompts" / "heldout.jsonl"
            )
    raise FileNotFoundError(f"the embedded pair is in neither {_PLACES[0]} nor {_PLACES[1]}")
