"""Loops that must keep eager's results: carried state, leaked locals, outer state.

Dynamo unrolls a loop when it cannot be generic, and an unrolled loop over Python state may still be rewritten soundly;
``must_refuse`` marks only those whose *tensor* meaning allows no rewrite.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .harness import leave

# ---------------------------------------------------------------- carried state


@leave("f[2,T] cu", must_refuse=True, why="every document depends on the sum over the earlier ones")
def running_sum(x: Tensor, cu: Tensor) -> Tensor:
    out, total = x.clone(), x.new_zeros((2, 1))
    for i in range(len(cu) - 1):
        seg = x[:, cu[i] : cu[i + 1]]
        out[:, cu[i] : cu[i + 1]] = seg + total
        total = total * 0.5 + seg.sum(-1, keepdim=True)
    return out


@leave("f[2,T] cu", must_refuse=True, why="a recurrence over documents")
def carried_scale(x: Tensor, cu: Tensor) -> Tensor:
    out, scale = x.clone(), torch.ones(())
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] * scale
        scale = (1 - scale) / 2
    return out


@leave("f[T] cu", min_len=1, must_refuse=True, why="reads the previous document")
def previous_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    prev = x[:1] * 0
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[s:e]
        out[s:e] = seg + prev
        prev = seg[-1:]
    return out


@leave("f[2,T] cu")
def counter(x: Tensor, cu: Tensor) -> Tensor:
    out, count = x.clone(), 0
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
        count += 1
    return out * count


@leave("i[T] cu")
def counter_written(ids: Tensor, cu: Tensor) -> Tensor:
    out, count = ids.clone(), 0
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = count
        count += 1
    return out


@leave("i[T] cu")
def token_count(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, count = ids.clone(), torch.zeros((), dtype=torch.int64)
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = ids[s:e].flip(0)
        count = count + (e - s)
    return out, count


@leave("i[T] cu")
def longest_document(ids: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    out, longest = ids.clone(), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = ids[s:e].roll(-1, 0)
        longest = max(longest, e - s)
    return out, longest


@leave("f[2,T] cu")
def previous_end_as_start(x: Tensor, cu: Tensor) -> Tensor:
    # with cu[0] > 0 the first "document" here begins at 0: not the documents of cu
    out, start = x.clone(), 0
    for end in cu[1:].tolist():
        out[:, start:end] = x[:, start:end].roll(-1, -1)
        start = end
    return out


@leave("f[2,T] cu")
def toggled_flag(x: Tensor, cu: Tensor) -> Tensor:
    out, flag = x.clone(), False
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].flip(-1) if flag else x[:, s:e].roll(-1, -1)
        flag = not flag
    return out


@leave("f[2,T] cu")
def first_iteration_flag(x: Tensor, cu: Tensor) -> Tensor:
    out, first = x.clone(), True
    for s, e in zip(cu[:-1], cu[1:]):
        if first:
            first = False
            continue
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def accumulator_rebound(x: Tensor, cu: Tensor) -> Tensor:
    out = x
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out = torch.cat((out[:, :s], x[:, s:e].roll(-1, -1), out[:, e:]), dim=-1)
    return out


@leave("f[2,T] cu", must_refuse=True, why="every iteration rolls what the earlier ones wrote")
def chained_rebinding(x: Tensor, cu: Tensor) -> Tensor:
    y = x
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        z = y.clone()
        z[:, s:e] = y.roll(1, -1)[:, s:e]
        y = z
    return y


@leave("f[2,T] cu", tail=False)
def list_grown_and_measured(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e] + len(parts))
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def list_insert_front(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.insert(0, x[:, s:e].roll(1, -1))
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def list_reversed(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:, s:e].roll(1, -1) for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat(parts[::-1], -1)


@leave("f[2,T] cu", tail=False)
def list_minus_first(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:, :0]]
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].flip(-1))
    return torch.cat([*parts[2:], parts[1]], -1)


@leave("f[2,T] cu")
def list_indexed(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].roll(-1, -1))
    return (parts[0] * 2 if parts else x), len(parts)


@leave("f[2,T] cu", tail=False)
def appended_twice(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].roll(-1, -1))
        parts.append(x[:, s:e].flip(-1))
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def appended_then_other_dim(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:, s:e].roll(-1, -1) for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat([p.t() for p in parts], 0)


# ---------------------------------------------------------------- locals used after the loop


@leave("f[2,T] cu", shapes=None)
def leaked_bounds(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    out, s, e = x.clone(), None, None
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out, (s, e)


@leave("f[2,T] cu")
def leaked_index(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    out, i = x.clone(), -1
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out, i


@leave("f[2,T] cu")
def leaked_segment(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, seg = x.clone(), x
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e].roll(-1, -1)
        out[:, s:e] = seg
    return out, seg


@leave("f[2,T] cu")
def leaked_only_by_a_branch(x: Tensor, cu: Tensor, flag: bool = True) -> Tensor:
    out = x.clone()
    e = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    if flag:
        out[:, e:] = 0
    return out


# ---------------------------------------------------------------- state outside the function

TALLY: dict[str, int] = {"docs": 0}
SEEN: list[int] = []
LEVEL = 0


def _take_tally() -> dict[str, int]:
    taken = dict(TALLY)
    TALLY["docs"] = 0
    return taken


def _take_seen() -> list[int]:
    taken = list(SEEN)
    SEEN.clear()
    return taken


def _take_level() -> int:
    global LEVEL
    taken, LEVEL = LEVEL, 0
    return taken


@leave("f[2,T] cu", observe=_take_tally)
def writes_a_global_dict(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        TALLY["docs"] += 1
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu", observe=_take_level)
def writes_a_global(x: Tensor, cu: Tensor) -> Tensor:
    global LEVEL
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        LEVEL = LEVEL + 1
        out[:, s:e] = x[:, s:e] * LEVEL
    return out


@leave("f[2,T] cu", observe=_take_seen)
def appends_to_a_global_list(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        SEEN.append(i)
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(-1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, cu, SimpleNamespace(calls=0, last=None)), mutates=True)
def writes_attributes(x: Tensor, cu: Tensor, state: Any) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        state.calls += 1
        state.last = e
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu")
class CountsItsDocuments(nn.Module):
    """A counter on the module and one in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            self.calls += 1
            self.seen += 1
            out[:, s:e] = x[:, s:e].roll(-1, -1)
        return out


@leave("f[2,T] cu")
def writes_nonlocal(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    out, count = x.clone(), 0

    def visit(s: Tensor, e: Tensor) -> None:
        nonlocal count
        count += 2
        out[:, s:e] = x[:, s:e].roll(-1, -1) + count

    for s, e in zip(cu[:-1], cu[1:]):
        visit(s, e)
    return out, count


def _remember(seg: Tensor, memory: list[Tensor] = []) -> Tensor:  # noqa: B006
    memory.append(seg)
    return seg.roll(-1, -1) * len(memory)


def _take_memory() -> int:
    memory = _remember.__defaults__[0]  # type: ignore[index]
    taken = len(memory)
    memory.clear()
    return taken


@leave("f[2,T] cu", observe=_take_memory)
def mutable_default(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = _remember(x[:, s:e])
    return out
