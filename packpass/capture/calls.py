"""Calls that mean something else in a loop over documents: iteration, split and cat, roll, indexing.

Each function is ``replacement(original, *args)`` for one entry of the hook table in `packpass.capture`.
"""

from __future__ import annotations

import builtins
import itertools
import operator
from typing import Any

import torch
from torch._dynamo.variables import (
    ConstantVariable,
    ListVariable,
    SliceVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
)

from packpass.capture import divisible, markers, sequences, shadows
from packpass.capture.region import CollectedItems
from packpass.capture.sequences import SymbolicSequence
from packpass.capture.shadows import SHADOWED
from packpass.capture.state import Mode, active, refuse
from packpass.capture.watch import (
    current_frame,
    enter_loop_mode,
    example,
    is_scalar,
    is_unknown,
    is_vector,
    location_of,
    loop_mode_for_symint,
    static_sizes,
    vector_sequence,
    watch_item,
)

_CATS = (torch.cat, torch.concat, torch.concatenate)
_STACKS = (torch.stack,)
_PADS = (torch._C._nn.pad_sequence,)
_SPLITS = (torch.split, torch.functional.split)


def call_builtin(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``BuiltinVariable.call_function``: ``range`` and ``zip`` over documents."""
    out = None
    if self.fn is operator.getitem and len(args) == 2 and current_frame().mode in (Mode.SYMBOLIC, Mode.UNROLLED):
        base = args[0].realize()
        if isinstance(base, TensorVariable):  # x[s] with a 0-d tensor does not come by Tensor.__getitem__
            out = _index_by_symint(base, tx, "__getitem__", [args[1]])
        return original(self, tx, args, kwargs) if out is None else out
    if self.fn is builtins.range and not kwargs and 1 <= len(args) <= 3:
        out = _call_range(tx, [a.realize() for a in args])
    elif self.fn is builtins.zip and args and not set(kwargs) - {"strict"}:
        out = _call_zip(tx, [a.realize() for a in args], kwargs.get("strict"))
    elif self.fn is builtins.map and len(args) >= 2 and not kwargs:
        found = [vector_sequence(tx, a.realize()) for a in args[1:]]
        if all(f is not None for f in found):
            out = sequences.of_map(tx, args[0].realize(), found, location_of(tx))  # type: ignore[arg-type]
    elif self.fn in (builtins.list, builtins.tuple) and len(args) == 1 and not kwargs:
        value = args[0].realize()
        if isinstance(value, SymbolicSequence):
            # A copy of a sequence that is never changed is the sequence, unless making it calls user code.
            return sequences.collect(tx, value) if value.calls else value.listed()
        if _is_collected(value):
            return value
    return original(self, tx, args, kwargs) if out is None else out


def call_list(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``list(sequence)`` where torch has a variable class of its own for it."""
    if len(args) == 1 and not kwargs:
        value = args[0].realize()
        if isinstance(value, SymbolicSequence):
            return sequences.collect(tx, value) if value.calls else value.listed()
        if _is_collected(value):
            return value
    return original(self, tx, args, kwargs)


def _is_collected(value: Any) -> bool:
    """A finished list with one entry per document: nothing can change it any more, so that a copy is the list."""
    return isinstance(value, ListVariable) and isinstance(value.items, CollectedItems) and not active.regions


def _call_range(tx: Any, args: list[Any]) -> Any:
    if len(args) == 3 and not (args[2].is_python_constant() and args[2].as_python_constant() == 1):
        return None
    start, stop = (ConstantVariable.create(0), args[0]) if len(args) == 1 else args[:2]
    if all(a.is_python_constant() for a in args):
        n = stop.as_python_constant()
        if isinstance(n, int) and n >= 1:
            enter_loop_mode(tx, static_sizes(n))
        return None
    if not all(isinstance(a, SymNodeVariable) or a.is_python_constant() for a in args):
        return None
    # Only the difference counts: range(1, n) runs as often as range(n - 1).
    length = sequences.expression(stop) - sequences.expression(start)
    if loop_mode_for_symint(tx, length):
        return sequences.of_range(tx, start, stop, location_of(tx))
    return None


def _call_zip(tx: Any, args: list[Any], strict: Any) -> Any:
    found = [vector_sequence(tx, a) for a in args]
    known = [f for f in found if f is not None]
    if not known:
        return None
    if len(known) != len(found):
        raise refuse(
            "unequal-lengths",
            "zip of a sequence with one entry per document and one of constant length",
            location_of(tx),
        )
    return sequences.of_zip(
        tx, known, location_of(tx), strict is not None and bool(strict.realize().as_python_constant())
    )


def call_polyfill(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``PolyfilledFunctionVariable.call_function``: ``enumerate`` over documents."""
    if self.fn is builtins.enumerate and args and current_frame().mode is not Mode.STOCK:
        sequence = vector_sequence(tx, args[0].realize())
        if sequence is not None:
            start = args[1] if len(args) > 1 else kwargs.get("start", ConstantVariable.create(0))
            return sequences.of_enumerate(tx, sequence, start.realize(), location_of(tx))
    if self.fn is itertools.pairwise and len(args) == 1 and current_frame().mode is not Mode.STOCK:
        sequence = vector_sequence(tx, args[0].realize())
        if sequence is not None:
            return sequences.of_pairwise(tx, sequence, location_of(tx))
    return original(self, tx, args, kwargs)


def call_torch(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``TorchInGraphFunctionVariable.call_function``: split into documents, cat of a per-document list, roll."""
    frame = current_frame()
    if frame.mode in (Mode.SYMBOLIC, Mode.UNROLLED):
        if self.value in _CATS:
            out = _call_cat(tx, *args, **kwargs)
            if out is not None:
                return out
        elif self.value in _STACKS:
            out = _call_stack(tx, *args, **kwargs)
            if out is not None:
                return out
        elif self.value in _PADS:
            out = _call_pad(tx, *args, **kwargs)
            if out is not None:
                return out
        elif self.value in _SPLITS:
            out = _call_split(tx, *args, **kwargs)
            if out is not None:
                return out
        elif self.value is torch._check and args:
            _note_check(tx, args[0].realize())
        elif self.value in SHADOWED:
            out = shadows.call(tx, self.value, *args, **kwargs)
            if out is not None:
                return out
        elif self.value in divisible.FUNCTIONS:
            out = divisible.call(tx, divisible.FUNCTIONS[self.value], *args, **kwargs)
            if out is not None:
                return out
        elif self.value is torch.roll:
            return _call_roll(tx, lambda: original(self, tx, args, kwargs), *args, **kwargs)
    return original(self, tx, args, kwargs)


def _call_cat(tx: Any, tensors: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    from torch._dynamo.variables.builder import wrap_fx_proxy

    found = _collected(tx, tensors)
    if found is None:
        return None
    dim = kwargs.get("axis", dim)
    at = 0 if dim is None else dim.realize().as_python_constant()
    proxy, length, fake = found
    if fake.dim() and not is_unknown(fake.shape[at]):
        _needs_every_document(tensors)
        return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.LIST_JOIN, (proxy, at, length), {}))
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.RAGGED_CAT, (proxy, at), {}))


