"""The Dockerfile and what it is built from. `make containers` builds and runs it; that takes root and minutes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployment.compose_project import COMPOSE, ROOT, read_project

DOCKERFILE = COMPOSE / "Dockerfile"
_STAGE = re.compile(r"^FROM (\S+) AS (\S+)$", re.MULTILINE)
_ARGUMENT = re.compile(r"^ARG (\w+)(?:=(.*))?$", re.MULTILINE)


def stages() -> dict[str, tuple[str, str]]:
    """Parent and text of each stage."""
    text = DOCKERFILE.read_text()
    found = list(_STAGE.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return {match[2]: (match[1], text[match.start() : end]) for match, end in zip(found, ends, strict=True)}


def lineage(name: str) -> str:
    """The text of a stage and of all that it is made from."""
    parent, text = stages()[name]
    return (lineage(parent) if parent in stages() else "") + text


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([program, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_service_is_built_from_a_stage_that_exists() -> None:
    arguments = {name for name, _ in _ARGUMENT.findall(DOCKERFILE.read_text())}
    built = [service["build"] for service in read_project(["cpu", "gpu"])["services"].values()]
    assert {build["target"] for build in built} == {"gateway", "verifier", "drafter"}
    for build in built:
        assert build["target"] in stages()
        assert set(build.get("args", {})) <= arguments
        assert ROOT / build["dockerfile"] == DOCKERFILE
        assert Path(build["context"]) == ROOT


@pytest.mark.parametrize("target", ["gateway", "verifier", "drafter"])
def test_services_run_as_nobody_special(target: str) -> None:
    users = re.findall(r"^USER (.+)$", lineage(target), re.MULTILINE)
    assert users == ["10001:10001"]


def test_the_base_has_a_version() -> None:
    values = dict(_ARGUMENT.findall(DOCKERFILE.read_text()))
    assert re.search(r":\d+\.\d+\.\d+-", values["PYTHON_IMAGE"])
    outside = {parent for parent, _ in stages().values()} - set(stages())
    assert outside == {"${PYTHON_IMAGE}"}


def test_the_build_gets_what_the_wheel_is_made_of() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert packages is not None
    for package in re.findall(r'"(\S+)"', packages[1]):
        assert package in allowed or package.partition("/")[0] in allowed, package
    assert {"pyproject.toml", "constraints.txt", "LICENSE", "README.md", "models"} <= allowed


def test_the_gateway_gets_no_torch() -> None:
    """Its image installs the package without the extra that brings torch."""
    assert "[models]" not in lineage("gateway-environment")
    assert "[models]" in lineage("models-environment")
    code = "import sys, draftwood_gateway.__main__, draftwood.health; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
