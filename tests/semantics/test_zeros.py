"""`packpass.semantics.zeros` says of no call that it gives zeros if it does not."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from packpass.semantics.zeros import zeros_among


def _graph(build: Any) -> tuple[list[fx.Node], fx.Node]:
    """The calls of ``build(graph, zero, other)``, and the zero."""
    graph = fx.Graph()
    zero, other = graph.placeholder("zero"), graph.placeholder("other")
    build(graph, zero, other)
    nodes = [n for n in graph.nodes if n.op != "placeholder"]
    values: dict[fx.Node, Any] = {zero: torch.zeros(2, 2), other: torch.tensor([[1.0, -2.0], [3.0, 4.0]])}
    for node in nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)  # type: ignore[arg-type]
        run = getattr(args[0], node.target) if node.op == "call_method" else node.target
        values[node] = run(*args[1:], **kwargs) if node.op == "call_method" else run(*args, **kwargs)
    for node, value in values.items():
        node.meta["example_value"] = value
    return nodes, zero


def _calls(*made: tuple[Any, tuple[Any, ...]]) -> Any:
    def build(graph: fx.Graph, zero: fx.Node, other: fx.Node) -> None:
        known = {"zero": zero, "other": other}
        last = zero
        for target, args in made:
            given = tuple(known.get(a, last if a == "last" else a) if isinstance(a, str) else a for a in args)
            given = tuple([known.get(b, last) for b in a] if isinstance(a, list) else a for a in given)
            add = graph.call_method if isinstance(target, str) else graph.call_function
            last = add(target, given)

    return build


KEEPING = {
    "products": _calls((torch.mul, ("other", "zero")), (torch.matmul, ("last", "other"))),
    "quotients": _calls((torch.div, ("zero", "other"))),
    "sums": _calls((torch.add, ("zero", "zero")), ("sum", ("last", 0)), (torch.neg, ("last",))),
    "choices": _calls((torch.gt, ("other", 0)), (torch.where, ("last", "zero", 0.0))),
    "clamped": _calls(("clamp", ("zero", -1.0, 1.0)), (torch.tanh, ("last",))),
    "moved": _calls(("t", ("zero",)), (torch.cat, (["last", "zero"],)), (operator.getitem, ("last", 0))),
    "padded": _calls((F.pad, ("zero", (1, 0)))),
    "written": _calls(("clone", ("zero",)), ("mul_", ("last", 3.0))),
    "copied": _calls(("clone", ("other",)), ("copy_", ("last", "zero"))),
}
OTHERS = {
    "sum_of_another": _calls((torch.add, ("zero", "other"))),
    "number_added": _calls((torch.add, ("zero", 1.0))),
    "divisor": _calls((torch.div, ("other", "zero"))),
    "cosine": _calls((torch.cos, ("zero",))),
    "clamped_up": _calls(("clamp", ("zero", 1.0, 2.0))),
    "padded_with_ones": _calls((F.pad, ("zero", (1, 0), "constant", 1.0))),
    "beside_another": _calls((torch.cat, (["zero", "other"],))),
    "filled": _calls(("clone", ("zero",)), ("fill_", ("last", 1.0))),
    "written_through_a_view": _calls(("view", ("zero", 4)), ("add_", ("last", 1.0)), (torch.neg, ("zero",))),
}


@pytest.mark.parametrize("name", KEEPING)
def test_calls_that_keep_zeros(name: str) -> None:
    nodes, zero = _graph(KEEPING[name])
    assert nodes[-1] in zeros_among(nodes, [zero])


@pytest.mark.parametrize("name", OTHERS)
def test_calls_that_do_not(name: str) -> None:
    nodes, zero = _graph(OTHERS[name])
    assert nodes[-1] not in zeros_among(nodes, [zero])
