"""Rules for reductions over a document's slots, alone or with other dimensions: one value per document.

Each is a segment reduction of the whole row. Slots of the document that the body left out hold the reduction's
identity; what eager refuses for a document without slots is checked on the device.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.ops._monoids import reduction
from packpass.semantics import argument, example
from packpass.semantics.meaning import is_one
from packpass.semantics.products import MATMULS
from packpass.semantics.reductions import TRUTHS
from passes.document_loops.documents import cast, document, length, lifted, require_slots, spread
from passes.document_loops.integers import Window
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import outside_call, rule
from passes.document_loops.terms import Apply, DocVector, Fill, Outside, Reduce, Term
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter


@dataclasses.dataclass(frozen=True, eq=False)
class TimesSizes(Term):
    """Numbers of documents, times the sizes ``dims`` of a row."""

    numbers: Term
    row: Term
    dims: tuple[int, ...]
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        row, made = emitter.node(self.row), emitter.node(self.numbers)
        for d in self.dims:
            size = emitter.call(torch.ops.aten.sym_size.int, row, example(row).dim() + d)
            made = emitter.call(torch.mul, made, size)
        return made


@dataclasses.dataclass(frozen=True)
class Over:
    """A reduction of ``term`` (of ``dtype``) over the packed dimension and ``others`` (negative), from `over`."""

    machine: Machine
    node: fx.Node
    segment: Segment
    term: Term
    dtype: torch.dtype
    others: tuple[int, ...]
    keepdim: bool

    @property
    def rank(self) -> int:
        """Dimensions of the result without ``keepdim``."""
        return self.segment.rank - 1 - len(self.others)

    def to(self, dtype: torch.dtype) -> Over:
        term = cast(self.machine, self.term, self.dtype, dtype)
        return dataclasses.replace(self, term=term, dtype=dtype)

    def of(self, term: Term, dtype: torch.dtype | None = None) -> Over:
        """The same reduction of another row."""
        return dataclasses.replace(self, term=self.machine.intern(term), dtype=dtype or self.dtype)

    def apply(self, target: Any, *args: Any, method: bool = False, **kwargs: Any) -> Term:
        """An op on slots, or on documents (``dim=0``)."""
        dim = kwargs.pop("dim_of_term", self.segment.dim)
        term: Term = self.machine.intern(Apply(target, method, args, tuple(sorted(kwargs.items())), dim))
        return term

    def guarded(self) -> Over:
        """For ops on slots before the reduction: NaN of slots that nobody asked for must not meet a gradient of 0."""
        return self.of(self.guard(self.term))

    def guard(self, term: Term) -> Term:
        fake = example(self.node)
        fakes = fake if isinstance(fake, (tuple, list)) else [fake]
        if not any(f.requires_grad for f in fakes):
            return term
        kept: Term = self.machine.guard(term, self.segment.window, self.segment.dim)
        return kept

    def filled(self, identity: Any) -> Term:
        window = self.segment.window
        if window == Window():
            return self.term
        term: Term = self.machine.intern(Fill(self.term, window, identity, self.segment.dim))
        return term

    def reduce(self, op: str) -> Term:
        """[N + 1, *rest]: "sum", "prod", "amax", "amin", or "max" and "min" of everything."""
        if self.dtype.is_complex and op != "sum":
            raise Refused("no-rule", f"{label(self.node)} of complex numbers has no rule", self.node)
        identity = reduction(op).identity
        term: Term = self.machine.intern(Reduce(self.filled(identity(self.dtype)), op, self.segment.dim, self.others))
        return term

    def count(self) -> Term:
        """int64 [N + 1, 1, ...]: numbers that are reduced, lined up with the result of `reduce`."""
        window = self.segment.window
        if not window.plain and window.between is None:
            raise Refused("no-rule", f"{label(self.node)} of the first or last slots of a document", self.node)
        term = self.machine.intern(DocVector(length(self.machine, window), torch.int64))
        if window.plain and window != Window():
            term = self.apply(torch.clamp, term, min=0, dim_of_term=0)
        sizes = [example(self.node.args[0]).shape[d] for d in self.others]
        width = math.prod(size for size in sizes if isinstance(size, int))
        if width != 1:
            term = self.apply(torch.mul, term, width, dim_of_term=0)
        dynamic = tuple(d for d, size in zip(self.others, sizes, strict=True) if not isinstance(size, int))
        if dynamic:
            term = self.machine.intern(TimesSizes(term, self.term, dynamic))
        return lifted(self.machine, term, self.rank)

    def in_slots(self, term: Term) -> Term:
        """A result of `reduce` in every slot, with sizes of 1 for the reduced dimensions."""
        kept = self.with_dims(term)
        shape = [s if d - self.segment.rank not in self.reduced else 1 for d, s in enumerate(self.shape)]
        return self.guard(spread(self.machine, kept, shape, self.segment.dim, self.node))

    @property
    def shape(self) -> Any:
        return example(self.node.args[0]).shape

    @property
    def reduced(self) -> tuple[int, ...]:
        return tuple(sorted((self.segment.dim, *self.others)))

    def with_dims(self, term: Term) -> Term:
        for d in self.reduced:
            term = self.apply(torch.unsqueeze, term, d + self.segment.rank + 1, dim_of_term=0)
        return term

    def done(self, term: Term, have: torch.dtype | None = None) -> Document:
        """The result as eager returns it: its dimensions and dtype."""
        fake = example(self.node)
        if isinstance(fake, torch.Tensor) and have is not None:
            term = cast(self.machine, term, have, fake.dtype)
        return document(self.machine, self.with_dims(term) if self.keepdim else term)

    def not_empty(self) -> None:
        """Eager raises for a document without slots."""
        require_slots(self.machine, self.segment.window, 1, f"{label(self.node)} of a document without slots")


def over(machine: Machine, node: fx.Node, dims: Any, keepdim: Any = False) -> Over | None:
    """The reduction of this node's segment, None if it is not one; refuses one that keeps the packed dimension."""
    source = argument(node, 0, "input")
    value = machine.value(source)
    if isinstance(value, Outside):
        return None
    if not isinstance(value, Segment) or not isinstance(keepdim, bool) or node.kwargs.get("out") is not None:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    if source is not node.args[0]:
        raise Refused("no-rule", f"{label(node)} of a keyword argument has no rule", node)
    if not value.store.exact:
        raise Refused("no-rule", f"{label(node)} of a padded part of a document has no rule", node)
    rank = value.rank
    given = range(rank) if dims is None or dims == () or dims == [] else [dims] if isinstance(dims, int) else dims
    if not all(isinstance(d, int) for d in given):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    found = sorted({d % rank - rank for d in given})
    if value.dim not in found:
        raise Refused("no-rule", f"{label(node)} over other dimensions than the packed one has no rule", node)
    others = tuple(d for d in found if d != value.dim)
    return Over(machine, node, value, machine.read(value, node), example(source).dtype, others, keepdim)


