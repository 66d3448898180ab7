"""Fakes of calls that ask for a length: tried out with one, instead of failing.

Torch's fakes of many ops ask whether a size is 0, 1, or beyond some limit, where the result would have the same shape
whatever the answer is. In a loop over documents nobody can answer. Such a call is run on fake tensors whose unknown
sizes are symbols with made-up values, and the shape of its result is read off as an expression of these. What the fake
asked for divides the lengths into regions; the expression must hold at the edges of each, and for lengths of 0 and 1,
or the call fails as it would have.

The node in the graph stays what the user wrote. If lengths that are written differently (``x[s : e - 1]`` and
``y[s + 1 : e]``) have to be equal for the call to run at all, it is taken that they are, and the frame is not replayed:
only a pass that proves it may use the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx

from packpass._compat import asked, free_unbacked_symbols, sizes_of_anybody
from packpass.capture.origins import expression_of
from packpass.capture.state import current_frame
from packpass.semantics.call import invoke
from packpass.semantics.sizes import Renamed

EQUAL_SIZES = "parts of a document are taken to be of one length"
"""What speaks against a replay; see `packpass.capture.divisible.EQUAL_PARTS`."""
_LENGTHS = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049)
"""Made-up lengths, no two of which, nor small multiples of them, are equal by accident."""


def run(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """The fake value of a call; None if it depends on more than the sizes."""
    if node.op not in ("call_function", "call_method") or _writes(node, kwargs):
        return None
    leaves: list[Any] = []
    fx.node.map_aggregate((args, kwargs), leaves.append)
    for together in (False, True):
        try:
            made = _tried(node, args, kwargs, leaves, together)
        except Exception:  # whatever the op raises: the sizes do not fit it, and the stock error says so
            continue
        if made is not None and together:
            frame = current_frame()
            frame.not_replayable = frame.not_replayable or EQUAL_SIZES
        if made is not None:
            return made
    return None


def _writes(node: fx.Node, kwargs: Any) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or bool(kwargs.get("inplace")) or "out" in kwargs


def _unknown(leaves: list[Any]) -> list[torch.SymInt]:
    sizes = [s for leaf in leaves for s in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]
    return [s for s in sizes if isinstance(s, torch.SymInt) and free_unbacked_symbols(s)]


def _tried(node: fx.Node, args: Any, kwargs: Any, leaves: list[Any], together: bool) -> Any:
    if together and len({s.node.expr for s in _unknown(leaves)}) < 2:
        return None
    lengths = iter(_LENGTHS)
    with sizes_of_anybody() as (mode, size):
        renamed = Renamed(lambda least: size(next(lengths)), grads=True)
        if together:
            renamed.one(_unknown(leaves))
        out, inputs = _run(node, args, kwargs, renamed)
        results = out if isinstance(out, (tuple, list)) else (out,)
        if not all(isinstance(r, torch.Tensor) for r in results) or _aliases(results, inputs):
            return None
        shapes = [[expression_of(s) for s in (*r.shape, *r.stride())] for r in results]
        kinds = [(r.dtype, r.device, r.requires_grad, r.dim()) for r in results]
        symbols = [number.node.expr for number, _ in renamed.old]
        if len({symbol for symbol in symbols if symbol.is_Symbol}) < len(symbols):
            return None  # the call only runs for one length, or for equal ones
        conditions = asked(mode)
    sizes = [shape[: kind[3]] for shape, kind in zip(shapes, kinds, strict=True)]
    if not _holds_everywhere(node, args, kwargs, renamed, symbols, conditions, sizes):
        return None
    made = [_made(shape, kind, symbols, renamed) for shape, kind in zip(shapes, kinds, strict=True)]
    if not isinstance(out, (tuple, list)):
        return made[0]
    return type(out)(made)


def _run(node: fx.Node, args: Any, kwargs: Any, renamed: Renamed) -> tuple[Any, list[Any]]:
    inputs: list[Any] = []

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, (torch.Tensor, torch.SymInt)):
            inputs.append(renamed.operand(leaf))
            return inputs[-1]
        return leaf

    given: Any = fx.node.map_aggregate((args, dict(kwargs)), convert)
    return invoke(node, *given), inputs


def _aliases(results: Any, inputs: list[Any]) -> bool:
    memory = {x.untyped_storage()._cdata for x in inputs if isinstance(x, torch.Tensor)}
    return any(r.untyped_storage()._cdata in memory for r in results)


def _holds_everywhere(
    node: fx.Node, args: Any, kwargs: Any, renamed: Renamed, symbols: list[Any], conditions: list[Any], shapes: Any
) -> bool:
    """Do the expressions give the shapes for the lengths, too, that were told apart from the made-up ones?"""
    edges = {int(number) for condition in conditions for number in condition.atoms(sympy.Integer)}
    values = sorted({0, 1, *(v for edge in edges for v in (edge - 1, edge, edge + 1) if 0 <= v <= max(_LENGTHS))})
    for point in _points(symbols, values):
        with sizes_of_anybody():
            again = Renamed(lambda least: 0, grads=False)  # every size is known by now
            again.known = [(old, _at(new, point)) for old, new in renamed.known]
            try:
                out, _ = _run(node, args, kwargs, again)
            except Exception:
                continue  # eager raises for that length
            results = out if isinstance(out, (tuple, list)) else (out,)
            got = [[int(s) for s in r.shape] for r in results]
        if got != [[int(e.subs(point)) for e in shape] for shape in shapes]:
            return False
    return True


def _at(number: Any, point: dict[Any, int]) -> int:
    return int(expression_of(number).subs(point))


def _points(symbols: list[Any], values: list[int]) -> Iterator[dict[Any, int]]:
    usual = dict(zip(symbols, _LENGTHS, strict=False))
    for value in values:
        yield dict.fromkeys(symbols, value)
        if len(symbols) > 1:
            yield from ({**usual, symbol: value} for symbol in symbols)


def _made(shape: list[Any], kind: Any, symbols: list[Any], renamed: Renamed) -> torch.Tensor:
    """A fake of the frame that is being traced."""
    dtype, device, grad, rank = kind
    old = [value for _, value in renamed.old]
    numbers = [_number(e, symbols, old) for e in shape]
    made = torch.empty_strided(numbers[:rank], numbers[rank:], dtype=dtype, device=device)
    return made.requires_grad_().clone() if grad else made


def _number(expression: Any, symbols: list[Any], old: list[Any]) -> Any:
    if not expression.free_symbols:
        return int(expression)
    functions = {"FloorDiv": lambda a, b: a // b, "Max": torch.sym_max, "Min": torch.sym_min}
    return sympy.lambdify(symbols, expression, modules=[functions])(*old)
