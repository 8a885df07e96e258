import torch


def combine_experts(
    outputs: torch.Tensor, weights: torch.Tensor, places: torch.Tensor, end: torch.Tensor
) -> torch.Tensor:
    by_pair = outputs.index_select(0, places).float() * weights.view(-1, 1)
    # Not by a weight of zero: nobody's outputs may be NaN.
    by_pair.masked_fill_((places >= end)[:, None], 0)
    return by_pair.view(*weights.shape, outputs.shape[1]).sum(dim=1).to(outputs.dtype)
