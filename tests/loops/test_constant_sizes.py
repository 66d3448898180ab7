"""Bodies that give their document a constant size work for the documents that eager works for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

BODIES: dict[str, Callable[[Tensor], Tensor]] = {
    "view_copy": lambda seg: torch.view_copy(seg, (2, 2)).flatten(),
    "view_copy of pairs": lambda seg: torch.view_copy(seg, (-1, 2)).flip(1).flatten(),
    "view": lambda seg: seg.view(2, 2).t().reshape(-1),
    "reshape": lambda seg: seg.reshape(4) * 2,
    "expand_copy": lambda seg: torch.expand_copy(seg, (3, 4)).sum(0),
    "unflatten": lambda seg: seg.unflatten(0, (2, 2)).flip(0).flatten(),
    "split_copy": lambda seg: torch.cat(torch.split_copy(seg, 2)[::-1]),
}


def looped(body: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for i in range(len(cu) - 1):
            s, e = cu[i], cu[i + 1]
            out[s:e] = body(x[s:e])
        return out

    return fn


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_equals_eager(name: str, symbolic: bool) -> None:
    torch._dynamo.reset()
    fn = looped(BODIES[name])
    options: dict[str, Any] = {"packpass.inner_backend": "eager", "packpass.symbolic_loops": symbolic}
    compiled = torch.compile(fn, backend=packpass.backend, options=options)
    for count in (3, 1, 5):
        x, cu = torch.arange(4.0 * count), torch.arange(0, 4 * count + 1, 4)
        assert torch.equal(compiled(x, cu), fn(x, cu)), count
