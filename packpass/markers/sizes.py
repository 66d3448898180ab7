"""Fakes of what markers return: sizes that nobody knows, and tensors that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from packpass._compat import current_shape_env, free_unbacked_symbols, statically_known_true
from packpass.semantics.memory import share_memory


def fresh_size() -> torch.SymInt:
    size = current_shape_env().create_unbacked_symint()
    torch._check(size >= 0)
    return size


def ragged_like(
    x: torch.Tensor, fresh_dims: Sequence[int] = (), others: Sequence[torch.Tensor] = (), total: int | None = None
) -> torch.Tensor:
    """An empty tensor like ``x`` whose unbacked sizes, and ``fresh_dims``, are new unknown sizes; sizes that all
    ``others``, if there are any, have as well are those of all documents. ``total``: the dimension along which the
    entries of a list are put together."""
    sizes: list[int | torch.SymInt] = []
    for d, s in enumerate(x.shape):
        unknown = _is_unknown(s)
        alike = [other for other in others if other.dim() == x.dim()]
        if alike:
            unknown = not all(statically_known_true(s == other.shape[d]) for other in alike)
        if d == total:
            sizes.append(total_size(x))
        else:
            sizes.append(fresh_size() if unknown or d in fresh_dims else s)
    return x.new_empty(sizes)


def _is_unknown(size: int | torch.SymInt) -> bool:
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def part_like(x: torch.Tensor, lengths: torch.Tensor, index: int | torch.SymInt, dim: int) -> torch.Tensor:
    """A part that ``x`` is split into by ``lengths``: parts with one number of several rows are equally long, which
    some calls of Python ask (``target.size() != input.size()``), until the lengths are changed."""
    known = _known_parts(lengths)
    key = index.node.expr if isinstance(index, torch.SymInt) else index
    if key not in known:
        known[key] = fresh_size()
    sizes = [fresh_size() if d != dim % x.dim() and _is_unknown(s) else s for d, s in enumerate(x.shape)]
    sizes[dim] = known[key]
    return x.new_empty(sizes)


def _known_parts(lengths: torch.Tensor) -> dict[Any, torch.SymInt]:
    """How long the parts are that something is split into by ``lengths``, by their numbers."""
    version, known = getattr(lengths, _PARTS, (None, None))
    if known is None or version != lengths._version:
        known = {}
        setattr(lengths, _PARTS, (lengths._version, known))
    return known


def note_copy(copy: torch.Tensor, lengths: torch.Tensor) -> None:
    """``copy`` holds the same numbers, until one of both is changed: lists of them split alike."""
    setattr(copy, _PARTS, (copy._version, _known_parts(lengths)))


def sharing(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """``part``, which stands for a view of ``x``, or for what holds one."""
    share_memory(part, x)
    return part


def attention_like(query: torch.Tensor, *others: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What attention gives. Heads that the queries share have the results of all keys' heads, but for no token torch
    gives those of the queries: such a loop is not traced."""
    front = query.shape[:-2]
    for other in (*others, *((value,) if others else ())):
        if any(isinstance(a, int) and a == 1 and b != 1 for a, b in zip(front, other.shape[:-2], strict=False)):
            raise RuntimeError("attention of one head, or one row, of queries to several of keys")
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def kept_size(mask: torch.Tensor) -> torch.SymInt:
    """How many slots a mask keeps: as many of every row, which some calls of Python ask (``target.size() !=
    input.size()``), until the mask is changed."""
    version, size = getattr(mask, _KEPT, (None, None))
    if size is None or version != mask._version:
        size = fresh_size()
        setattr(mask, _KEPT, (mask._version, size))
    return size


_KEPT, _TOTAL, _PARTS = "_packpass_kept", "_packpass_total", "_packpass_parts"


def note_total(collected: torch.Tensor, totals: list[torch.SymInt]) -> None:
    """What a list stands for: how long its entries are together; of all lists with ``totals``, as long."""
    setattr(collected, _TOTAL, totals)


def total_size(collected: torch.Tensor) -> torch.SymInt:
    """How long the entries of a list are together."""
    totals: list[torch.SymInt] = getattr(collected, _TOTAL, [])
    if not totals:
        totals.append(fresh_size())
    return totals[0]
