"""Documents to train on, and their split into train and held-out parts.

The embedded pair learns from the Python standard library of the interpreter that runs this (PSF licence). The split
is by document and depends on a document's name alone, so that no text is on both sides and every machine agrees.
"""

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_PERCENT = 4
_MAX_DOCUMENT_BYTES = 200_000
# Tables and generated data: they teach nothing and drown the rest.
_SKIPPED = (
    "site-packages",
    "encodings",
    "pydoc_data",
    "lib2to3/tests/data",
    "idlelib/idle_test",
    "test/cjkencodings",
    "test/support/_hypothesis_stubs",
    "__pycache__",
    "config-",
)


@dataclass(frozen=True, kw_only=True)
class Document:
    name: str
    text: str

    @property
    def held_out(self) -> bool:
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def standard_library() -> list[Document]:
    """The `*.py` files of this interpreter's standard library, sorted by path."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    kept = [name for name in names if not any(part in name for part in _SKIPPED)]
    return [document for name in kept if (document := _read(root / name, name)) is not None]


def folder(root: Path) -> list[Document]:
    """The `*.py`, `*.txt` and `*.md` files below `root`, and each line of its `*.jsonl` files (key `text`)."""
    documents = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix in {".py", ".txt", ".md"}:
            document = _read(path, name)
            documents += [document] if document is not None else []
        elif path.suffix == ".jsonl":
            documents += list(_read_lines(path, name))
    if not documents:
        raise ValueError(f"{root}: no .py, .txt, .md or .jsonl document to train on")
    return documents


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """(train, held-out)."""
    return [d for d in documents if not d.held_out], [d for d in documents if d.held_out]


def _read(path: Path, name: str) -> Document | None:
    data = path.read_bytes()
    if not 200 <= len(data) <= _MAX_DOCUMENT_BYTES:
        return None
    try:
        return Document(name=name, text=data.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def _read_lines(path: Path, name: str) -> Iterator[Document]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        record = json.loads(line)
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise ValueError(f"{path}:{number}: each line must be an object with a string 'text'")
        yield Document(name=f"{name}:{number}", text=record["text"])