def _needs_every_document(tensors: Any) -> None:
    """The result has one entry per document by its shape: not what a replay makes of a list that lacks some."""
    value = tensors.realize()
    if isinstance(value, ListVariable) and isinstance(value.items, CollectedItems) and value.items.region.skips:
        current_frame().not_replayable = "a list that lacks the skipped documents is stacked, padded or joined"


def _collected(tx: Any, tensors: Any) -> tuple[Any, Any, Any] | None:
    """``(proxy of the list, number of documents, fake of one part)`` of a list that a loop over documents filled."""
    if tensors is None:
        return None
    value = tensors.realize()
    if isinstance(value, SymbolicSequence):
        value = sequences.collect(tx, value)
    if not isinstance(value, ListVariable) or not isinstance(value.items, CollectedItems):
        return None
    items = value.items
    if items.collected is None:
        items._refuse()
    proxy: Any = items.collected.as_proxy()  # type: ignore[union-attr]
    return proxy, items.region.length.as_proxy(), proxy.node.meta["example_value"]


def _call_stack(tx: Any, tensors: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    """``torch.stack`` of values that documents have one of each."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    found = _collected(tx, tensors)
    if found is None or set(kwargs) - {"axis"}:
        return None
    dim = kwargs.get("axis", dim)
    at = 0 if dim is None else dim.realize().as_python_constant()
    proxy, length, fake = found
    _needs_every_document(tensors)
    if any(is_unknown(s) for s in fake.shape):
        raise refuse("list-use", "documents of different lengths cannot be stacked", location_of(tx))
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.LIST_STACK, (proxy, at, length), {}))


def _call_pad(
    tx: Any, tensors: Any = None, batch_first: Any = None, padding_value: Any = None, padding_side: Any = None
) -> Any:
    """``pad_sequence`` of segments."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    found = _collected(tx, tensors)
    if found is None:
        return None
    _needs_every_document(tensors)
    proxy, length, _ = found
    given = (batch_first, padding_value, padding_side)
    constants: list[Any] = [
        default if v is None else v.realize().as_python_constant()
        for v, default in zip(given, (False, 0.0, "right"), strict=True)
    ]
    first, number, side = constants
    args = (proxy, length, first, float(number), side)
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.LIST_PAD, args, {}))


