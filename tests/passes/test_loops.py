"""What of a captured loop only asserts something, and may go: nothing that writes."""

from __future__ import annotations

import operator

import torch
from torch import fx

from packpass._compat import sizes_of_nobody
from passes.loops import only_asserted


def graph_of(write: bool) -> tuple[fx.Node, list[fx.Node]]:
    """A tensor, and what looks at its size: an assertion, and a write of as many slots."""
    graph = fx.Graph()
    with sizes_of_nobody() as (_, size):
        n = size(0)
        x, out = graph.placeholder("x"), graph.placeholder("out")
        for node in (x, out):
            node.meta["example_value"] = torch.empty(n)
        length = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
        length.meta["example_value"] = n
        holds = graph.call_function(operator.ge, (length, 0))
        holds.meta["example_value"] = n >= 0
        check = graph.call_function(torch.ops.aten._assert_scalar.default, (holds, "as Dynamo says"))
        looked_at = [length, holds, check]
        if write:
            negative = graph.call_function(operator.neg, (length,))
            negative.meta["example_value"] = -n
            looked_at += [negative, graph.call_function(operator.setitem, (out, slice(negative, None), 1))]
        graph.output(out)
    return x, looked_at


def test_an_assertion_is_only_asserted() -> None:
    x, looked_at = graph_of(write=False)
    assert set(only_asserted(x)) == set(looked_at)


def test_a_write_of_as_many_slots_is_no_assertion() -> None:
    x, _ = graph_of(write=True)
    assert not only_asserted(x)
