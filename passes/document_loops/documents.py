"""Values that documents have one of each, as operands: how they turn into terms, line up and promote."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import call_of, example, op_of
from packpass.semantics.memory import aliases_of
from packpass.semantics.names import base_name, is_in_place
from packpass.semantics.pointwise import ARITHMETIC, DIVIDING, PROMOTING, broadcasts
from passes.document_loops.bits import MOST, of_affine, of_arithmetic
from passes.document_loops.integers import Affine, Bound, Check, Invariant, Window
from passes.document_loops.machine import (
    OPAQUE,
    PER_DOCUMENT,
    Cell,
    Document,
    Machine,
    Number,
    Segment,
    Slot,
)
from passes.document_loops.moved import common_window, together
from passes.document_loops.op_names import label
from passes.document_loops.rules import bound_arguments, minds_unread, only_documented
from passes.document_loops.terms import (
    Apply,
    DocGuard,
    DocVector,
    Outside,
    PointRead,
    Positions,
    Row,
    Spread,
    Take,
    Term,
    children,
    walk,
)
from passes.refused import Refused, refuse_stale

_LOW = (torch.bfloat16, torch.float16)


# === As terms ================================================================================================


def document(machine: Machine, term: Term) -> Document:
    """A new tensor of every document that nothing else refers to."""
    return Document(Cell(machine.intern(term)))


def document_view(machine: Machine, term: Term, of: Any) -> Document:
    """A tensor that may share memory with ``of`` (a `Document` or a `Slot`)."""
    memory = of.cell if isinstance(of, Document) else of.segment.store
    return Document(Cell(machine.intern(term), parent=(memory, memory.version)))


def shared_size(machine: Machine, arg: Any) -> Outside | None:
    """A number from outside of the loop, as an argument of the whole-row form; None for one of the document."""
    number = machine.affine(arg)
    single = number.single() if number is not None else None
    if single is None or not isinstance(single[0], Invariant) or single[1]:
        return None
    found: Outside = machine.intern(Outside(single[0].node))
    return found


def is_per_document(value: Any) -> bool:
    return isinstance(value, (*PER_DOCUMENT, Affine))


def read_cell(cell: Cell, node: fx.Node) -> Term:
    """Current content; refuses a view of what has changed since."""
    refuse_stale(cell, node)
    return cell.term


def as_term(machine: Machine, arg: fx.Node, node: fx.Node) -> Term:
    """The term of a per-document value: [N + 1, *shape] in the whole-row form, in the dtype that eager sees."""
    value = machine.value(arg)
    if isinstance(value, Document):
        return read_cell(value.cell, node)
    if isinstance(value, Number):
        return value.term
    if isinstance(value, Slot):
        return _slot(machine, value, node)
    assert isinstance(value, Affine)
    dtype = example(arg).dtype if isinstance(example(arg), torch.Tensor) else torch.int64
    term: Term = machine.intern(DocVector(value, dtype))
    return term


def _slot(machine: Machine, slot: Slot, node: fx.Node) -> Term:
    store = slot.segment.store
    if slot.position is not None:
        assert isinstance(store.outer, Row)
        if store.version:
            raise Refused("aliasing", "a slot of a tensor that the loop writes is read by its number in the row", node)
        return machine.intern(PointRead(store.outer, slot.position, machine.reach))
    window, term = slot.segment.window, machine.read(slot.segment, node)
    if not store.exact:
        raise Refused("no-rule", "a slot of a padded part of a document is read", node)
    position = -window.last if window.last is not None else (window.first or 1) - 1
    needed = window.last if window.last is not None else window.first
    require_slots(machine, Window(), needed or 1, f"{label(node)} reads a slot that a document does not have")
    return machine.intern(Take(term, position, term.dim))


def length(machine: Machine, window: Window) -> Affine:
    """Slots of the document between the front and the back of a plain window (negative if they overlap), or between
    two numbers of the document."""
    if window.between is not None:
        return window.between[1].plus(window.between[0], -1)
    of, k = machine.boundaries
    return Affine.of(Bound(of, k + 1)).plus(Affine.of(Bound(of, k)), -1).plus(Affine.of(window.front + window.back), -1)


def require_slots(machine: Machine, window: Window, count: int, message: str) -> None:
    """Eager raises for a document with fewer slots in the window."""
    plain = window if window.plain or window.between is not None else Window()
    machine.require(length(machine, plain), "ge", Affine.of(count), f"packpass: {message}")


def cast(machine: Machine, term: Term, have: torch.dtype, want: torch.dtype) -> Term:
    """``term.to(want)``."""
    return term if have == want else machine.intern(Apply("to", True, (term, want), (), getattr(term, "dim", 0)))


def lifted(machine: Machine, term: Term, count: int) -> Term:
    """``count`` dimensions of size 1 between the documents and what they hold."""
    for _ in range(count):
        term = machine.intern(Apply(torch.unsqueeze, False, (term, 1), (), 0))
    return term


def size_to_expand_to(size: Any, shape: Any, dim: int) -> int | None:
    """A constant size, or -1 as ``expand`` has it for that of a dimension (negative) that stays as it is; None else."""
    same = len(shape) >= -dim and not isinstance(size, int) and statically_known_true(shape[dim] == size)
    return size if isinstance(size, int) else -1 if same else None


def with_other_singles(machine: Machine, term: Term, before: torch.Tensor, after: torch.Tensor) -> Term | None:
    """A value in another shape that has dimensions of one slot in other places; None if there is more to it."""
    ones = [[d for d, size in enumerate(t.shape) if type(size) is int and size == 1] for t in (before, after)]
    kept = [
        [size for d, size in enumerate(t.shape) if d not in own] for t, own in zip((before, after), ones, strict=True)
    ]
    if len(kept[0]) != len(kept[1]) or not all(statically_known_true(a == b) for a, b in zip(*kept, strict=True)):
        return None
    for d in reversed(ones[0]):
        term = machine.intern(Apply(torch.squeeze, False, (term, d + 1), (), 0))
    for d in ones[1]:
        term = machine.intern(Apply(torch.unsqueeze, False, (term, d + 1), (), 0))
    return term


def spread(machine: Machine, term: Term, shape: Any, dim: int, node: fx.Node) -> Term:
    """The value of its document in every slot, lined up with a segment of packed ``dim``."""
    if len(shape) >= -dim and not (isinstance(shape[dim], int) and shape[dim] == 1):
        raise Refused(
            "whole-row-operand", "a per-document value with an extent along the packed dimension meets a segment", node
        )
    return machine.intern(Spread(term, len(shape), dim))


def own_slots(machine: Machine, device: torch.device, dim: int) -> Term:
    """int64: each slot's place in its document, lined up with a segment of packed ``dim``."""
    here: Term = machine.intern(Positions(True, 0, torch.int64, device))
    for _ in range(-dim - 1):
        here = machine.intern(Apply(torch.unsqueeze, False, (here, -1), (), getattr(here, "dim", 0) - 1))
    return here


