"""Loops that must keep eager's results: the index used as a number, early exits.

Dynamo unrolls a loop when it cannot be generic, and an unrolled loop over Python state may still be rewritten soundly;
``must_refuse`` marks only those whose *tensor* meaning allows no rewrite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave

# ---------------------------------------------------------------- the index used as a number


@leave("f[2,T] cu")
def index_multiplies(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]] * i
    return out


@leave("f[2,T] cu")
def index_is_ten(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        if i == 10:
            continue
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def index_parity(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        shift = 1 if i % 2 else -1
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(shift, -1)
    return out


@leave("f[2,T] cu")
def index_as_fill(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1], cu[1:])):
        seg = x[:, s:e].roll(-1, -1)
        seg[:, -1:] = i
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu")
def index_as_shift(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-i, -1)
    return out


@leave("i[T] cu")
def index_written(ids: Tensor, cu: Tensor) -> Tensor:
    segment = torch.full_like(ids, -1)
    for i in range(len(cu) - 1):
        segment[cu[i] : cu[i + 1]] = i
    return segment


@leave("f[2,T] f[N] cu")
def index_picks_weight(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]] * w[i]
    return out


@leave("f[2,T] cu")
def index_picks_from_list(x: Tensor, cu: Tensor) -> Tensor:
    fills = [0.0, 1.0, -1.0]
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        seg[:, -1:] = fills[i % 3]
        out[:, cu[i] : cu[i + 1]] = seg
    return out


@leave("f[2,T] cu")
def enumerate_from_five(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for k, (s, e) in enumerate(zip(cu[:-1], cu[1:]), start=5):
        out[:, s:e] = x[:, s:e] + k
    return out


@leave("f[2,T] cu")
def index_in_names(x: Tensor, cu: Tensor) -> tuple[Tensor, list[str]]:
    out, names = x.clone(), []
    for i in range(len(cu) - 1):
        names.append(f"doc{i}")
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(-1)
    return out, names


@leave("f[2,T] cu", must_refuse=True, why="one output per document")
def dict_by_index(x: Tensor, cu: Tensor) -> dict[int, Tensor]:
    return {i: x[:, cu[i] : cu[i + 1]].roll(-1, -1) for i in range(len(cu) - 1)}


@leave("f[2,T] cu")
def last_document_is_special(x: Tensor, cu: Tensor) -> Tensor:
    n = len(cu) - 1
    out = x.clone()
    for i in range(n):
        seg = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        if i < n - 1:
            seg[:, -1:] = 0
        out[:, cu[i] : cu[i + 1]] = seg
    return out


# ---------------------------------------------------------------- early exits


@leave("f[2,T] cu", must_refuse=True, why="the loop ends at a data-dependent document")
def return_from_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 6:
            return out
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out * 2


@leave("f[2,T] cu")
def break_at_third(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        if i == 2:
            break
    return out


@leave("f[2,T] cu")
def for_else(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        if i == 4:
            break
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    else:
        out = out + 1
    return out


@leave("f[2,T] cu")
def skip_empty(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        if cu[i + 1] - cu[i] == 0:
            continue
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def only_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 3:
            out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[T] cu", min_len=1)
def skip_by_content(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        if x[cu[i]] > 0:
            continue
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].roll(-1, 0)
    return out


@leave("f[2,T] cu", must_refuse=True, why="documents after the error are not processed")
def exception_ends_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    try:
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            if e - s == 1:
                raise ValueError("one token")
            out[:, s:e] = x[:, s:e].flip(-1)
    except ValueError:
        pass
    return out


@leave("f[T,3] cu", min_len=2)
def rows_by_number_with_a_new_dimension(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[s:e] = x[s:e][None, [1, 0]].sum((0, 1)) + x[None, s].flip(1)
    return out
