"""Do two nodes hold the same numbers? Code computes widths once for the embeddings and again for the labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import call_of, example, meaning_of, storage
from packpass.semantics.effects import effects_of
from packpass.semantics.meaning import Uninitialised
from passes.remap_boundaries.positions import Row


def same_row(a: Row, b: Row, written: frozenset[Any]) -> bool:
    """Equal by construction. One node that is written counts as itself: see when it is read."""
    return a == b or (a.dim == b.dim and _same(a.node, b.node, written))


def _same(a: Any, b: Any, written: frozenset[Any], depth: int = 0) -> bool:
    """Are these made by the same calls of the same inputs? Memory in ``written`` may change between two calls."""
    if storage(a) in written or storage(b) in written:
        return False
    if a is b:
        return True
    if not (isinstance(a, fx.Node) and isinstance(b, fx.Node)):
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            return len(a) == len(b) and all(_same(x, y, written, depth) for x, y in zip(a, b, strict=True))
        return type(a) is type(b) and not isinstance(a, fx.Node) and bool(a == b)
    if depth > 24 or a.target != b.target or a.kwargs.keys() != b.kwargs.keys() or not effects_of(a).repeatable:
        return False
    values = example(a), example(b)
    if not all(isinstance(v, torch.Tensor) for v in values) or values[0].dtype != values[1].dtype:
        return False  # autocast may have made two calls out of one
    call = call_of(a)
    meaning = meaning_of(call)
    if meaning is not None and meaning.contents == Uninitialised():
        return False
    parts = [*zip(a.args, b.args, strict=False), *((a.kwargs[k], b.kwargs[k]) for k in a.kwargs)]
    return len(a.args) == len(b.args) and all(_same(x, y, written, depth + 1) for x, y in parts)
