"""Generate the gRPC stubs: `python protos/generate.py [output root]`; by default they land beside the schemas."""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent


def generate(output: Path) -> None:
    """Write `*_pb2.py`, `*_pb2.pyi`, `*_pb2_grpc.py` and `*_pb2_grpc.pyi` of every schema under `output`."""
    schemas = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("draftwood_wire/v1/*.proto"))
    services = [name for name in schemas if name.endswith("_service.proto")]
    include = f"-I{files('grpc_tools') / '_proto'}"
    plain = ["protoc", f"-I{ROOT}", include, f"--python_out={output}", f"--pyi_out={output}", *schemas]
    grpc = ["protoc", f"-I{ROOT}", include, f"--grpc_python_out={output}", f"--mypy_grpc_out={output}", *services]
    for command in (plain, grpc):
        if protoc.main(command) != 0:
            raise SystemExit(f"protoc failed on {command}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
