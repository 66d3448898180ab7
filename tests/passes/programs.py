"""Programs whose ``assert`` pytest must not rewrite (it does so in test modules only)."""

from __future__ import annotations

import torch
from torch import Tensor


def checked(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        assert e - s < 5
        torch._check(e >= s)
        out[s:e] = x[s:e].roll(1)
    return out
