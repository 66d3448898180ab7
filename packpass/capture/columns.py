"""Matrices whose columns are vectors of the program: ``torch.stack((cu[:-1], cu[1:]), 1)``, ``cu.unfold(0, 2, 1)``.

A row of such a matrix is an entry of each vector. What the columns are is read off the meaning of the calls that have
made the matrix (`packpass.semantics`).
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from packpass.capture.dynamo import emit, example
from packpass.semantics import Call, Relation, call_of, meaning_of
from packpass.semantics.meaning import KEPT, Axis, Joined
from packpass.semantics.memory import copied


def columns_of(tx: Any, matrix: Any) -> list[Any] | None:
    """Copies of the vectors that are the columns of a matrix, which keep their numbers when those change; None if it is
    not made of vectors."""
    node, count = matrix.as_proxy().node, example(matrix).shape[1]
    proxies = [_line(tx, node, 1, place) for place in range(count)] if isinstance(count, int) else [None]
    if any(proxy is None for proxy in proxies):
        return None
    return [emit(tx, "clone", proxy, method=True) for proxy in proxies]


def _line(tx: Any, node: Any, axis: int, place: int) -> Any:
    """The proxy of the entries of a matrix at one ``place`` of an axis."""
    source = copied(node)
    if source is not None:
        return _line(tx, source, axis, place)
    call = call_of(node)
    meaning = meaning_of(call) if call is not None else None
    if call is None or meaning is None or len(meaning.relations) != 1:
        return None
    if call.op == "unfold":
        return _window(tx, call, axis, place)
    relation = meaning.relations[0]
    if meaning.family == "views" and len(call.operands) == 1:
        axes = relation.operands[0]
        if axes == (Axis((0,)), Axis((1,))) and relation.result in (((0,), (1,)), ((1,), (0,))):
            return _line(tx, call.operands[0].node, relation.result[axis][0], place)
    return _joined(tx, call, relation, axis, place) if meaning.family == "joins" else None


def _window(tx: Any, call: Call, axis: int, place: int) -> Any:
    """``vector.unfold(0, size, 1)``: the vector from ``place`` on, less than ``size`` in front of its end."""
    vector, size = call.operands[0].node, call.get("size")
    if axis != 1 or call.operands[0].value.dim() != 1 or call.get("step") != 1 or type(size) is not int:
        return None
    proxy = tx.output.current_tracer.proxy(vector)
    return emit(tx, operator.getitem, proxy, slice(place, place + 1 - size or None)).as_proxy()


def _joined(tx: Any, call: Call, relation: Relation, axis: int, place: int) -> Any:
    """The operand of ``stack`` or ``cat`` that is one entry wide and stands at ``place``."""
    if len(relation.result[axis]) != 1 or len(relation.result) != 2:
        return None
    loop, other = relation.result[axis][0], relation.result[1 - axis]
    if all(axes == (Axis(other, KEPT),) for axes in relation.operands):
        return tx.output.current_tracer.proxy(call.operands[place].node) if place < len(call.operands) else None
    for operand, axes in zip(call.operands, relation.operands, strict=True):
        if axes is None or len(axes) != 2 or axes[1 - axis] != Axis(other, KEPT):
            continue
        if axes[axis] == Axis((loop,), Joined(place, 1)) and operand.value.shape[axis] == 1:
            return emit(tx, torch.select, tx.output.current_tracer.proxy(operand.node), axis, 0).as_proxy()
    return None
