"""Documents of a list that are views of a tensor from in front of the loop: the code behind the graph takes them again.

::

    return [x[s:e].unsqueeze(0) for s, e in zip(bounds[:-1], bounds[1:])]
    return [rows[i, :n].detach() for i, n in enumerate(lengths)]

A view cannot be made of a copy. So the calls that have made it are written down (see `packpass.capture.later.views`),
with a list of numbers for each number of the document in them, and the code behind the graph makes them on the tensor.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.capture import later
from packpass.capture.dynamo import constant, emit
from packpass.capture.entries import made_of, made_of_tensor, numbers_made
from packpass.semantics import call_of, storage
from packpass.semantics import example as example_of
from packpass.semantics.effects import (
    changes_grad_mode,
    effects_of,
    mutated_after,
    reshapes_in_place,
    switches_gradients,
)
from packpass.semantics.memory import aliases_of
from packpass.semantics.names import op_name

_OF_GRADIENTS = ("detach_", "requires_grad_")


def views(tx: Any, region: Any, entries: list[fx.Node], made: dict[Any, Any]) -> Any:
    """The list of the documents' entries, given those of the traced iterations; None if they are something else.
    ``made``: what was made again so far, to which this is added."""
    chains = [_chain(entry, region.indices[0]) for entry in entries]
    if chains[0] is None or None in chains:
        return None
    row = _row_of(chains[0][0])
    if not is_as_it_was(row) or mutated_after(row.graph, row, region.indices[0]):  # some may be copies
        return None
    # An entry that is in two lists is one tensor there; and what may be a copy is one copy.
    steps_made = {node for chain in chains if chain is not None for node in chain[1:] if _may_be_copy(node)}
    steps_made |= set(entries)
    if steps_made & made.keys():
        return None
    made |= dict.fromkeys(steps_made)
    written = [_written(chain) for chain in chains if chain is not None]
    itself = not written[0][0] and chains[0][0].target is not markers.SPLIT_GET  # no view: nothing is of the document
    if itself or any(steps != written[0][0] or numbers is None for steps, numbers in written):
        return None
    columns = [_column(tx, region, list(column)) for column in zip(*(n for _, n in written), strict=True)]
    first = _first(tx, [chain[0] for chain in chains if chain is not None], made)
    if first is None or any(column is None for column in columns):
        return None
    return later.Later(later.views, [region.length, first, constant(written[0][0]), *columns])


def _may_be_copy(node: fx.Node) -> bool:
    return node.target not in (operator.getitem, torch.select) and isinstance(example_of(node), torch.Tensor)


def _row_of(node: fx.Node) -> fx.Node:
    """The tensor itself, or the one that is split into such parts."""
    row = node.args[0] if node.target is markers.SPLIT_GET else node
    assert isinstance(row, fx.Node)
    return row


def is_as_it_was(row: fx.Node) -> bool:
    """Would views of a tensor that are made behind the graph be those that the program makes? Not if its shape or its
    gradient is changed in place, or the recording of gradients, with which views are made."""
    recorded = example_of(row).requires_grad
    for node in row.graph.nodes:
        given = node.args[0] if node.args else None
        name = op_name(node)
        changed = reshapes_in_place(name) or name in _OF_GRADIENTS
        if changed and isinstance(given, fx.Node) and storage(given) == storage(row) and node > row:
            return False
        if switches_gradients(node) and (recorded or not changes_grad_mode(node)):
            return False
    return True


def _chain(entry: fx.Node, begin: fx.Node) -> list[fx.Node] | None:
    """What a view is made of, from a tensor in front of the loop on, or a part that one is split into."""
    chain = [entry]
    while chain[-1] > begin and chain[-1].target is not markers.SPLIT_GET:
        node = chain[-1]
        source = _viewed(node)
        if source is None:
            return None
        chain.append(source)
    return chain[::-1]


def _viewed(node: fx.Node) -> fx.Node | None:
    """The tensor that a call without any other effect makes a view of."""
    if node.target is torch.select:
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    if node.target is operator.getitem:
        key = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        return node.args[0] if isinstance(node.args[0], fx.Node) and all(map(_views_only, key)) else None
    call = call_of(node)
    if call is None or len(call.operands) != 1 or not effects_of(node).pure:
        return None
    made = _named(node) is not None and not call.in_place and set(aliases_of(call)) == {frozenset({0})}
    return call.operands[0].node if made and node.args[0] is call.operands[0].node else None


def _views_only(entry: Any) -> bool:
    """Is what an entry of a subscript takes a view?"""
    number = isinstance(entry, fx.Node) and not _is_tensor(entry)
    return number or entry is None or entry is Ellipsis or type(entry) is int or isinstance(entry, slice)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(example_of(node), torch.Tensor)


def _named(node: fx.Node) -> str | None:
    """The method of a tensor, or its attribute, that does what the call does."""
    if node.target is getattr:
        return str(node.args[1])
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    own = node.op == "call_method" or getattr(torch, str(name), None) is node.target
    return str(name) if own and hasattr(torch.Tensor, str(name)) else None


def _written(chain: list[fx.Node]) -> tuple[Any, list[Any] | None]:
    """The calls, and the numbers in them, in the order in which they stand there."""
    numbers: list[Any] = []
    try:
        steps = tuple(_step(node, numbers) for node in chain[1:])
    except TypeError:
        return None, None
    return steps, numbers


def _step(node: fx.Node, numbers: list[Any]) -> Any:
    if node.target is operator.getitem:
        return ("", _told(node.args[1], numbers))
    if node.target is torch.select:
        return ("select", *(_told(arg, numbers) for arg in node.args[1:]))
    if node.target is getattr:
        return (f".{node.args[1]}",)
    if node.kwargs:
        raise TypeError
    return (_named(node), *(_told(arg, numbers) for arg in node.args[1:]))


def _told(arg: Any, numbers: list[Any]) -> Any:
    """An argument in constants alone."""
    if isinstance(arg, fx.Node):
        numbers.append(arg)
        return ("number",)
    if isinstance(arg, slice):
        return ("slice", *(_told(end, numbers) for end in (arg.start, arg.stop, arg.step)))
    if isinstance(arg, (tuple, list)):
        return ("tuple", *(_told(entry, numbers) for entry in arg))
    if arg is Ellipsis:
        return ("rest",)
    if arg is None or type(arg) in (int, bool):
        return ("is", arg)
    raise TypeError


def _first(tx: Any, nodes: list[fx.Node], made: dict[Any, Any]) -> Any:
    """The tensor that the views are of, for every document, or the parts that one is split into."""
    if len(set(nodes)) == 1:
        whole = emit(tx, operator.getitem, tx.output.current_tracer.proxy(nodes[0]), slice(None))
        return later.Later(later.same, [whole])
    parts = [(node.args[0], node.args[1], node.args[3]) for node in nodes if node.target is markers.SPLIT_GET]
    if len(parts) < len(nodes) or len(set(parts)) > 1:
        return None
    proxy = tx.output.current_tracer.proxy
    whole, lengths, dim = parts[0]
    if not is_new_split(whole, lengths, made):
        return None
    row, sizes = (emit(tx, operator.getitem, proxy(tensor), slice(None)) for tensor in (whole, lengths))
    return later.Later(later.split, [row, later.Later(later.numbers, [sizes]), constant(dim)])


def is_new_split(whole: Any, lengths: Any, made: dict[Any, Any]) -> bool:
    """Has nothing got these parts so far? They are the same tensors in all lists."""
    key = ("split", whole, lengths)
    known = key in made
    made[key] = None
    return not known


def _column(tx: Any, region: Any, nodes: list[fx.Node]) -> Any:
    """The numbers of all documents, behind the graph, given those of the traced iterations."""
    begin = region.indices[0]
    if nodes == region.indices:
        return later.Later(later.places, [])
    known = [_made_of(node, index, begin) for node, index in zip(nodes, region.indices, strict=True)]
    if any(one is None or one != known[0] for one in known):
        return None
    if isinstance(known[0], int):
        return later.Later(later.same, [constant(known[0])])
    vector = numbers_made(tx, known[0], region.length)
    return None if vector is None else later.Later(later.numbers, [emit(tx, "clone", vector, method=True)])


def _made_of(node: Any, index: fx.Node, begin: fx.Node) -> Any:
    return made_of_tensor(node, index, begin) if _is_tensor(node) else made_of(node, index, begin)
