"""Documents that write into a row what is worked out for every two slots, and must keep eager's results."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


def _overlapping(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Documents that share slots, so that the last one to write counts."""
    ends = cu[1:].long()
    return x, (cu[:-1].long() - 1).clamp(min=0), ends


def _without_gradient(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach(), cu


@leave("f[T,2] cu", wrap=_overlapping, exact=False, must_refuse=True, why="slot by slot")
def pairs_written_one_over_the_other(x: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(starts.tolist(), ends.tolist()):
        out[s:e] = (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ x[s:e]
    return out


@leave("f[T,2] cu", exact=False, must_refuse=True, why="is looked at in the loop")
def pairs_and_what_was_written_before(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ x[s:e] + out.sum() * 0.1
    return out


@leave("f[T,2] cu", exact=False, must_refuse=True, why="slot by slot")
def pairs_written_beyond_the_document(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0] + 1, 2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s : e + 1] = ((x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ x[s:e]).sum(0)
    return out


@leave("f[T,2] cu", exact=False, must_refuse=True, why="slot by slot")
def pairs_written_twice(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ x[s:e]
        out[s:e] = out[s:e].cumsum(0)
    return out


@leave("f[T,2] cu", exact=False, wrap=_without_gradient, mutates=True, must_refuse=True, why="slot by slot")
def pairs_written_where_they_came_from(x: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        x[s:e] = (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ x[s:e]
    return x


@leave("f[T,2] cu")
def places_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[torch.arange(e - s).flip(0)])
    return torch.cat(outs)


@leave("f[T,4] cu", must_refuse=True, why="a view is used after")
def chunks_of_a_copy_that_is_written_to(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].detach().clone()
        first, second = own.chunk(2, -1)
        own[:, :2] = 0
        outs.append(torch.cat((first, second), -1))
    return torch.cat(outs)


@leave("f[T,4] cu", must_refuse=True, why="a view is used after")
def rows_of_a_copy_that_is_written_to(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].detach().clone()
        first, second, *_ = own.split([1, 2, 1], 1)
        own[:, :2] = 1
        out[s:e] = first + second.sum(1, keepdim=True)
    return out


@leave("f[T,2] cu", wrap=_without_gradient, exact=False, must_refuse=True, why="is looked at in the loop")
def own_slots_read_behind_the_write(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    out, rows = x.clone(), [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = out[s:e]
        out[s:e] = (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ d
        rows.append(d * 2)
    return torch.cat(rows), out


@leave("f[T,2] cu", wrap=_without_gradient, exact=False, must_refuse=True, why="is looked at in the loop")
def a_view_of_own_slots_is_collected(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    out, rows = x.clone(), [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = out[s:e]
        rows.append(d)
        out[s:e] = (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ d
    return torch.cat(rows), out


@leave("f[T,2] cu", wrap=_without_gradient, exact=False, must_refuse=True, why="changes a tensor in place")
def a_column_seen_behind_a_change(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    out, rows = x.clone(), [x[:0, :1]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = out[s:e]
        column = d[:, :1]
        d += (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ x[s:e]
        rows.append(column * 3)
    return torch.cat(rows), out


@leave("f[T,2] cu", wrap=_without_gradient, exact=False, must_refuse=True, why="changes a tensor in place")
def own_slots_changed_twice(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = out[s:e]
        d += (x[s:e, None, 0] - x[None, s:e, 0]).tanh() @ x[s:e]
        d *= 2
    return out


@leave("f[T,2] cu", wrap=_without_gradient, exact=False, must_refuse=True, why="is looked at in the loop")
def pairs_of_all_as_it_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    rate = out[:, 0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] += (rate[s:e, None] - rate[None, s:e]).tanh() @ x[s:e]
    return out
