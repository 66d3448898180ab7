"""A marker op for functions of Python on real numbers that are given a number of a document: ``math.log(n)``.

Torch has a symbolic form for some of them, and not for the logarithm. The op runs wherever the graph is replayed, on
Python's numbers and with Python's errors.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass._compat import current_shape_env
from packpass.semantics.reals import FUNCTIONS

_lib = torch.library.Library("packpass_capture", "FRAGMENT")
_lib.define("real(Scalar number, str function) -> Scalar", tags=(torch.Tag.pt2_compliant_tag,))


def _run(number: Any, function: str) -> float:
    return FUNCTIONS[function](number)


@torch.library.register_fake("packpass_capture::real", lib=_lib)
def _(number: Any, function: str) -> torch.SymFloat:
    return current_shape_env().create_unbacked_symfloat()


_lib.impl("real", _run, "CompositeExplicitAutograd")
REAL = torch.ops.packpass_capture.real.default
