"""Products and distances of what each document has one of: one call, with a dimension of documents in front."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.semantics import Call, call_of, example
from packpass.semantics.products import equation_of, product_of
from passes.document_loops.documents import as_term, document
from passes.document_loops.machine import Document, Machine, Slot
from passes.document_loops.rules import only_documented
from passes.document_loops.terms import Apply, DocGuard, Outside, Term

_DISTANCES = {
    "cosine_similarity": torch.nn.functional.cosine_similarity,
    "pairwise_distance": torch.nn.functional.pairwise_distance,
}


def of_each(machine: Machine, node: fx.Node) -> Any:
    """The value of such a call; NotImplemented for any other."""
    call = call_of(node)
    values = [machine.value(arg) for arg in node.all_input_nodes]
    if call is None or call.in_place or len(call.operands) != 2:
        return NotImplemented
    if not all(isinstance(v, (Document, Slot, Outside)) for v in values) or all(isinstance(v, Outside) for v in values):
        return NotImplemented
    if any(hint_of(size) is None for operand in call.operands for size in operand.value.shape):
        return NotImplemented
    only_documented(node)
    made = _product(machine, node, call)
    return _distance(machine, node, call) if made is NotImplemented else made


def _product(machine: Machine, node: fx.Node, call: Call) -> Any:
    found = product_of(call)
    if found is None or not example(node).is_floating_point():
        return NotImplemented
    sides, out = found
    terms = [_operand(machine, node, operand.node) for operand in call.operands]
    words = [
        word if isinstance(term, Outside) else ["documents", *word] for term, word in zip(terms, sides, strict=True)
    ]
    equation = equation_of(words, ["documents", *out])
    return document(machine, Apply(torch.einsum, False, (equation, *terms), (), 0))


def _distance(machine: Machine, node: fx.Node, call: Call) -> Any:
    """Both operands get as many dimensions, so that those of documents meet."""
    fn, rank = _DISTANCES.get(call.op), max(operand.rank for operand in call.operands)
    if fn is None or not all(operand.value.is_floating_point() for operand in call.operands):
        return NotImplemented
    terms = []
    for operand in call.operands:
        term = _operand(machine, node, operand.node)
        if not isinstance(term, Outside):
            for _ in range(rank - operand.rank):
                term = machine.intern(Apply(torch.unsqueeze, False, (term, 1), (), 0))
        terms.append(term)
    rest = {name: value for name, value in call.arguments.items() if name not in ("x1", "x2")}
    if call.op == "cosine_similarity":
        rest["dim"] = operator.index(rest.get("dim", 1)) % rank - rank
    return document(machine, Apply(fn, False, tuple(terms), tuple(sorted(rest.items())), 0))


def _operand(machine: Machine, node: fx.Node, arg: fx.Node) -> Term | Outside:
    value = machine.value(arg)
    if isinstance(value, Outside):
        return value
    term = as_term(machine, arg, node)
    return machine.intern(DocGuard(term, machine.reach)) if example(node).requires_grad else term
