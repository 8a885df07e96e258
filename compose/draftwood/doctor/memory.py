"""How much memory there is for each GPU of a split."""

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Memory:
    """of_each: of every GPU the same, the least of the cards found. source: given, cards or host."""

    gpus: int
    of_each_bytes: int
    source: str

    @property
    def on_cpu(self) -> bool:
        return self.source == "host"


def find_memory(gpus: int | None, given_bytes: int | None) -> Memory:
    """Without a size and without cards, the host's memory is shared out. Raises ValueError for more GPUs than cards."""
    if given_bytes is not None:
        return Memory(gpus=gpus or _cards() or 1, of_each_bytes=given_bytes, source="given")
    cards = _cards()
    if not cards:
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Memory(gpus=gpus or 1, of_each_bytes=host // (gpus or 1), source="host")
    if gpus is not None and gpus > cards:
        raise ValueError(f"--gpus: {gpus} asked for, {cards} found; --gpu-memory plans for GPUs that are elsewhere")
    sizes = [torch.cuda.get_device_properties(card).total_memory for card in range(cards)]
    return Memory(gpus=gpus or cards, of_each_bytes=min(sizes), source="cards")


def _cards() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
