"""Watching for a row of tokens that expands by numbers in a tensor, so that its boundaries can be seen to follow.

Image placeholders that become many tokens each (``ids.repeat_interleave(widths)``, ``torch.zeros(int(ends[-1]), D)``)
give a row whose length is data. Stock torch ends the graph there: one graph has the expansion, another one the
attention by boundaries that count the row before it, and no pass sees both. Where boundaries are declared or have a
well-known name, the frame is traced again with such sizes captured; if no pass then rewrites the graph, once more
without.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.capture.dynamo import GetAttrVariable, TensorVariable, callee
from packpass.capture.frame import FrameState, Mode
from packpass.capture.origins import needed_for
from packpass.capture.state import active, restart
from packpass.capture.watch import loops_are_sought
from packpass.layout.attention import is_boundaries
from packpass.layout.sources import last_name, source_name
from packpass.semantics import op_name, reduces, scans

PASS = "remap_boundaries"
_REPEATS = (torch.repeat_interleave, "repeat_interleave")
_PLACES = (torch.nonzero, torch.where, torch.argwhere, "nonzero", "argwhere")
_NUMBERS = (int, operator.index, "item", "__int__", "__index__")
_DECLARED = "packpass::packed"


def watch(tx: Any, fn: Any, args: list[Any]) -> None:
    """A call ends the graph because a size or a number is data: is it how far a row of known boundaries expands?"""
    frame = active.frame
    if frame is None or frame.mode is Mode.STOCK or frame.sites or frame.data_sizes is not False:
        return
    if not loops_are_sought(frame) or not frame.options.runs(PASS) or frame.options.fix_shifts == "off":
        return
    if _may_expand(tx, frame, fn, args):
        frame.mode, frame.data_sizes, frame.only_numbers, frame.expands = Mode.SYMBOLIC, True, True, True
        frame.dynamic_sources |= _boundaries(tx, frame)
        raise restart("a row whose boundaries are known may expand by numbers in a tensor")


def repeats(fn: Any) -> bool:
    """Is a function one that repeats tokens?"""
    return (fn.name if isinstance(fn, GetAttrVariable) else callee(fn)) in _REPEATS


def _may_expand(tx: Any, frame: FrameState, fn: Any, args: list[Any]) -> bool:
    function, tensors = callee(fn), [arg.realize() for arg in args]
    if isinstance(fn, GetAttrVariable):
        function, tensors = fn.name, [fn.obj.realize(), *tensors]
    behind = needed_for([t.as_proxy().node for t in tensors if isinstance(t, TensorVariable)], _decides)
    graph = tx.output.root_tracer.graph
    declared = [node for node in graph.nodes if op_name(node) == _DECLARED]
    if declared:  # the user says so, and a count of tokens of this row is how far it expands, or may be
        known, totals = bool(behind.intersection(declared)), reduces
    else:  # counts of tokens are checked by many models that expand nothing
        names = {name for name, _ in frame.named_boundaries}
        given = {last_name(source_name(node) or "") for node in behind if node.op == "placeholder"}
        known, totals = bool(names) and bool(given - names), scans
    number = function in _NUMBERS and any(map(totals, behind))
    return known and (number or function in _REPEATS or function in _PLACES)


def _boundaries(tx: Any, frame: FrameState) -> set[str]:
    """The sources of the boundaries: the number of documents is data as well."""
    graph = tx.output.root_tracer.graph
    names = {name for name, _ in frame.named_boundaries}
    declared = [n for node in graph.nodes if op_name(node) == _DECLARED for n in node.all_input_nodes[1:]]
    behind = needed_for(declared, _decides)
    places = graph.find_nodes(op="placeholder")
    sources = {n: source_name(n) or "" for n in places if is_boundaries(n.meta.get("example_value"))}
    return {name for node, name in sources.items() if node in behind or last_name(name) in names} - {""}


def _decides(node: fx.Node) -> bool:
    """How far tokens expand depends on which they are: on integers and comparisons of them."""
    value = node.meta.get("example_value")
    return not (isinstance(value, torch.Tensor) and value.dtype.is_floating_point)