def _call_split(tx: Any, tensor: Any = None, split_size_or_sections: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    sizes = (
        split_size_or_sections
        if split_size_or_sections is not None
        else kwargs.get("split_size", kwargs.get("split_sizes"))
    )
    if sizes is None or tensor is None:
        return None
    lengths = sizes.realize()
    if _is_collected(lengths) and lengths.items.numbers is not None:
        lengths = lengths.items.numbers
    if not isinstance(lengths, SymbolicSequence):
        return None
    at = 0 if dim is None else dim.realize().as_python_constant()
    return sequences.of_split(tx, tensor.realize(), lengths, at)


def _note_check(tx: Any, condition: Any) -> None:
    """``torch._check`` on data: Dynamo keeps it as one of its own assertions, which the passes drop; this one is the
    user's."""
    if isinstance(condition, SymNodeVariable) and is_unknown(condition.sym_num):
        if not active.regions:
            current_frame().user_checks = True
            return
        region = active.regions[-1]
        message = f"torch._check in the loop at {region.location} failed"
        args = (condition.as_proxy(), message, region.id, region.iteration)
        tx.output.create_proxy("call_function", markers.LOOP_CHECK, args, {})


def _call_roll(tx: Any, stock: Any, input: Any, shifts: Any = None, dims: Any = None) -> Any:
    """Inside a symbolic loop, and wherever a size is unknown, roll through an op whose fake does not guard."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    value = example(input.realize()) if isinstance(input.realize(), TensorVariable) else None
    if value is None or shifts is None or not any(is_unknown(s) for s in value.shape):
        return stock()
    try:
        k = shifts.realize().as_python_constant()
        d = dims.realize().as_python_constant() if dims is not None else ()
    except NotImplementedError:
        return stock()
    as_list = lambda a: [a] if isinstance(a, int) else list(a)  # noqa: E731
    args = (input.realize().as_proxy(), as_list(k), as_list(d))
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.ROLL, args, {}))


def call_tensor_method(original: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    """``TensorVariable.call_method``: ``tolist``, ``split`` and ``roll``."""
    frame = current_frame()
    if frame.mode is not Mode.STOCK:
        if name == "item" and frame.mode is Mode.PROBE and is_scalar(self):
            watch_item(tx, self)
        if name == "tolist" and is_vector(self):
            if vector_sequence(tx, self) is not None:
                return sequences.of_tolist(tx, self, location_of(tx))
        elif frame.mode is not Mode.PROBE:
            if name in ("__getitem__", "__setitem__") and not kwargs:
                out = _index_by_symint(self, tx, name, args)
                if out is not None:
                    return out
            if name in ("split", "split_with_sizes"):
                out = _call_split(tx, self, *args, **kwargs)
                if out is not None:
                    return out
            elif name in ("logsumexp", "cummax", "cummin"):
                out = shadows.call(tx, getattr(torch, name), self, *args, **kwargs)
                if out is not None:
                    return out
            elif name in divisible.METHODS:
                out = divisible.call(tx, name, self, *args, **kwargs)
                if out is not None:
                    return out
            elif name == "roll":
                return _call_roll(tx, lambda: original(self, tx, name, args, kwargs), self, *args, **kwargs)
    return original(self, tx, name, args, kwargs)


def _index_by_symint(self: Any, tx: Any, name: str, args: Any) -> Any:
    """``x[:, e - 1]`` and ``x[:, e - 1] = v`` with a data-dependent ``e``: torch's indexing takes such an integer only
    alone, so go through ``select``, which returns the same view."""
    key = args[0].realize()
    fake = example(self)
    if not isinstance(fake, torch.Tensor):
        return None
    entries = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else [key]
    # An integer tensor of no dimensions indexes like the integer it holds.
    scalars = [i for i, entry in enumerate(entries) if isinstance(entry, TensorVariable) and is_scalar(entry)]
    unknown = [i for i, e in enumerate(entries) if isinstance(e, SymNodeVariable) and is_unknown(e.sym_num)] + scalars
    if len(unknown) != 1 or (name == "__getitem__" and not isinstance(key, TupleVariable) and not scalars):
        return None
    if scalars:
        entries[scalars[0]] = entries[scalars[0]].call_method(tx, "item", [], {})
    rest = [entry for i, entry in enumerate(entries) if i != unknown[0]]
    ellipsis = [i for i, e in enumerate(entries) if e.is_python_constant() and e.as_python_constant() is Ellipsis]
    integers = [i for i, e in enumerate(entries) if e.is_python_constant() and type(e.as_python_constant()) is int]
    understood = {*unknown, *ellipsis, *integers}
    if not all(i in understood or isinstance(e, SliceVariable) for i, e in enumerate(entries)):
        return None
    dim = unknown[0] - sum(i < unknown[0] for i in integers)
    if ellipsis and ellipsis[0] < unknown[0]:
        dim += fake.dim() - (len(entries) - 1) - 1
    full = SliceVariable([ConstantVariable.create(None)] * 3, tx)
    index = TupleVariable([full if i == unknown[0] else entry for i, entry in enumerate(entries)])
    view = self
    if integers or not all(_is_full_slice(r) for r in rest):
        view = self.call_method(tx, "__getitem__", [index], {})
    slot = view.call_method(tx, "select", [ConstantVariable.create(dim), entries[unknown[0]]], {})
    if name == "__getitem__":
        return slot
    return slot.call_method(tx, "__setitem__", [ConstantVariable.create(Ellipsis), args[1]], {})


def _is_full_slice(entry: Any) -> bool:
    if isinstance(entry, SliceVariable):
        return all(v.is_python_constant() and v.as_python_constant() is None for v in entry.items)
    return entry.is_python_constant() and entry.as_python_constant() is Ellipsis


def tensor_iter(original: Any, self: Any, tx: Any) -> Any:
    """``TensorVariable.tp_iter_impl``: ``for boundary in cu_seqlens``."""
    if current_frame().mode is not Mode.STOCK:
        sequence = vector_sequence(tx, self)
        if sequence is not None:
            return sequence.tp_iter_impl(tx)
    return original(self, tx)


def list_iter(original: Any, self: Any, tx: Any) -> Any:
    """``ListVariable.tp_iter_impl``: looping again over a list with one entry per document."""
    if isinstance(self.items, CollectedItems):
        return sequences.of_collected(tx, self.items).tp_iter_impl(tx)
    return original(self, tx)
