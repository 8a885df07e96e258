import torch


def rotate_halves(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """cos and sin [N, 1, D / 2]."""
    left, right = heads.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def rotate_pairs(heads: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """phases complex64 [N, 1, D / 2]."""
    pairs = torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * phases).flatten(-2)