def dims_of(node: fx.Node, position: int = 1) -> Any:
    return argument(node, position, "dim", node.kwargs.get("axis"))


# === Sums ====================================================================================================


@rule("sum", "nansum")
def _sum(machine: Machine, node: fx.Node) -> Any:
    found = over(machine, node, dims_of(node), argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    if name_of(node) == "nansum" and found.dtype.is_floating_point:
        found = found.of(found.apply(torch.where, found.apply(torch.isnan, found.term), 0, found.term))
    return found.done(found.to(example(node).dtype).reduce("sum"))


@rule("sum_to_size")
def _sum_to_size(machine: Machine, node: fx.Node) -> Any:
    """The sum over the dimensions that become 1, or go."""
    sizes: Any = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    before = list(example(node.args[0]).shape)
    gone = len(before) - len(sizes)
    if not sizes or node.kwargs or gone < 0 or not all(type(s) is int for s in sizes):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    summed = [d for d in range(len(before)) if d < gone or (sizes[d - gone] == 1 and not is_one(before[d]))]
    found = over(machine, node, summed, True)
    if found is None:
        return outside_call(machine, node)
    term = found.with_dims(found.to(example(node).dtype).reduce("sum"))
    for _ in range(gone):
        term = found.apply(torch.squeeze, term, 1, dim_of_term=0)
    return document(machine, term)


@rule("mean")
def _mean(machine: Machine, node: fx.Node) -> Any:
    found = over(machine, node, dims_of(node), argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    want = example(node).dtype
    return found.done(mean(found.to(exact_type(want))), exact_type(want))


def exact_type(dtype: torch.dtype) -> torch.dtype:
    """What torch accumulates in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def mean(found: Over) -> Term:
    return found.apply(torch.div, found.reduce("sum"), found.count(), dim_of_term=0)


@rule("prod")
def _prod(machine: Machine, node: fx.Node) -> Any:
    found = over(machine, node, dims_of(node), argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    return found.done(found.to(example(node).dtype).reduce("prod"))


@rule(*TRUTHS)
def _count(machine: Machine, node: fx.Node) -> Any:
    found = over(machine, node, dims_of(node), argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    name = name_of(node)
    hit = found.apply(torch.eq if name == "all" else torch.ne, found.term, 0)
    hits = found.of(hit, torch.bool).to(torch.int64).reduce("sum")
    if name == "count_nonzero":
        return found.done(hits)
    compared = found.apply(torch.eq if name == "all" else torch.gt, hits, 0, dim_of_term=0)
    return found.done(compared, torch.bool)


@rule("logsumexp")
def _logsumexp(machine: Machine, node: fx.Node) -> Any:
    found = over(machine, node, dims_of(node), argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    return _log_of_powers(found.to(exact_type(example(node).dtype)))


def _log_of_powers(found: Over) -> Document:
    exact = found.guarded()
    highest_ = exact.apply(torch.detach, exact.reduce("amax"), dim_of_term=0)
    finite = exact.apply(torch.isfinite, highest_, dim_of_term=0)
    shift = exact.apply(torch.where, finite, highest_, 0.0, dim_of_term=0)
    # Slots outside of the window must not overflow: their exponential would be garbage times a gradient of 0.
    inside = exact.of(exact.filled(-math.inf))
    powers = exact.apply(torch.exp, exact.apply(torch.sub, inside.term, exact.in_slots(shift)))
    total = exact.of(powers).reduce("sum")
    result = exact.apply(torch.add, exact.apply(torch.log, total, dim_of_term=0), shift, dim_of_term=0)
    return exact.done(result, exact.dtype)


@rule("masked.logsumexp")
def _masked_logsumexp(machine: Machine, node: fx.Node) -> Any:
    """``torch.masked.logsumexp``: what is masked out is -inf."""
    mask = machine.value(node.kwargs.get("mask"))
    found = over(machine, node, dims_of(node), argument(node, 2, "keepdim", False))
    if found is None or not found.dtype.is_floating_point or example(node).dtype != exact_type(found.dtype):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    if mask is None:
        return _log_of_powers(found)
    same = isinstance(mask, Segment) and mask.dim == found.segment.dim and mask.rank == found.segment.rank
    if not same or mask.window != found.segment.window or not mask.store.exact:
        raise Refused("no-rule", f"{label(node)} with this mask has no rule", node)
    kept = machine.read(mask, node)
    return _log_of_powers(found.of(found.apply(torch.where, kept, found.term, -math.inf)))


# === Products over the slots =================================================================================


@rule(*MATMULS, "inner", "vdot")
def _contraction(machine: Machine, node: fx.Node) -> Any:
    """``weights @ segment`` with ``weights`` [L] and ``segment`` [L, H]: a weighted sum over the document."""
    unknown = Refused("no-rule", f"{label(node)} of these segments has no rule", node)
    left, right = (machine.value(a) for a in node.args[:2])
    if isinstance(left, Outside) and isinstance(right, Outside):
        return outside_call(machine, node)
    if not (isinstance(left, Segment) and isinstance(right, Segment)) or len(node.args) != 2 or node.kwargs:
        raise unknown
    if (
        left.rank != 1
        or right.rank not in ((1,) if name_of(node) in ("inner", "vdot") else (1, 2))
        or right.dim != -right.rank
        or left.window != right.window
    ):
        raise unknown
    if not (left.store.exact and right.store.exact) or not example(node).dtype.is_floating_point:
        raise unknown
    a, b = machine.read(left, node), machine.read(right, node)
    want = example(node).dtype
    exact = exact_type(want)
    a, b = cast(machine, a, want, exact), cast(machine, b, want, exact)
    if example(node).requires_grad:  # a gradient of 0 times the NaN of a slot that nobody asked for
        a, b = (machine.guard(t, left.window, t.dim) for t in (a, b))
    if right.rank == 2:
        a = machine.intern(Apply(torch.unsqueeze, False, (a, -1), (), -2))
    product = machine.intern(Apply(torch.mul, False, (a, b), (), right.dim))
    filled = product if left.window == Window() else machine.intern(Fill(product, left.window, 0, right.dim))
    return document(machine, cast(machine, machine.intern(Reduce(filled, "sum", right.dim)), exact, want))
