"""``packpass.packed``: say which dimension of a tensor is packed by which boundaries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from packpass.ops._arguments import check_boundaries, check_dim, check_same_documents, check_tensor
from packpass.ops._packed import packed_op


def packed(
    x: Tensor,
    cu_seqlens: Tensor,
    dim: int = -1,
    cu_seqlens_padded: Tensor | None = None,
    cp_group: Any = None,
) -> Tensor:
    """Declare the layout of ``x``: documents lie one after the other along ``dim``. Returns ``x``.

    The declaration holds for every tensor that is computed from ``x`` token by token (embedding, linear layers,
    normalisation, elementwise ops, attention), so one call at the top of a model is enough. Naive shifts of such
    tensors become boundary-aware, see ``{"packpass.fix_shifts": ...}``. Without packpass it does nothing.

    Args:
        x: any dtype; ``T`` slots along ``dim``.
        cu_seqlens: boundaries in slots, int32 or int64, ``[N+1]``, nondecreasing, within [0, T], on the device of x.
        dim: the packed dimension of ``x``.
        cu_seqlens_padded: physical boundaries where documents have padded slots, as for
            :func:`packpass.ops.packed_roll`; same dtype and length as ``cu_seqlens``.
        cp_group: the context-parallel process group over which ``x`` is sharded (zigzag), or None.

    Raises:
        TypeError, ValueError: an argument cannot be what it should be; the message names it. When a model is compiled:
            two declarations of the same tokens contradict each other; the message names both places.
    """
    check_tensor("x", x)
    at = check_dim(x, dim)
    check_boundaries("cu_seqlens", cu_seqlens, device=x.device)
    if cu_seqlens_padded is not None:
        check_boundaries("cu_seqlens_padded", cu_seqlens_padded, device=x.device)
        check_same_documents(cu_seqlens, cu_seqlens_padded)
    group = "" if cp_group is None else _group_name(cp_group)
    if not torch.compiler.is_compiling() and not has_torch_function((x,)):
        return x  # where nobody reads the declaration
    out: Tensor = packed_op(x, cu_seqlens, at - x.dim(), cu_seqlens_padded, group)
    return out


def _group_name(group: Any) -> str:
    name = getattr(group, "group_name", None)
    if not isinstance(name, str):
        raise TypeError(f"cp_group must be a torch.distributed process group or None, got {type(group).__name__}")
    return name
