import torch


def commit_kv(scratch: torch.Tensor, pages: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    pages.index_copy_(1, slots, scratch.index_select(1, rows))
