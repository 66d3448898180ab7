"""Collectives of what documents have one of each: the loss of a document over all ranks, its first slot on each.

::

    total = x[s:e].sum(0)
    dist.all_reduce(total, group=group)

After, for all documents at once: ``all_reduce(segment_sum(x))`` of ``[N + 1, ..]``, one message instead of one per
document. What a collective does along its first dimension it does with that of documents put behind it.

Every rank sends as many documents then as it has, so that all must find the loop: the rewrite says so (`said_of`), and
the ranks ask each other (`packpass.ranks.alike`).

In place, eager hands gradients on as if nothing had been received; such a loop is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.collectives import ALONG_FIRST, ELEMENTWISE, WAIT, collective_name
from passes.document_loops.documents import as_term, document
from passes.document_loops.machine import PER_DOCUMENT, Document, Machine, Number
from passes.document_loops.terms import Apply, Term, walk
from passes.loops import LoopFound
from passes.refused import Refused

_EXCHANGES = ELEMENTWISE | ALONG_FIRST


def collected(machine: Machine, node: fx.Node) -> Any:
    """The value of such a call, as it is after the wait; NotImplemented for any other."""
    name = collective_name(node.target)
    if not name or not node.args or not isinstance(node.args[0], fx.Node):
        return NotImplemented
    value = machine.value(node.args[0])
    if name == WAIT:
        waited = isinstance(value, Document) and collective_name(node.args[0].target) in _EXCHANGES
        return value if waited else NotImplemented
    others = [arg for arg in (*node.args[1:], *node.kwargs.values()) if isinstance(arg, fx.Node)]
    if name not in _EXCHANGES or others or not isinstance(value, PER_DOCUMENT) or isinstance(value, Number):
        return NotImplemented
    if example(node.args[0]).requires_grad and _is_in_place(node):
        raise Refused("message-gradient", f"{name} in place hands gradients on in eager as if it did nothing", node)
    term, rest = as_term(machine, node.args[0], node), node.args[1:]
    if name in ELEMENTWISE:
        return document(machine, _sent(machine, node, term, rest))
    if not example(node.args[0]).dim():
        term = machine.intern(Apply(torch.unsqueeze, False, (term, 1), (), 0))
    behind = machine.intern(Apply(torch.movedim, False, (term, 0, 1), (), 0))
    laid_out = machine.intern(Apply("contiguous", True, (behind,), (), 0))
    received = _sent(machine, node, laid_out, rest)
    return document(machine, Apply(torch.movedim, False, (received, 1, 0), (), 0))


def _sent(machine: Machine, node: fx.Node, term: Term, rest: Iterable[Any]) -> Term:
    sent = machine.intern(Apply(node.target, False, (term, *rest), tuple(sorted(node.kwargs.items())), 0))
    made: Term = machine.intern(Apply(torch.ops._c10d_functional.wait_tensor.default, False, (sent,), (), 0))
    machine.sent[node] = made
    return made


def _is_in_place(node: fx.Node) -> bool:
    """Is what is received copied to where it was sent from?"""
    waits = [user for user in node.users if collective_name(user.target) == WAIT]
    copies = [user for wait in waits for user in wait.users if user.target == "copy_" and user.args[1] is wait]
    return any(copy.args[0] is node.args[0] for copy in copies)


def sent_by(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The collectives of a loop, in their order."""
    return sorted(node for node in nodes if collective_name(node.target) in _EXCHANGES)


def all_sent(machine: Machine, loop: LoopFound) -> tuple[Term, ...]:
    """What every document sends, in its order: also where this rank does not look at what comes."""
    missing = [node for node in sent_by(loop.iterations[0][1]) if node not in machine.sent]
    if missing:
        raise Refused("no-rule", f"{collective_name(missing[0].target)} of what nobody looks at", missing[0])
    return tuple(machine.sent.values())


def refuse_some_only(machines: Iterable[Machine]) -> None:
    """Documents that go different ways may send different things."""
    for node in (node for machine in machines for node in machine.sent):
        raise Refused("no-rule", f"{collective_name(node.target)} in a loop whose documents go several ways", node)


def said_of(terms: Iterable[Any]) -> tuple[tuple[str, ...], str | None]:
    """What every rank must have found as well, and the group; the group is None if there are several."""
    found: dict[Any, None] = {}
    for term in (part for whole in terms for part in walk(whole)):
        if isinstance(term, Apply) and collective_name(term.target) in _EXCHANGES:
            found[collective_name(term.target), tuple(map(str, term.args[1:]))] = None
        for exchange in getattr(term, "exchanges", ()):  # of a function with a backward of its own
            found[exchange] = None
    groups = {words[-1] for _, words in found}
    texts = (f"{name}({', '.join(words)}) of all documents" for name, words in found)
    return tuple(sorted(texts)), groups.pop() if len(groups) == 1 else None
