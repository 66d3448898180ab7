"""``must_hold`` and ``must_be_some`` (internal): an assertion of a graph, outside of generated code.

    assert condition, message
    assert number > 0, message

In C++ that Inductor generates for several threads an assertion is thrown out of an OpenMP region, which ends the
process instead of raising.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._library import define


def _kernel(condition: Tensor, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


must_hold_op = define(
    "must_hold(Tensor condition, str message) -> ()", fake=lambda condition, message: None, kernel=_kernel
)


def _nothing(number: int, message: str) -> Tensor:
    return torch.empty(0)


def _some_kernel(number: int, message: str) -> Tensor:
    if number <= 0:
        raise RuntimeError(message)
    return torch.empty(0)


# An empty tensor, which nobody uses: Inductor writes C++ that waits to be called only in front of a call that has a
# device, and frees the memory of that C++ behind any call.
must_be_some_op = define("must_be_some(SymInt number, str message) -> Tensor", fake=_nothing, kernel=_some_kernel)
# Without an output they would be dead code to every pass over a graph.
torch.fx.has_side_effect(must_hold_op)
torch.fx.has_side_effect(must_be_some_op)
