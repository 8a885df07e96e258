"""How much memory each GPU of a split has."""

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Memory:
    """sizes: of each GPU, in the order in which ranks, then the drafter, take them. source: given, cards or host."""

    sizes_bytes: tuple[int, ...]
    source: str

    @property
    def gpus(self) -> int:
        return len(self.sizes_bytes)

    @property
    def on_cpu(self) -> bool:
        return self.source == "host"


def find_memory(gpus: int | None, given_bytes: int | None) -> Memory:
    """Without a size and without cards, the host's memory is shared out. Raises ValueError for more GPUs than cards."""
    if given_bytes is not None:
        return Memory(sizes_bytes=(given_bytes,) * (gpus or _cards() or 1), source="given")
    cards = _cards()
    if not cards:
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Memory(sizes_bytes=(host // (gpus or 1),) * (gpus or 1), source="host")
    if gpus is not None and gpus > cards:
        raise ValueError(f"--gpus: {gpus} asked for, {cards} found; --gpu-memory plans for GPUs that are elsewhere")
    sizes = (torch.cuda.get_device_properties(card).total_memory for card in range(gpus or cards))
    return Memory(sizes_bytes=tuple(sizes), source="cards")


def _cards() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
