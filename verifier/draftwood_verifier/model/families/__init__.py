"""The registry: every file here is a family and holds one `FAMILY`. How to write one: docs/adding-a-model.md."""

from importlib import import_module
from pkgutil import iter_modules

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_verifier.model.family import Family


def family_of(model_type: str) -> Family:
    """Raises UnsupportedConfig for a model type that no family claims."""
    families = _families()
    if model_type not in families:
        raise UnsupportedConfig(f"config.json: model_type: {model_type!r} is not one of {', '.join(sorted(families))}")
    return families[model_type]


def _families() -> dict[str, Family]:
    found: dict[str, Family] = {}
    for module in iter_modules(__path__):
        family: Family = import_module(f"{__name__}.{module.name}").FAMILY
        for model_type in family.model_types:
            assert model_type not in found, f"{model_type}: claimed by two families, one of them {module.name}"
            found[model_type] = family
    return found
