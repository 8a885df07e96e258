from pathlib import Path

import pytest

from draftwood_drafter.config import DrafterConfig, Head, parse_config

REQUIRED = ["--target", "t", "--draft", "d", "--verifier", "127.0.0.1:1"]


def test_command_line() -> None:
    options = ["--context-pages", "7", "--node-limit", "32", "--id", "d1", "--threads", "1", "--head", "verifier"]
    assert parse_config([*REQUIRED, *options]) == DrafterConfig(
        target=Path("t"),
        draft=Path("d"),
        verifier="127.0.0.1:1",
        context_pages=7,
        node_limit=32,
        id="d1",
        threads=1,
        head=Head.VERIFIER,
    )
    assert parse_config(REQUIRED).head is Head.DRAFTER


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("node-limit", "0"),
        ("node-limit", "257"),
        ("context-pages", "0"),
        ("page-size", "0"),
        ("threads", "-1"),
        ("head", "target"),
    ],
)
def test_wrong_values_name_the_option(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config([*REQUIRED, "--" + option, value])
    assert option.replace("-", "_") in capsys.readouterr().err
