"""Rules for matrix products in which the packed dimension is a free row, column or batch dimension.

Every slot's result is a product of that slot's own numbers with weights from outside (or with the same slot of another
segment). A product that sums over the packed dimension, or pairs slots with slots, has no rule here.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.semantics import argument, example
from packpass.semantics.products import MATMULS
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.op_names import label
from passes.document_loops.rules import outside_call, tokenwise
from passes.document_loops.rules_tokenwise import exactly, known_keywords, only_outside, segments, whole_row
from passes.document_loops.terms import Outside
from passes.refused import Refused


def _packed_dim(machine: Machine, a: fx.Node, b: fx.Node, node: fx.Node) -> int | None:
    """Packed dimension (negative) of ``a @ b``; None if slots are summed or paired."""
    left, right = machine.value(a), machine.value(b)
    rank_a, rank_b = example(a).dim(), example(b).dim()
    if isinstance(left, Segment) and isinstance(right, Segment):
        return left.dim if left.dim == right.dim and left.dim <= -3 else None
    if isinstance(left, Segment) and isinstance(right, Outside):
        if left.dim == -1:
            return None
        if left.dim <= -3:
            machine.broadcasts(right, left.dim, node)
        return left.dim + 1 if rank_b == 1 else left.dim
    if isinstance(left, Outside) and isinstance(right, Segment):
        if rank_b == 1 or right.dim == -2:
            return None
        if right.dim == -1:
            return -1
        machine.broadcasts(left, right.dim, node)
        return right.dim + 1 if rank_a == 1 else right.dim
    return None


def _product(machine: Machine, node: fx.Node, a: Any, b: Any, added: Any = None) -> Any:
    """``a @ b``, or ``added + a @ b``."""
    found = segments(machine, node)
    if not found:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return NotImplemented
    dim = _packed_dim(machine, a, b, node)
    if dim is None:
        return NotImplemented
    if isinstance(added, fx.Node):
        value = machine.value(added)
        if isinstance(value, Outside):
            machine.broadcasts(value, dim, node)
        elif not isinstance(value, Segment) or value.dim != dim:
            raise Refused("dim-mismatch", f"{label(node)} adds a segment along another dimension", node)
    like = next(v for v in (machine.value(a), machine.value(b)) if isinstance(v, Segment))
    return exactly(whole_row(machine, node, like, dim), found)


@tokenwise(*MATMULS)
def _matmul(machine: Machine, node: fx.Node) -> Any:
    known_keywords(node, "input", "other", "mat2", "vec")
    b = next((node.kwargs[k] for k in ("other", "mat2", "vec") if k in node.kwargs), None)
    return _product(machine, node, argument(node, 0, "input"), argument(node, 1, "", b))


@tokenwise("addmm", "baddbmm")
def _addmm(machine: Machine, node: fx.Node) -> Any:
    if len(node.args) != 3:
        return NotImplemented
    known_keywords(node, "beta", "alpha")
    added, a, b = node.args
    return _product(machine, node, a, b, added)


@tokenwise("linear")
def _linear(machine: Machine, node: fx.Node) -> Any:
    """``linear(segment, weight, bias)``: every slot is a row."""
    found = segments(machine, node)
    if not found:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    known_keywords(node, "input", "weight", "bias")
    value, weight = machine.value(argument(node, 0, "input")), argument(node, 1, "weight")
    if len(found) > 1 or not isinstance(value, Segment) or not isinstance(weight, fx.Node):
        raise Refused("no-rule", f"{label(node)} with weights cut by boundaries has no rule", node)
    if value.dim == -1:
        return NotImplemented
    return whole_row(machine, node, value, value.dim + 1 if example(weight).dim() == 1 else value.dim)


@tokenwise("outer")
def _outer(machine: Machine, node: fx.Node) -> Any:
    """``outer(segment, outside)``: one row per slot; the other way round one column per slot."""
    if len(node.args) != 2 or node.kwargs or not all(isinstance(a, fx.Node) for a in node.args):
        return NotImplemented
    values = [machine.value(a) for a in node.args]
    if all(isinstance(v, Outside) for v in values):
        return outside_call(machine, node)
    for at, (value, other) in enumerate((values, values[::-1])):
        if isinstance(value, Segment) and isinstance(other, Outside):
            return whole_row(machine, node, value, at - 2 if at == 0 else -1)
    if all(isinstance(v, Segment) for v in values):
        raise Refused("no-rule", f"{label(node)} pairs the slots of a document; there is no rule", node)
    return NotImplemented


@tokenwise("einsum")
def _einsum(machine: Machine, node: fx.Node) -> Any:
    """``einsum`` in which one letter runs over slots, in all segments and in the result and nowhere else."""
    found = segments(machine, node)
    if not found:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    operands = node.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(node.args[0], str) or node.kwargs or not all(isinstance(o, fx.Node) for o in operands):
        return NotImplemented
    inputs, output = _letters(node.args[0], [example(o).dim() for o in operands])
    packed: set[str] = set()
    others: set[str] = set()
    for letters, arg in zip(inputs, operands, strict=True):
        value = machine.value(arg)
        if isinstance(value, Segment):
            at = len(letters) + value.dim
            packed.add(letters[at])
            others.update(letters[:at] + letters[at + 1 :])
        else:
            others.update(letters)
    if len(packed) != 1 or packed & others or sum(letter in packed for letter in output) != 1:
        raise Refused("no-rule", f"{label(node)} sums over slots or pairs them; there is no rule", node)
    (letter,) = packed
    return exactly(whole_row(machine, node, found[0], output.index(letter) - len(output)), found)


def _letters(equation: str, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """The dimensions of every operand and of the result, one name each; those under ``...`` are called ``.1`` (the
    last), ``.2``, and so on."""
    sides = equation.replace(" ", "").split("->")
    hidden = 0
    inputs: list[list[str]] = []
    for text, rank in zip(sides[0].split(","), ranks, strict=True):
        head, dots, tail = text.partition("...")
        covered = rank - len(head) - len(tail)
        hidden = max(hidden, covered if dots else 0)
        inputs.append([*head, *(f".{k}" for k in range(covered, 0, -1)), *tail])
    under = [f".{k}" for k in range(hidden, 0, -1)]
    if len(sides) == 2:
        head, dots, tail = sides[1].partition("...")
        return inputs, [*head, *(under if dots else ()), *tail]
    flat = [letter for letters in inputs for letter in letters if letter[0] != "."]
    return inputs, [*under, *sorted(letter for letter in set(flat) if flat.count(letter) == 1)]


@tokenwise("scaled_dot_product_attention")
def _attention(machine: Machine, node: fx.Node) -> Any:
    """Attention among a slot's own heads or patches: the packed dimension is a batch dimension of q, k and v."""
    found = segments(machine, node)
    if len(node.args) < 3 or not all(isinstance(machine.value(a), Segment) for a in node.args[:3]):
        return NotImplemented
    known_keywords(node, "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    first = found[0]
    mask, dropout = argument(node, 3, "attn_mask"), argument(node, 4, "dropout_p", 0.0)
    if first.dim > -3 or any(s.dim != first.dim for s in found) or dropout != 0.0:
        return NotImplemented
    if isinstance(mask, fx.Node) and isinstance(machine.value(mask), Outside):
        machine.broadcasts(machine.value(mask), first.dim, node)
    if argument(node, 7, "enable_gqa", False) and first.dim == -3:
        raise Refused("no-rule", f"{label(node)} with grouped heads along the packed dimension has no rule", node)
    return exactly(whole_row(machine, node, first, first.dim), found)
