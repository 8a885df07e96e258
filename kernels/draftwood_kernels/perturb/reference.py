import numpy as np
import torch

from draftwood_kernels.perturb.rows import NoiseRows
from draftwood_kernels.sample import gumbel


def perturb_rows(logits: torch.Tensor, rows: NoiseRows) -> torch.Tensor:
    out = logits.to(torch.float32, copy=True)
    seeds = rows.seeds.numpy().view(np.uint64).tolist()
    wishes = zip(rows.temperatures.tolist(), seeds, rows.positions.tolist(), rows.is_seeded.tolist(), strict=True)
    for row, (temperature, seed, position, is_seeded) in zip(out, wishes, strict=True):
        if temperature > 0:
            row /= temperature
            if is_seeded:
                row += torch.from_numpy(gumbel(seed, position, logits.shape[1]))
    return out
