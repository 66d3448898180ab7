"""``must_hold`` (internal): an assertion of a graph, outside of generated code.

    assert condition, message

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
# Without an output it would be dead code to every pass over a graph.
torch.fx.has_side_effect(must_hold_op)
