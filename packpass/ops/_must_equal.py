"""``must_equal`` (internal): the comparison of ``packpass.verify`` of values that only a compiled graph knows.

    assert bits(got) == bits(want), what

It waits for a GPU, as everything under ``packpass.verify`` does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.decisions.records import VerificationError
from packpass.ops._library import define


def _kernel(got: Tensor, want: Tensor, what: str) -> None:
    if got.shape != want.shape or got.dtype != want.dtype:
        raise VerificationError(
            f"packpass.verify: {what} changed {tuple(want.shape)} {want.dtype} to {tuple(got.shape)} {got.dtype}"
        )
    wrong = ~((got == want) | ((got != got) & (want != want)))
    if wrong.any():
        raise VerificationError(
            f"packpass.verify: {what} changed {int(wrong.sum())} of {wrong.numel()} values. Please report this "
            'program; options={"packpass.disable": ["<rule>"]} avoids the rewrite.'
        )


def _fake(got: Tensor, want: Tensor, what: str) -> None:
    return None


must_equal_op = define("must_equal(Tensor got, Tensor want, str what) -> ()", fake=_fake, kernel=_kernel)
# Without an output it would be dead code to every pass over a graph.
torch.fx.has_side_effect(must_equal_op)
