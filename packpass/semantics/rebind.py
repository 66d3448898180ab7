"""The same call where an axis of its operands is gone: its arguments name the axes that are left.

    x.softmax(2)               of [B, S, D] without B:  x.softmax(1)
    torch.einsum("bsd,de->bse", x, w)                :  torch.einsum("sd,de->se", x, w)
    x[:, :, 3]                                       :  x[:, 3]

What arguments name is written down here once, by their own names. That the new call means what the old one did is not
taken for granted: `confirmed` makes it on tensors without contents and compares its meaning, loop by loop. Operations
that know axes by their place (a convolution's channels) are found out there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from packpass.semantics import indexing, pointwise, products
from packpass.semantics.binding import example, parameters_of
from packpass.semantics.call import Call, call_of, invoke
from packpass.semantics.meaning import How, Relation, axis_indices
from packpass.semantics.registry import entry_of, meaning_of

_AXES = ("dim", "dims")
"""Arguments that name axes of the first operand."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def broadcasts(op: str) -> bool:
    """Do operands line up from the right, so that no argument names an axis?"""
    return entry_of(op) is pointwise.pointwise


def rebound(call: Call, gone: Mapping[int, int], result: int | None) -> Arguments | None:
    """The arguments of the call's node, without axis ``gone[k]`` of operand k and axis ``result`` of the results.

    None where an argument that names an axis is not understood.
    """
    changed: dict[str, Any] = {}
    first = gone.get(0)
    if call.op == "getitem" and first is not None:
        entries = indexing.entries_of(call.arguments["index"], call.operands[0].rank)
        changed["index"] = entries and tuple(e.item for e in entries if e.axis is None or e.axis != first)
    elif call.op == "einsum":
        changed["equation"] = _equation(call, gone, result)
    elif call.op == "pad" and first is not None:
        back = 2 * (call.operands[0].rank - 1 - first)
        pad = call.arguments["pad"]
        changed["pad"] = [*pad[:back], *pad[back + 2 :]]
    elif call.op in ("repeat", "tile"):  # how often, for every axis of the result
        name = "repeats" if "repeats" in call.arguments else "dims"
        times = call.arguments[name]
        at = len(times) if result is None else result - call.results[0].dim() + len(times)
        changed[name] = [n for d, n in enumerate(times) if d != at]
    else:
        at, rank = first, max(o.rank for o in call.operands)
        if call.op == "stack":  # its argument names an axis of the result
            at, rank = result, call.results[0].dim()
        for name in _AXES if at is not None else ():
            given = call.arguments.get(name)
            if given is not None and not isinstance(given, str):
                changed[name] = _renumbered(given, rank, at)
    return None if None in changed.values() else _placed(call, changed)


def _renumbered(given: Any, rank: int, gone: Any) -> Any:
    """Axes of a value of that rank by their numbers without one; None if they are no constants, or that one."""
    several = isinstance(given, (tuple, list))
    axes = axis_indices(given, rank)
    if axes is None or gone in axes:
        return None
    signs = [was < 0 for was in (given if several else [given])]
    numbers = [d - (d > gone) - (rank - 1) * negative for d, negative in zip(axes, signs, strict=True)]
    return type(given)(numbers) if several else numbers[0]


def _equation(call: Call, gone: Mapping[int, int], result: int | None) -> str | None:
    """The formula of an einsum without the letters of axes that are gone."""
    words = products.words_of(call)
    if words is None or len(words) != len(call.operands) + 1:
        return None
    ranks = [*(o.rank for o in call.operands), call.results[0].dim()]
    axes = [*(gone.get(k) for k in range(len(call.operands))), result]
    left = []
    for word, rank, axis in zip(words, ranks, axes, strict=True):
        letters = products.letters_of(word, rank)
        if letters is None:
            return None
        letter = "" if axis is None else letters[axis]
        left.append(word if not letter or letter.startswith(".") else word.replace(letter, ""))
    return f"{','.join(left[:-1])}->{left[-1]}"


