import json
from pathlib import Path

import pytest

from draftwood_drafter.training.corpus import Document, folder, split, standard_library
from draftwood_drafter.training.prompts import held_out_prompts, read_prompts, write_prompts
from draftwood_drafter.training.tokenizer import MASK, SPECIALS, train_tokenizer


def test_split_is_by_document_disjoint_and_stable() -> None:
    documents = standard_library()
    train, held_out = split(documents)
    assert {d.name for d in train}.isdisjoint({d.name for d in held_out})
    assert len(train) + len(held_out) == len(documents)
    assert 0.02 < len(held_out) / len(documents) < 0.06
    again = [Document(name=d.name, text="other text") for d in documents]
    assert [d.held_out for d in again] == [d.held_out for d in documents]


def test_held_out_prompts_come_from_held_out_documents_only(tmp_path: Path) -> None:
    _, held_out = split(standard_library())
    prompts = held_out_prompts(held_out, 40)
    texts = {d.name: d.text for d in held_out}
    assert len({p["id"] for p in prompts}) == 40
    assert all(p["prompt"] in texts[p["id"].rsplit(":", 1)[0]] for p in prompts)
    write_prompts(prompts, tmp_path / "prompts.jsonl")
    assert read_prompts(tmp_path / "prompts.jsonl") == [p["prompt"] for p in prompts]


def test_folder_reads_text_and_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 100)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + json.dumps({"text": "two"}) + "\n")
    assert [d.name for d in folder(tmp_path)] == ["a.txt", "b.jsonl:1", "b.jsonl:2"]


@pytest.mark.parametrize("line", ['{"txt": "one"}', "[]"])
def test_folder_names_the_line_that_is_wrong(tmp_path: Path, line: str) -> None:
    (tmp_path / "b.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"b\.jsonl:1.*'text'"):
        folder(tmp_path)


def test_tokenizer_round_trips_any_text() -> None:
    tokenizer = train_tokenizer(["def f(x):\n    return x + 12\n"] * 50, 300)
    for text in ("def g(y):\n\treturn 345", "héllo 🌲 世界\r\n", "\x00\x7f  tail  "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert [tokenizer.token_to_id(s) for s in SPECIALS] == [0, 1, 2, 3]
    assert tokenizer.token_to_id(MASK) == 1
