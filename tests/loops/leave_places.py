"""Look-alikes of totals in dicts and objects, and of totals that know each other: somebody sees them on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="every document reads the total of those before")
def entry_that_is_read(x: Tensor, cu: Tensor) -> Any:
    out, found = x.clone(), {"loss": x.new_zeros(())}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] + found["loss"]
        found["loss"] = found["loss"] + x[s:e].sum()
    return out, found["loss"]


@leave("f[T] cu", must_refuse=True, why="every document reads all entries of the dict")
def entry_that_is_read_among_all(x: Tensor, cu: Tensor) -> Any:
    out, found = x.clone(), {"loss": x.new_zeros(())}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found["loss"] = found["loss"] + x[s:e].sum()
        out[s:e] = x[s:e] + sum(found.values())
    return out


@leave("f[T] cu", must_refuse=True, why="the entry is that of the last document")
def entry_of_the_last_document(x: Tensor, cu: Tensor) -> Any:
    found = {"last": x.new_zeros(())}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found["last"] = x[s:e].sum()
    return found["last"]


@leave("f[T] cu", must_refuse=True, why="another name of the dict makes the total smaller with every document")
def entry_that_decays_by_another_name(x: Tensor, cu: Tensor) -> Any:
    found = {"loss": x.new_zeros(())}
    same = found
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found["loss"] = found["loss"] + x[s:e].sum()
        same["loss"] = same["loss"] * 0.5
    return found["loss"]


class Checked:
    def __init__(self) -> None:
        object.__setattr__(self, "loss", 0.0)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 0.5)


@leave("f[T] cu", why="the object says itself what storing means")
def object_with_its_own_way_to_store(x: Tensor, cu: Tensor) -> Any:
    state = Checked()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        state.loss = state.loss + x[s:e].sum()
    return state.loss


@leave("f[T] cu", must_refuse=True, why="the sum begins in memory that the other total is added to")
def entry_that_shares_its_memory(x: Tensor, cu: Tensor) -> Any:
    count = x.new_zeros(())
    found = {"loss": count}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found["loss"] += x[s:e].sum()
        count = count + 1
    return found["loss"], count


@leave("f[T] cu", must_refuse=True, why="the row begins in memory that the total is added to")
def row_that_begins_with_the_total(x: Tensor, cu: Tensor) -> Any:
    total = x.new_zeros(1)
    row = total
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].detach().sum()
        row = torch.cat((row, x[s:e]))
    return total, row


@leave("f[T] cu", must_refuse=True, why="of equal documents each has a share of the gradient, by their order")
def largest_with_a_gradient(x: Tensor, cu: Tensor) -> Tensor:
    most = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        most = torch.maximum(most, x[s:e].sum())
    return most


@leave("f[T] cu", must_refuse=True, why="every document reads the largest of those before")
def largest_of_those_before(x: Tensor, cu: Tensor) -> Any:
    out, most = x.clone(), torch.zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        most = torch.maximum(most, x[s:e].detach().sum())
        out[s:e] = x[s:e] / (1 + most)
    return out


@leave("f[T] cu", must_refuse=True, why="the larger of the sum and a shrinking bound")
def largest_that_shrinks(x: Tensor, cu: Tensor) -> Tensor:
    most = torch.ones(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        most = torch.maximum(most * 0.5, x[s:e].detach().sum())
    return most


@leave("f[T] cu", must_refuse=True, why="the entries are unpacked while they grow")
def list_that_is_unpacked(x: Tensor, cu: Tensor) -> Any:
    found = [x.new_zeros(()), x.new_zeros(())]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found[0] = found[0] + x[s:e].sum()
        first, second = found
        found[1] = second + first
    return found


@leave("f[T] cu", must_refuse=True, why="documents add to one entry and to the other in turns")
def list_that_is_turned_around(x: Tensor, cu: Tensor) -> Any:
    found = [x.new_zeros(()), x.new_zeros(())]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found[0] = found[0] + x[s:e].sum()
        found.reverse()
    return found
