"""Which card is a rank's own."""

import pytest

from draftwood_verifier.parallel.launch import own_device


@pytest.mark.parametrize(
    ("device", "local_rank", "own"),
    [
        ("cuda", "3", "cuda:3"),
        ("cuda", None, "cuda"),
        ("cuda:1", "3", "cuda:1"),
        ("cpu", "3", "cpu"),
    ],
)
def test_torchrun_numbers_the_cards(
    device: str, local_rank: str | None, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert own_device(device) == own
