"""Entries of lists of None (`packpass.capture.nothing`): known as soon as there are any."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import packpass


def third_weight(x: Tensor, cu: Tensor) -> Tensor:
    outputs, weights = [], []
    for i in range(len(cu) - 1):
        outputs.append(x[cu[i] : cu[i + 1]].flip(0))
        weights.append(None)
    return torch.cat(outputs) if weights[2] is None else x


def test_a_list_that_is_too_short() -> None:
    """Eager raises IndexError; nothing else may come of it, however many documents the first call had."""
    torch._dynamo.reset()
    compiled = torch.compile(third_weight, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x = torch.randn(9)
    for bounds in ((0, 4, 6, 9), (0, 1, 2, 5, 9)):
        assert torch.equal(compiled(x, torch.tensor(bounds)), third_weight(x, torch.tensor(bounds)))
    for bounds in ((0, 4, 9), (0, 9)):
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, torch.tensor(bounds))
