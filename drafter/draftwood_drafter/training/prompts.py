"""Held-out prompts: beginnings of functions and classes from documents that training never saw."""

import json
import re
from pathlib import Path

from draftwood_drafter.training.corpus import Document

_START = re.compile(r"^(?=(?:    )?(?:def|class|async def) )", re.MULTILINE)
_CHARACTERS = 110
_PER_DOCUMENT = 3


def held_out_prompts(documents: list[Document], count: int) -> list[dict[str, str]]:
    """`count` prompts spread over documents and over each document's length.

    Each is whole lines of 110 characters or a little more, without the last line break: tokenizers merge a line break
    with the indentation that follows it, so a prompt must not end between the two.
    """
    prompts = []
    for document in documents:
        starts = [match.start() for match in _START.finditer(document.text)]
        for start in starts[:: max(1, len(starts) // _PER_DOCUMENT)][:_PER_DOCUMENT]:
            end = document.text.find("\n", start + _CHARACTERS)
            if end != -1:
                prompts.append({"id": f"{document.name}:{start}", "prompt": document.text[start:end]})
    step = max(1, len(prompts) // count)
    return prompts[::step][:count]


def write_prompts(prompts: list[dict[str, str]], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))


def read_prompts(path: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text("utf-8").splitlines()]