def _placed(call: Call, changed: Mapping[str, Any]) -> Arguments:
    """The arguments of a node, some of them changed, where the node has them."""
    args, kwargs = list(call.node.args), dict(call.node.kwargs)
    names = parameters_of(call.overload, call.node.target)
    for name, value in changed.items():
        if name != "index" and value == call.arguments.get(name):
            continue
        spelled = next((k for k in kwargs if k == name or (k, name) == ("axis", "dim")), None)
        at = names.index(name) if name in names else len(args)
        if spelled is not None:
            kwargs[spelled] = value
        elif at >= len(args):
            kwargs[name] = value
        elif name != "index" and isinstance(value, (tuple, list)) and not isinstance(args[at], (tuple, list)):
            args[at:] = [value]  # one by one: x.flip(0, 1)
        else:
            args[at] = value
    return tuple(args), kwargs


# === The proof ===============================================================================================


def confirmed(call: Call, arguments: Arguments, shapes: Mapping[int, Sequence[Any]], gone: Mapping[int, int]) -> bool:
    """Does the call with these arguments, on operands of these shapes, mean what ``call`` does, but for the loops of
    axes that are gone?"""
    old = meaning_of(call)
    new = _tried(call, arguments, shapes)
    meaning = meaning_of(new)
    if old is None or new is None or meaning is None or len(meaning.relations) != len(old.relations):
        return False
    if [o.argument for o in new.operands] != [o.argument for o in call.operands]:
        return False
    pairs = zip(old.relations, meaning.relations, strict=True)
    return all(_described(a, gone) == _described(b, {}) for a, b in pairs)


def _tried(call: Call, arguments: Arguments, shapes: Mapping[int, Sequence[Any]]) -> Call | None:
    """The call on tensors that have no contents."""
    graph = fx.Graph()
    given: dict[fx.Node, fx.Node] = {}
    for k, operand in enumerate(call.operands):
        if operand.node in given and tuple(shapes[k]) != tuple(given[operand.node].meta["example_value"].shape):
            return None
        value = _hollow(operand.value, shapes[k])
        if value is None:
            return None
        if operand.node not in given:
            given[operand.node] = graph.placeholder(f"x{k}")
            given[operand.node].meta["example_value"] = value
    missing = [n for n in call.node.all_input_nodes if n not in given]
    if any(not isinstance(example(n), (int, float, bool, torch.SymFloat)) for n in missing):
        return None
    numbers = {n: 0.5 if isinstance(example(n), torch.SymFloat) else example(n) for n in missing}
    args, kwargs = fx.map_arg(arguments, lambda n: given.get(n, numbers.get(n)))
    args = tuple(torch.device("meta") if isinstance(a, torch.device) else a for a in args)
    kwargs = {k: "meta" if k == "device" and v is not None else v for k, v in kwargs.items()}
    node = graph.create_node(call.node.op, call.node.target, args, kwargs)
    try:
        with torch.no_grad():
            args, kwargs = fx.map_arg((node.args, node.kwargs), example)
            node.meta["example_value"] = invoke(node, args, kwargs)
    except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError, AssertionError):
        return None  # it does not take operands of these ranks
    return call_of(node)


def _hollow(value: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor | None:
    """A tensor without contents; all of one floating dtype, as autocast would have them."""
    if not all(isinstance(n, int) for n in shape):
        return None
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _described(relation: Relation, gone: Mapping[int, int]) -> Any:
    """A relation, loops by the order in which they occur, without those of axes that are gone."""
    dropped = {loop for k, a in gone.items() for loop in (relation.operands[k] or ())[a].loops}
    names: dict[int, int] = {}

    def named(loops: tuple[int, ...]) -> tuple[tuple[int, Any], ...]:
        left = [loop for loop in loops if loop not in dropped]
        return tuple((names.setdefault(loop, len(names)), relation.roles.get(loop)) for loop in left)

    operands = []
    for k, axes in enumerate(relation.operands):
        left = [axis for a, axis in enumerate(axes or ()) if gone.get(k) != a]
        described = [(named(axis.loops), type(axis.how), list(_numbers(axis.how))) for axis in left]
        operands.append(None if axes is None else described)
    results = [named(loops) for loops in relation.result if not loops or not set(loops) <= dropped]
    return operands, results


def _numbers(how: How) -> Iterator[Any]:
    """What a way to read an axis is made of; symbolic sizes by identity, for comparing them would guard on them."""
    for field in dataclasses.fields(how):
        value = getattr(how, field.name)
        yield ("symbolic", id(value)) if isinstance(value, torch.SymInt) else value
