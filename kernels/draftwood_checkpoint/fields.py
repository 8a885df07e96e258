"""Reading config.json: every complaint names the field."""

import json
from pathlib import Path
from typing import Any

from draftwood_checkpoint.errors import CheckpointError, UnsupportedConfig

# What a JSON object becomes.
Fields = dict[str, Any]


def read_fields(path: Path) -> Fields:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: not there") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return fields


def positive_int(fields: Fields, name: str, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedConfig(f"config.json: {name}: {value!r} is not a positive integer")
    return value
