"""Programs whose ``assert`` pytest must not rewrite (it does so in test modules only)."""

from __future__ import annotations

from torch import Tensor


def asserting(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        assert e - s < 5
        out[:, s:e] = x[:, s:e].cumsum(1)
    return out
