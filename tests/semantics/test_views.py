"""Sizes in what views mean."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from packpass.semantics.views import divided


def test_a_size_that_is_zero_in_the_batch_at_hand_divides_nothing_known() -> None:
    """Documents may be empty: the number that stands for such a size is no divisor, and no error either."""
    shapes = ShapeEnv()
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    with FakeTensorMode(shape_env=shapes) as mode:
        some = mode.from_tensor(torch.zeros(6, 2), symbolic_context=context).shape[0]
    empty = some - 6
    assert divided(some * 2, empty) is None
    assert divided(some * 4, some) == 4
    assert divided(12, 0) is None
