"""``snapshot(x)``: a copy that the compiler may not recompute.

Gradients of packed ops need the boundaries of the forward. A training loop may refill the same ``cu_seqlens`` buffer
before it calls ``backward``; the loop over documents that was replaced did not mind, so neither may we. A plain clone
would not do: the partitioner saves its input and clones again in the backward. Inductor, which comes behind that,
copies in generated code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass._compat import register_inductor_pointwise
from packpass.ops._library import define


def _kernel(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _fake(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


snapshot_op = define("snapshot(Tensor x) -> Tensor", fake=_fake, kernel=_kernel)
register_inductor_pointwise(snapshot_op, lambda sizes: list(sizes), lambda ops, at, load: load(at))
