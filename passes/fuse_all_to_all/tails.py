"""What is cut out of an exchanged row is cut by the exchange itself, and boundaries that it checks are checked once.

Before::

    row = cp_to_hp(x, cu, ...)                  # [T, ...]
    check_cu_seqlens(cu, T)
    out = documents_only(row, cu, 0)            # what torch.cat of the documents gives

After: ``out = cp_to_hp(x, cu, ..., documents=True)``, and the same of ``hp_to_cp``, whose rows are cut by ``cu // cp``.
In host memory that is a copy less each way: of the documents, and of their gradients into a row of zeros.

Why it is safe: the op gives that very part of the row, sends what it sent before, and raises for boundaries that are
out of order or beyond the row, which is all that the check looks for (of ``cu // cp``: it raises unless they divide).

Does not handle: rows that others read as well, boundaries that are written in between, documents along another
dimension.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from passes.fuse_all_to_all.straight_find import TO_HEADS, TO_TOKENS
from passes.nodes import SNAPSHOT
from passes.prune import prune

DOCUMENTS = torch.ops.packpass.documents_only.default
CHECK = torch.ops.packpass.check_cu_seqlens.default
SIZE = torch.ops.aten.sym_size.int
_ARGUMENTS = 7
"""Of an exchange, with ``zigzag``; those behind it are the tails'."""


def run(graph: fx.Graph) -> bool:
    """Change a graph; says whether it did."""
    exchanges = [node for node in graph.nodes if node.target in (TO_HEADS, TO_TOKENS) and not node.kwargs]
    changed = False
    for exchange in exchanges:
        for node in list(graph.nodes):
            if node.target is CHECK and _is_checked_by(exchange, node):
                inputs = node.all_input_nodes
                graph.erase_node(node)
                prune(graph, inputs)
                changed = True
        cut = next((user for user in exchange.users if user.target is DOCUMENTS), None)
        if cut is not None and _is_cut_of(cut, exchange):
            _cut(graph, exchange, cut)
            changed = True
    return changed


def _is_cut_of(cut: fx.Node, exchange: fx.Node) -> bool:
    _, cu, dim = cut.args
    assert isinstance(cu, fx.Node) and isinstance(dim, int)
    return (
        len(exchange.args) <= _ARGUMENTS
        and dim % example(exchange).dim() == 0
        and all(user is cut or _is_length(user) for user in exchange.users)
        and _counts_result(cu, exchange, cut)
    )


def _is_checked_by(exchange: fx.Node, check: fx.Node) -> bool:
    cu, total, *padded = check.args
    given, size = example(exchange.args[0]).shape[0], exchange.args[5]
    slots = given * size if exchange.target is TO_HEADS else given // size
    seen = example(total) if isinstance(total, fx.Node) else total
    assert isinstance(cu, fx.Node)
    return bool(
        not check.users
        and not any(entry is not None for entry in padded)
        and not check.kwargs
        and statically_known_true(seen == slots)
        and _counts_result(cu, exchange, max(exchange, check))
    )


def _is_length(node: fx.Node) -> bool:
    return bool(node.target is SIZE and node.args[1] == 0)


def _counts_result(cu: fx.Node, exchange: fx.Node, last: fx.Node) -> bool:
    """Are these the exchange's boundaries, counted in slots of its result, with the same values until ``last``?"""
    own = exchange.args[1]
    assert isinstance(own, fx.Node)
    root = _source(own)
    if exchange.target is TO_HEADS:
        same: bool = _source(cu) is root
    else:
        same = _is_part(_source(cu), root, exchange.args[5])
    written = any(mutated_after(last.graph, node, node.next, last) for node in (root, _source(cu), own, cu))
    return same and not written


def _source(node: fx.Node) -> fx.Node:
    """Behind the copies that are kept for the backward."""
    while node.target is SNAPSHOT:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_part(part: fx.Node, whole: fx.Node, size: object) -> bool:
    """``whole // size``, or what ``whole`` is ``size`` times of."""
    if part.target is torch.div and part.kwargs == {"rounding_mode": "floor"} and len(part.args) == 2:
        return isinstance(part.args[0], fx.Node) and _source(part.args[0]) is whole and part.args[1] == size
    if whole.target is torch.mul and not whole.kwargs and len(whole.args) == 2:
        return isinstance(whole.args[0], fx.Node) and _source(whole.args[0]) is part and whole.args[1] == size
    return False


# === Transform ================================================================================================


def _cut(graph: fx.Graph, exchange: fx.Node, cut: fx.Node) -> None:
    x, size = exchange.args[0], exchange.args[5]
    scale = operator.mul if exchange.target is TO_HEADS else operator.floordiv
    for length in [user for user in exchange.users if user is not cut]:
        with graph.inserting_before(length):
            given = graph.call_function(SIZE, (x, 0))
            given.meta["example_value"] = example(x).shape[0]
            made = graph.call_function(scale, (given, size))
            made.meta.update(length.meta)
        length.replace_all_uses_with(made)
        graph.erase_node(length)
    zigzag = exchange.args[_ARGUMENTS - 1] if len(exchange.args) == _ARGUMENTS else True
    exchange.args = (*exchange.args[: _ARGUMENTS - 1], zigzag, True)
    exchange.meta["example_value"] = example(cut)
    cut.replace_all_uses_with(exchange)
    inputs = cut.all_input_nodes
    graph.erase_node(cut)
    prune(graph, [node for node in inputs if node is not exchange])
