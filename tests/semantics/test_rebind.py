"""Calls without one of their axes: on one slot of it they give that slot of the result, or are not confirmed."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from packpass.semantics import call_of, meaning_of
from packpass.semantics.rebind import Arguments, confirmed, rebound
from tests.semantics.graphs import method_node, node_of
from tests.semantics.opinfos import calls
from tests.semantics.test_entries import OPERATORS
from tests.semantics.validator import Check, same

X, W = torch.randn(3, 5, 4), torch.randn(6, 4)


def without(node: fx.Node) -> Iterator[tuple[Check, Arguments, dict[int, int], int, int]]:
    """The call of a node without each of the axes that it keeps; what is confirmed."""
    call = call_of(node)
    meaning = meaning_of(call) if call is not None else None
    if call is None or meaning is None or meaning.traits.random or call.in_place or meaning.family == "creation":
        return
    check = Check(node, call, meaning)
    for item, _, to, axes in check.cuttable():
        gone = dict(axes)
        arguments = rebound(call, gone, to) if len(gone) == len(axes) else None
        shapes = {k: list(o.value.shape) for k, o in enumerate(call.operands)}
        for k, a in gone.items():
            del shapes[k][a]
        if arguments is not None and confirmed(call, arguments, shapes, gone):
            yield check, arguments, gone, item, to


def run(check: Check, arguments: Arguments, gone: dict[int, int]) -> Any:
    """The call with these arguments, on slot 0 of the axes that are gone."""
    values = {o.node: o.value for o in check.call.operands}
    for k, a in gone.items():
        operand = check.call.operands[k]
        values[operand.node] = operand.value.select(a, 0)
    args, kwargs = fx.map_arg(arguments, lambda n: values[n])
    target: Any = check.node.target
    if check.node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


def wrong(node: fx.Node) -> tuple[int, list[str]]:
    """How many calls without an axis are confirmed, and which of these are wrong."""
    count, found = 0, []
    for check, arguments, gone, item, to in without(node):
        count += 1
        want = check.call.results[item].select(to, 0)
        result = run(check, arguments, gone)
        got = result[item] if check.call.several else result
        if got.shape != want.shape or not same(got, want, exact=False):
            found.append(f"{check.call.op} without {gone}: {arguments}")
    return count, found


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if not name.startswith("jiterator")])
def test_of_torchs_samples(name: str) -> None:
    for function, method, args, kwargs in calls(OPERATORS[name], 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert not wrong(node_of(function, *args, method=method, **kwargs))[1]


REBOUND: dict[str, fx.Node] = {
    "dimension": node_of(torch.softmax, X, 2),
    "from the end": node_of(torch.softmax, X, -1),
    "by keyword": method_node("sum", X, dim=(1, 2), keepdim=True),
    "numpy's name": node_of(torch.amax, X, axis=2),
    "one by one": method_node("flip", X, 1, 2),
    "index": node_of(operator.getitem, X, (slice(None), None, 3)),
    "formula": node_of(torch.einsum, "abc,dc->abd", X, W),
    "dots": node_of(torch.einsum, "...c,dc", X, W),
    "stacked": node_of(torch.stack, [X, X], 1),
    "joined": node_of(torch.cat, [X, X], dim=-1),
    "padded": node_of(F.pad, X, (1, 2)),
    "default": node_of(F.normalize, X),
    "repeated": method_node("repeat", X, 1, 1, 3),
}


@pytest.mark.parametrize("form", REBOUND)
def test_forms(form: str) -> None:
    count, found = wrong(REBOUND[form])
    assert count and not found


BY_PLACE: dict[str, Callable[[], fx.Node]] = {
    "weight of axis 1": lambda: node_of(F.prelu, X[..., None].expand(3, 5, 4, 2).contiguous(), torch.ones(5)),
    "channels": lambda: node_of(F.batch_norm, X, torch.ones(5), torch.ones(5)),
    "matrices": lambda: node_of(torch.bmm, X, X.transpose(1, 2).contiguous()),
    "samples": lambda: node_of(F.instance_norm, X),
}


@pytest.mark.parametrize("case", BY_PLACE)
def test_leaves_alone_what_knows_axes_by_their_place(case: str) -> None:
    node = BY_PLACE[case]()
    call = call_of(node)
    assert call is not None and meaning_of(call) is not None
    assert not [gone for _, _, gone, _, _ in without(node) if gone.get(0) == 0]
