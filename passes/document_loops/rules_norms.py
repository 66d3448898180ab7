"""Variance and norms over the slots of a document."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example
from packpass.semantics.reductions import NORMS, SPREADS
from passes.document_loops.documents import cast
from passes.document_loops.machine import Machine
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import outside_call, rule
from passes.document_loops.rules_reductions import Over, dims_of, exact_type, mean, over
from passes.document_loops.terms import Term
from passes.refused import Refused


def _safe_root(found: Over, square: Term, power: float = 0.5) -> Term:
    """The root whose gradient at 0 is 0, as that of std and of norms."""
    zero = found.apply(torch.eq, square, 0, dim_of_term=0)
    above = found.apply(torch.where, zero, 1.0, square, dim_of_term=0)
    if power == 0.5:
        root = found.apply(torch.sqrt, above, dim_of_term=0)
    else:
        root = found.apply(torch.pow, above, power, dim_of_term=0)
    return found.apply(torch.where, zero, 0.0, root, dim_of_term=0)


@rule(*SPREADS)
def _var(machine: Machine, node: fx.Node) -> Any:
    dims, keepdim = dims_of(node), node.kwargs.get("keepdim", False)
    correction, unbiased = node.kwargs.get("correction", 1), node.kwargs.get("unbiased")
    positional = list(node.args[1:])
    if positional and isinstance(positional[0], bool):
        dims, unbiased = None, positional.pop(0)
    elif positional:
        dims = positional.pop(0)
        unbiased = positional.pop(0) if positional else unbiased
        keepdim = positional.pop(0) if positional else keepdim
    if unbiased is not None:
        correction = int(bool(unbiased))
    found = over(machine, node, dims, keepdim)
    if found is None:
        return outside_call(machine, node)
    if type(correction) not in (int, float) or positional:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    fake, name = example(node), name_of(node)
    want = (fake[0] if isinstance(fake, (tuple, list)) else fake).dtype
    if want.is_complex:
        raise Refused("no-rule", f"{label(node)} of complex numbers has no rule", node)
    exact = found.to(exact_type(want)).guarded()
    middle = mean(exact)
    centred = exact.apply(torch.sub, exact.term, exact.in_slots(middle))
    total = exact.of(exact.apply(torch.mul, centred, centred)).reduce("sum")
    free = exact.apply(torch.sub, exact.count(), correction, dim_of_term=0)
    result = exact.apply(torch.div, total, exact.apply(torch.clamp, free, min=0, dim_of_term=0), dim_of_term=0)
    if name.startswith("std"):
        result = _safe_root(exact, result)
    result, middle = (cast(machine, t, exact.dtype, want) for t in (result, middle))
    return (exact.done(result), exact.done(middle)) if name.endswith("_mean") else exact.done(result)


def norm_term(found: Over, p: Any) -> Term:
    """The p-norm; `Refused` for a p that has no rule."""
    if p in (2, "fro", None) and p is not True:
        return _safe_root(found, found.of(found.apply(torch.mul, found.term, found.term)).reduce("sum"))
    if p == 1 and p is not True:
        return found.of(found.apply(torch.abs, found.term)).reduce("sum")
    if isinstance(p, float) and math.isinf(p):
        found.not_empty()
        return found.of(found.apply(torch.abs, found.term)).reduce("amax" if p > 0 else "amin")
    if type(p) not in (int, float) or p < 0 or p != p:
        raise Refused("no-rule", f"{label(found.node)} of order {p} has no rule", found.node)
    zero = found.apply(torch.eq, found.term, 0)
    if p == 0:
        return found.of(found.apply(torch.logical_not, zero), torch.bool).to(found.dtype).reduce("sum")
    # A number that is 0 has no gradient, whatever its power's would be.
    size = found.apply(torch.abs, found.apply(torch.where, zero, 1.0, found.term))
    power = found.apply(torch.where, zero, 0.0, found.apply(torch.pow, size, p))
    return _safe_root(found, found.of(power).reduce("sum"), 1 / p)


@rule(*NORMS)
def _norm(machine: Machine, node: fx.Node) -> Any:
    name = name_of(node)
    p = argument(node, 1, "p" if name == "norm" else "ord", "fro" if name == "norm" else None)
    dims, keepdim = argument(node, 2, "dim"), argument(node, 3, "keepdim", False)
    found = over(machine, node, dims, keepdim)
    if found is None:
        return outside_call(machine, node)
    if name == "linalg_norm" and p is not None and (not isinstance(dims, int) and found.segment.rank != 1):
        raise Refused("no-rule", "a matrix norm has no rule", node)
    if found.dtype.is_complex:
        raise Refused("no-rule", f"{label(node)} of complex numbers has no rule", node)
    exact = found.to(exact_type(example(node).dtype)).guarded()
    return exact.done(norm_term(exact, p), exact.dtype)


@rule("normalize")
def _normalize(machine: Machine, node: fx.Node) -> Any:
    """``F.normalize`` along the packed dimension."""
    p, dim, eps = argument(node, 1, "p", 2.0), argument(node, 2, "dim", 1), argument(node, 3, "eps", 1e-12)
    found = over(machine, node, dim, True)
    if found is None:
        return outside_call(machine, node)
    if example(node).dtype != exact_type(example(node).dtype) or found.dtype != example(node).dtype:
        raise Refused("no-rule", f"{label(node)} in this precision has no rule", node)
    found = found.guarded()
    scale = found.apply(torch.clamp_min, norm_term(found, p), eps, dim_of_term=0)
    term = found.apply(torch.div, found.term, found.in_slots(scale))
    return machine.fresh(term, found.segment.rank, found.segment.window)
