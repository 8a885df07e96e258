"""The committed gRPC stubs are what `make stubs` would write, and the schemas pass buf's STANDARD rules."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STUBS = Path("draftwood_wire/v1")
# protoc finds its mypy plugin, and we buf, beside the interpreter of the environment.
SCRIPTS = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}


def stubs_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / STUBS).glob("*_pb2*"))}


def test_committed_stubs_are_fresh(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "protos" / "generate.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=ENVIRONMENT)
    fresh, committed = stubs_in(tmp_path), stubs_in(ROOT / "protos")
    assert fresh.keys() == committed.keys()
    stale = [name for name, text in fresh.items() if committed[name] != text]
    assert not stale, f"run `make stubs`: {stale}"


def test_every_service_has_typed_stubs() -> None:
    names = stubs_in(ROOT / "protos")
    for service in ("gateway", "verifier", "drafter"):
        assert {f"{service}_service_pb2.pyi", f"{service}_service_pb2_grpc.pyi"} <= names.keys()


def test_schemas_pass_buf_lint() -> None:
    result = subprocess.run(
        [SCRIPTS / "buf", "lint", str(ROOT / "protos")], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
