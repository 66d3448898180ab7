"""Documents by rows of where each begins and ends that stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_spans import spans

BY_SPANS = {"wrap": spans, "tail": False, "must_refuse": True}


@leave("f[T,2] cu64", why="each document is what the one before it has left, weighed", **BY_SPANS)
def blended_with_the_scene_before(x: Tensor, ends: Tensor) -> Tensor:
    out, before = [], x.new_zeros(2)
    for s, e in ends.tolist():
        before = torch.tanh(before + x[s:e].sum(0))
        out.append(before)
    return torch.stack(out)


@leave("f[T,2] cu64", why="what is read was written for the document before", **BY_SPANS)
def last_token_of_what_was_written(x: Tensor, ends: Tensor) -> Tensor:
    out = x.detach() * 1
    for s, e in ends.tolist():
        out[s:e] = out[s:e] + out[s - 1 if s > 0 else 0]
    return out


@leave("f[T,2] cu64", why="an assertion that fails is caught", **BY_SPANS)
def caught_assertions(x: Tensor, ends: Tensor) -> Tensor:
    total = x.new_zeros(2)
    for s, e in ends:
        try:
            assert e - s > 2, f"short: {s} to {e}"
        except AssertionError:
            continue
        total = total + x[s:e].sum(0)
    return total
