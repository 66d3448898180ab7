"""``packed`` (internal): the mark that `packpass.packed` leaves in a graph; an alias of its input.

The layout analysis reads it and the passes remove it. Other backends compile it to nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._library import LIBRARY, Op


def _alias(x: Tensor, cu_seqlens: Tensor, dim: int, cu_seqlens_padded: Tensor | None, group: str) -> Tensor:
    out: Tensor = torch.ops.aten.alias.default(x)
    return out


LIBRARY.define(
    "packed(Tensor(a) x, Tensor cu_seqlens, int dim, Tensor? cu_seqlens_padded, str group) -> Tensor(a)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.impl("packed", _alias, "CompositeImplicitAutograd")
LIBRARY.impl("packed", _alias, "FuncTorchBatchedDecomposition")  # torch.vmap asks for it apart
packed_op: Op = torch.ops.packpass.packed.default
