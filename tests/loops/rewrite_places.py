"""Loops that must be rewritten: totals, counters, offsets and rows in the entries of a dict or the attributes of an
object (`packpass.capture.places`), and the largest and smallest of all documents."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .harness import program


@program("f[T] cu", depends=False, reads=1)
def sums_in_a_dict(x: Tensor, cu: Tensor) -> Any:
    found = {"loss": 0.0, "square": x.new_zeros(()), "tokens": 0}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found["loss"] += x[s:e].sum()
        found["square"] = found["square"] + x[s:e].pow(2).sum()
        found["tokens"] += e - s
    return found["loss"] / (found["tokens"] + 1), found["square"]


@program("f[T] f[T] cu", depends=False)
def every_metric_of_a_document(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    total = {"error": torch.zeros(()), "size": torch.zeros(())}
    for s, e in zip(cu[:-1], cu[1:]):
        for name, value in {"error": (x[s:e] - y[s:e]).abs().sum(), "size": y[s:e].sum()}.items():
            total[name] = total[name] + value
    return total


@program("f[T,3] cu")
def offset_in_a_dict(x: Tensor, cu: Tensor) -> Any:
    out, state = torch.zeros_like(x), {"at": 0}
    for n in (cu[1:] - cu[:-1]).tolist():
        out[state["at"] : state["at"] + n] = x[state["at"] : state["at"] + n].cumsum(0)
        state["at"] += n
    return out


@dataclasses.dataclass
class Meter:
    loss: Any = 0.0
    documents: int = 0
    parts: list[Tensor] = dataclasses.field(default_factory=list)

    def add(self, part: Tensor) -> None:
        self.loss = self.loss + part.pow(2).sum()
        self.documents += 1
        self.parts.append(part.flip(0))


@program("f[T] cu", exact=False)
def meter_with_a_method(x: Tensor, cu: Tensor) -> Any:
    meter = Meter()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        meter.add(x[s:e])
    return torch.cat([x[:0], *meter.parts]), meter.loss / (1 + meter.documents)


@program("f[T] cu", depends=False)
def dict_in_two_loops_under_two_names(x: Tensor, cu: Tensor) -> Any:
    found = {"loss": x.new_zeros(())}
    same = found
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found["loss"] += x[s:e].sum()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        same["loss"] += x[s:e].abs().sum()
    return found["loss"], len(same)


@program("f[T] cu")
def largest_and_smallest_sum(x: Tensor, cu: Tensor) -> Any:
    x = x.detach()
    most, least = torch.tensor(float("-inf")), torch.zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        most = torch.maximum(most, x[s:e].sum())
        least = torch.min(x[s:e].sum(), least)
    return most, least


@program("f[T,3] cu", lead_empty=False)
def largest_that_begins_with_none(x: Tensor, cu: Tensor) -> Any:
    most: Any = None
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found = x[s:e].detach().sum(0)
        most = found if most is None else most.maximum(found)
    return most


@program("f[T] cu", depends=False)
def sum_by_a_method(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total.add(x[s:e].sum())
    return total


@program("f[T] cu", depends=False, reads=1)
def metrics_by_a_comprehension(x: Tensor, cu: Tensor) -> Any:
    found: dict[str, Any] = {"kl": 0.0, "entropy": x.new_zeros(()), "tokens": 0}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found["kl"] = found["kl"] + x[s:e].sum()
        found["entropy"] -= x[s:e].abs().sum()
        found["tokens"] += e - s
    return {name: value / max(found["tokens"], 1) for name, value in found.items() if name != "tokens"}


@program("f[T,3] cu", exact=False, depends=False)
def sums_in_a_list(x: Tensor, cu: Tensor) -> Any:
    found: list[Any] = [0.0, 0, x.new_zeros(3)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found[0] = found[0] + x[s:e].pow(2).sum()
        found[1] += 1
        found[2] += x[s:e].sum(0)
    return found[0] / (1 + found[1]), found[2]


@program("f[T] cu", exact=False, reads=1)
def mean_of_documents_with_tokens(x: Tensor, cu: Tensor) -> Any:
    found: dict[str, Any] = {"loss": x.new_zeros(()), "documents": 0}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        found["loss"] = found["loss"] + x[s:e].mean()
        found["documents"] += 1
    return found["loss"] / max(found["documents"], 1)
