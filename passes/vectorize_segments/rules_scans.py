"""Rules for ops along a document's slots that keep them: softmax and running sums, products and extremes."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from passes.refused import Refused
from passes.vectorize_segments.machine import OPAQUE, Machine, example
from passes.vectorize_segments.op_names import argument, label, name_of
from passes.vectorize_segments.rules import outside_call, rule
from passes.vectorize_segments.rules_reductions import Over, highest, lowest, over
from passes.vectorize_segments.terms import Scan, Softmax, Term

_SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min", "logcumsumexp": "logsumexp"}


def _along(machine: Machine, node: fx.Node) -> Over | None:
    dim = argument(node, 1, "dim", node.kwargs.get("axis"))
    if not isinstance(dim, int):
        raise Refused("no-rule", f"{label(node)} without a dimension has no rule", node)
    return over(machine, node, dim)


@rule("softmax", "log_softmax", "softmin")
def _softmax(machine: Machine, node: fx.Node) -> Any:
    found = _along(machine, node)
    if found is None:
        return outside_call(machine, node)
    if name_of(node) == "softmin" or set(node.kwargs) - {"dim", "dtype", "_stacklevel"}:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    row = found.to(example(node).dtype)
    term = Softmax(row.filled(-math.inf), name_of(node) == "log_softmax", found.segment.dim)
    return machine.fresh(term, found.segment.rank, found.segment.window)


@rule(*_SCANS)
def _scan(machine: Machine, node: fx.Node) -> Any:
    """Slots before the window must not be counted; those after it are too late to matter."""
    found = _along(machine, node)
    if found is None:
        return outside_call(machine, node)
    fake, op = example(node), _SCANS[name_of(node) or ""]
    row = found.to((fake[0] if isinstance(fake, (tuple, list)) else fake).dtype)
    identities = {"sum": 0, "prod": 1, "max": lowest(row.dtype), "min": highest(row.dtype), "logsumexp": -math.inf}
    term: Term = Scan(row.filled(identities[op]), op, found.segment.dim)
    values = machine.fresh(term, found.segment.rank, found.segment.window)
    # Which of equal slots is the largest so far has no packed form: whoever uses the indices is refused.
    return (values, OPAQUE) if op in ("max", "min") else values
