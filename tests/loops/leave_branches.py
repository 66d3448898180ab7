"""Branches on a document's length, on its number or on data that are no skip: what they lead to differs."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave

DEPENDS = "what is done depends on the document"


@leave("f[2,T] cu", must_refuse=True, why=DEPENDS)
def other_factor_for_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[:, s:e] * 2 if e - s > 2 else x[:, s:e] * 3
        out[:, s:e] = part
    return out


@leave("f[2,T] cu", must_refuse=True, why="a short document takes the factor of the one before")
def factor_of_the_last_long_document(x: Tensor, cu: Tensor) -> Tensor:
    out, factor = x.clone(), 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            factor = 2
        out[:, s:e] = x[:, s:e] * factor
    return out


@leave("f[2,T] cu", must_refuse=True, why="two conditions: documents of two tokens are different")
def documents_between_two_limits(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        many = 1 if e - s > 2 else 0
        several = 1 if e - s > 1 else 0
        out[:, s:e] = x[:, s:e] * (2 if many != several else 1)
    return out


@leave("f[2,T] cu", must_refuse=True, why="the branch that is not followed asks again")
def three_kinds_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 4:
            part = x[:, s:e] * 2
        elif e - s > 2:
            part = x[:, s:e] * 3
        else:
            part = x[:, s:e] * 2
        out[:, s:e] = part
    return out


@leave("f[2,T] cu", must_refuse=True, why="only the first document is doubled")
def other_factor_for_the_first(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]] * (2 if i == 0 else 1)
    return out


@leave("f[2,T] cu", must_refuse=True, why=DEPENDS)
def another_tensor_is_written_for_long_documents(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, other = x.clone(), x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].flip(1)
        if e - s > 2:
            other[:, s:e] = 0
        out[:, s:e] += 1
    return out, other


@leave("f[2,T] cu", must_refuse=True, why="a list without the short documents, padded with a zero")
def appended_twice_or_once(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            parts.append(x[:, s:e])
        parts.append(x[:, s:e] * 0)
    return torch.cat([*parts, x[:, :0]], 1)


@leave("f[2,T] cu", must_refuse=True, why="the number of long documents is counted")
def counts_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out, many = x.clone(), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        many += 1 if e - s > 2 else 0
        out[:, s:e] = x[:, s:e].flip(1)
    return out + many


@leave("f[T] cu", min_len=1, must_refuse=True, why="the sign of the first token decides")
def branch_on_a_token(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e].flip(0) if x[s].item() > 0 else x[s:e]
        out[s:e] = part + 1
    return out


@leave("f[2,T] cu", must_refuse=True, why="the condition is also used as a number")
def condition_as_a_factor(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        long = e - s > 2
        part = x[:, s:e].flip(1) if long else x[:, s:e].flip(-1)
        out[:, s:e] = part * (1 + long)
    return out


@leave("f[T,4] cu")
def does_the_last_document_end_the_row(x: Tensor, cu: Tensor) -> Tensor:
    """Nothing says that it does: there may be a tail."""
    out = x.clone()
    if x.size(0) == cu[-1]:
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e].flip(0)
    else:
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e].flip(0) * 2
    return out


@leave("f[T,4] f[T,4] cu", tail=False)
def other_boundaries_end_elsewhere(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    """The branch is on other boundaries than those that split the row."""
    other = cu + 1
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist())
    if y.size(0) == other[-1]:
        return torch.cat([part.flip(0) for part in parts])
    return torch.cat([part.flip(0) * 2 for part in parts])


@leave("f[T,4] cu")
def boundaries_listed_before_the_branch(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = x.clone(), cu.tolist()
    if x.size(0) == cu[-1]:
        for s, e in zip(bounds[:-1], bounds[1:]):
            out[s:e] = x[s:e].flip(0)
    else:
        for s, e in zip(bounds[:-1], bounds[1:]):
            out[s:e] = x[s:e].flip(0) * 2
    return out