# === Elementwise =============================================================================================


def _category(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def _common(operands: list[Any]) -> torch.dtype:
    """The dtype torch computes in: tensors with dimensions first, then 0-d tensors, then Python numbers."""
    found: list[torch.dtype | None] = [None, None, None]
    for fake in operands:
        if isinstance(fake, torch.Tensor):
            rank, dtype = (0 if fake.dim() else 1), fake.dtype
        elif isinstance(fake, (bool, torch.SymBool)):
            rank, dtype = 2, torch.bool
        elif isinstance(fake, (int, torch.SymInt)):
            rank, dtype = 2, torch.int64
        else:
            rank, dtype = 2, torch.get_default_dtype()
        before = found[rank]
        found[rank] = dtype if before is None else torch.promote_types(before, dtype)
    result = None
    for dtype in found:  # type: ignore[assignment]
        if dtype is not None and (result is None or _category(dtype) > _category(result)):
            result = torch.promote_types(result, dtype) if result is not None else dtype
    assert result is not None
    return result


def _compute_dtype(machine: Machine, node: fx.Node, name: str) -> torch.dtype | None:
    """The dtype to cast operands to, where a value that promotes nothing in eager has dimensions in the whole form."""
    given = [*node.args, *node.kwargs.values()]
    tensors = [a for a in given if isinstance(a, fx.Node)]
    lone = any(is_per_document(machine.value(a)) and not getattr(example(a), "ndim", 0) for a in tensors)
    if not lone or len(tensors) < 2:
        return None
    if name not in PROMOTING:
        if len({example(a).dtype if isinstance(example(a), torch.Tensor) else a for a in tensors}) > 1:
            raise Refused("no-rule", f"{label(node)} of per-document values of different dtypes has no rule", node)
        return None
    condition = bound_arguments(node).get("condition")
    common = _common([example(a) for a in given if a is not None and a is not condition and not isinstance(a, str)])
    return torch.float32 if common in _LOW else common


def combine(machine: Machine, node: fx.Node, name: str, target: Any, method: bool) -> Any:
    """An elementwise op with a per-document operand: a `Segment` if a segment takes part, else a `Document`."""
    only_documented(node)
    fake = example(node)
    segments = [v for a in node.all_input_nodes if isinstance(v := machine.value(a), Segment)]
    for key, v in bound_arguments(node).items():
        if isinstance(v, fx.Node) and is_per_document(machine.value(v)) and not broadcasts(op_of(node), key):
            raise Refused("no-rule", f"{label(node)} with a per-document {key} has no rule", node)
    window = common_window(machine, segments) if segments else Window()
    dim = segments[0].dim if segments else 0
    if any(s.dim != dim for s in segments):
        raise Refused("dim-mismatch", f"{label(node)} combines segments along different dimensions", node)
    compute = _compute_dtype(machine, node, name)
    guarded = minds_unread(node)
    untouched = bound_arguments(node).get("condition")

    def leaf(arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return arg
        value, have = machine.value(arg), example(arg)
        if isinstance(value, Outside):
            if segments:
                machine.broadcasts(value, dim, node)
            return value
        if isinstance(value, Segment):
            term = machine.aligned(value, window, node, broadcast=True)
        elif isinstance(value, Affine) and value.is_const:
            return value.const
        elif is_per_document(value):
            term = as_term(machine, arg, node)
        else:
            raise Refused("index-as-number", f"{label(node)} uses an integer that is not understood", node)
        if compute is not None and arg is not untouched:
            dtype = have.dtype if isinstance(have, torch.Tensor) else as_tensor_dtype(have)
            term = cast(machine, term, dtype, compute)
        if isinstance(value, Segment):
            return machine.guard(term, window, term.dim) if guarded else term
        shape = have.shape if isinstance(have, torch.Tensor) else ()
        if segments:
            term = spread(machine, term, shape, dim, node)
            return machine.guard(term, window, dim) if guarded else term
        if guarded:
            term = machine.intern(DocGuard(term, machine.reach))
        return lifted(machine, term, fake.dim() - len(shape))

    args = tuple(_mapped(a, leaf) for a in node.args)
    kwargs = tuple(sorted((k, _mapped(v, leaf)) for k, v in node.kwargs.items()))
    term: Term = machine.intern(Apply(target, method, args, kwargs, dim))
    if compute == torch.float32 and fake.dtype in _LOW:
        term = cast(machine, term, torch.float32, fake.dtype)
    shared = _shared(machine, node)
    if segments:
        if isinstance(shared, Segment):
            return machine.view(term, fake.dim(), shared)
        return machine.fresh(term, fake.dim(), window, least=together(segments))
    return document(machine, term) if shared is None else document_view(machine, term, shared)


def _shared(machine: Machine, node: fx.Node) -> Any:
    """The operand whose memory the result of a call may be; None if there is none."""
    call = call_of(node)
    if call is None or call.in_place:
        return None
    operands = [call.operands[k] for k in aliases_of(call)[0]]
    values = [machine.value(o.node) for o in operands if o.value.dtype == example(node).dtype]
    return next((v for v in values if isinstance(v, (Document, Slot, Segment))), None)


def _mapped(arg: Any, leaf: Any) -> Any:
    if isinstance(arg, (tuple, list)):
        return tuple(_mapped(a, leaf) for a in arg)
    return leaf(arg)


def elementwise_target(node: fx.Node, name: str) -> tuple[str, Any, bool]:
    """``(name, target, is a method)`` of the op itself, for ``x.op_(y)`` and ``x op= y`` the one that makes a copy."""
    if not is_in_place(name):
        return name, node.target, node.op == "call_method"
    name = base_name(name)
    fn = getattr(torch, name, None)
    return name, fn or name, fn is None


def reinterpreted(machine: Machine, node: fx.Node) -> Document:
    """``doc.to(...)`` and its like: a view if nothing changes."""
    value = machine.value(node.args[0])
    have, want = example(node.args[0]), example(node)
    assert isinstance(node.args[0], fx.Node)
    term = as_term(machine, node.args[0], node)
    if have.dtype != want.dtype:
        term = cast(machine, term, have.dtype, want.dtype)
    if have.device != want.device:
        term = machine.intern(Apply("to", True, (term, want.device), (), 0))
    changed = have.dtype != want.dtype or have.device != want.device
    if changed or not isinstance(value, (Document, Slot)):
        return document(machine, term)
    return document_view(machine, term, value)


# === Python numbers ==========================================================================================


def _bits(value: Any) -> int:
    if isinstance(value, Number):
        return value.bits
    return of_affine(value) if isinstance(value, Affine) else value.bit_length() if type(value) is int else 0


def _is_a_number(part: Any) -> bool:
    """Is a number surely none that is not a number: is it made of integers of documents?"""
    leaves = [term for term in walk(part) if not children(term)]
    return all(isinstance(leaf, DocVector) for leaf in leaves)


def as_tensor_dtype(fake: Any) -> torch.dtype:
    """The dtype in which numbers of Python are kept, one per document."""
    return torch.float64 if isinstance(fake, (float, torch.SymFloat)) else torch.int64


def number(machine: Machine, node: fx.Node, name: str) -> Any:
    """Python arithmetic on numbers of a document; `OPAQUE` where it is not understood."""
    args = [machine.value(a) for a in node.args]
    if (
        name not in (*ARITHMETIC, "sym_float")
        or node.kwargs
        or not isinstance(example(node), (torch.SymInt, torch.SymFloat))
    ):
        return OPAQUE
    if not all(isinstance(a, (Affine, Number)) or type(a) in (int, float) for a in args):
        return OPAQUE
    if not any(is_per_document(a) for a in args):
        return OPAQUE
    want, bits = as_tensor_dtype(example(node)), of_arithmetic(name, [_bits(arg) for arg in args])
    if want is torch.int64 and bits > MOST:
        return OPAQUE
    if name in DIVIDING:
        if isinstance(args[1], Affine) and not args[1].is_const:
            message = "packpass: division by zero in a loop over documents"
            machine.checks.append(Check(args[1], "ne", Affine(), message, machine.reach))
        elif isinstance(args[1], Number):
            return OPAQUE
    if name in ("sqrt", "pow"):
        base, power = args[0], args[1] if name == "pow" else 0.5
        if not isinstance(base, Affine) or type(power) not in (int, float):
            return OPAQUE
        message = "packpass: a root or power in a loop over documents is not defined"
        if type(power) is float:
            machine.checks.append(Check(base, "ge", Affine.of(0 if power > 0 else 1), message, machine.reach))
        elif power < 0:
            machine.checks.append(Check(base, "ne", Affine(), message, machine.reach))
    parts: list[Any] = []
    for arg, value in zip(node.args, args, strict=True):
        if isinstance(value, (Affine, Number)):
            term = as_term(machine, arg, node)  # type: ignore[arg-type]
            parts.append(cast(machine, term, as_tensor_dtype(example(arg)), want))
        else:
            parts.append(value)
    if name in ("maximum", "minimum") and want is torch.float64 and not all(map(_is_a_number, parts)):
        return OPAQUE  # Python's larger one of a number and none is that which comes first
    if name in ("maximum", "minimum") and not isinstance(parts[0], Term):
        parts.reverse()
    if not isinstance(parts[0], Term):
        parts[0] = cast(machine, machine.intern(DocVector(Affine.of(1), torch.int64)), torch.int64, want)
        scale = machine.value(node.args[0])
        parts[0] = machine.intern(Apply(torch.mul, False, (parts[0], scale), (), 0))
    if name in ("maximum", "minimum") and not isinstance(parts[1], Term):
        limit = (("min" if name == "maximum" else "max", parts[1]),)
        return Number(machine.intern(Apply(torch.clamp, False, (parts[0],), limit, 0)), bits)
    if name in DIVIDING and isinstance(parts[1], Term):  # what integers are divided by may be no 0 for anybody
        parts[1] = machine.intern(DocGuard(parts[1], machine.reach))
    if name == "sym_float":
        return Number(parts[0])
    return Number(machine.intern(Apply(getattr(torch, name), False, tuple(parts), (), 0)), bits)
