"""Passes that do what they should and then spoil the result, for tests of ``packpass.verify``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import fx

from packpass._passes import PASSES
from packpass.decisions.records import Rewrite
from packpass.engine import passes


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Every graph that the pass of this name rewrites gives the negative of its first result."""
    entries, right = {p.entry for p in PASSES if p.name == name}, passes.function

    def function(code: str) -> Any:
        return _spoiling(right(code)) if code in entries else right(code)

    with mock.patch.object(passes, "function", function):
        yield


def _spoiling(run: Callable[..., Any]) -> Callable[..., Any]:
    def spoil(gm: fx.GraphModule, context: Any) -> Any:
        results = run(gm, context)
        if any(isinstance(result, Rewrite) for result in results):
            form = context.products.packed
            _negate(gm if form is None else form.packed)
        return results

    return spoil


def _negate(gm: fx.GraphModule) -> None:
    (output,) = gm.graph.find_nodes(op="output")
    result = output.all_input_nodes[0]
    with gm.graph.inserting_before(output):
        output.replace_input_with(result, gm.graph.call_function(torch.neg, (result,)))
    gm.recompile()


@contextlib.contextmanager
def planted_after_autograd() -> Iterator[None]:
    """Joined all-to-alls of one size are given to each other's readers."""
    from passes.bucket_all_to_all import rewrite

    right = rewrite._delay

    def wrong(start: fx.Node, made: set[fx.Node], end: fx.Node) -> None:
        right(start, made, end)
        (cat,) = (node for node in made if node.target is torch.ops.aten.cat.default)
        parts, dim = cat.args
        cat.args = (list(reversed(parts)), dim)  # type: ignore[arg-type]

    with mock.patch.object(rewrite, "_delay", wrong):
        yield
