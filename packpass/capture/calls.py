"""Calls of torch that mean something else where sizes of documents are unknown: cat of a list with one entry per
document, split into documents, roll, indexing by a number that is data.

Each function here gives the value that the call is replaced by, or None if the call is what it seems.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch

from packpass import markers
from packpass._compat import native_pad
from packpass.capture import (
    code_loops,
    counts,
    divisible,
    extended,
    flags,
    images,
    joins,
    layers,
    lifted,
    masked,
    number_lists,
    place_ends,
    plain,
    plain_numbers,
    plain_parts,
    reals,
    row_entries,
    row_numbers,
    running,
    shadows,
    subscripts,
    widths,
)
from packpass.capture.dynamo import (
    ConstantVariable,
    GetAttrVariable,
    NumpyNdarrayVariable,
    SymNodeVariable,
    TensorVariable,
    attribute,
    call,
    constant,
    emit,
    example,
    variable,
)
from packpass.capture.frame import LOOP_MODES, Mode
from packpass.capture.lists import is_documents, numbers_of
from packpass.capture.loop_checks import must_hold
from packpass.capture.matrices import with_numbers
from packpass.capture.origins import needed_for
from packpass.capture.sequences import documents_of, refuse_use, rows_of_numbers
from packpass.capture.state import active, current_frame, location_of, refuse
from packpass.capture.watch import (
    is_batch,
    is_jagged,
    is_matrix,
    is_scalar,
    is_unknown,
    is_vector,
    watch_count,
    watch_list,
)
from packpass.semantics.names import name_of_target
from packpass.semantics.reductions import OF_A_ROW
from packpass.semantics.sizes import OF_MEMORY, TAKING_SIZES


def call_function(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A function of torch, in a frame with a loop over documents."""
    replacement = _FUNCTIONS.get(function)
    given = with_numbers(tx, args, kwargs) if name_of_target(function) in TAKING_SIZES else None
    given = _with_arrays(tx, function, args, kwargs) if given is None else given
    args, kwargs = given or (args, kwargs)
    out = None if replacement is None else replacement(tx, *args, **kwargs)
    return variable(tx, function).call_function(tx, args, kwargs) if out is None and given is not None else out


def _with_arrays(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The arguments of a function of numpy with the array that a list of numbers becomes in it; None if there is no
    such list."""
    if getattr(function, "__module__", "") != "numpy" or active.regions:
        return None
    made = [_array(tx, arg.realize()) for arg in args]
    if not any(made):
        return None
    return [arg if own is None else own for arg, own in zip(args, made, strict=True)], kwargs


def _array(tx: Any, value: Any) -> Any:
    """The array of the numbers in a list that has one, or a row of them, per document; None if it is something else."""
    tensor = running.tensor_of(tx, value)
    if tensor is None:
        return None
    own = tensor if example(tensor).is_floating_point() else tensor.call_method(tx, "long", [], {})
    own = own.call_method(tx, "clone", [], {})  # a list does not share its memory
    return own.call_method(tx, "cpu", [], {}).call_method(tx, "numpy", [], {})


def call_method(tx: Any, method: GetAttrVariable, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A method of a tensor."""
    tensor, name, mode = method.obj.realize(), method.name, current_frame().mode
    if name == "extend" and len(args) == 1:
        return extended.extend(tx, tensor, args[0].realize())
    if not isinstance(tensor, TensorVariable):
        return None
    if isinstance(tensor, NumpyNdarrayVariable):
        if name != "tolist" or not (is_vector(tensor) or is_matrix(tensor)):
            return None
        tensor = call(tx, torch.from_numpy, tensor)  # the same numbers, as a list
    for value in args if _METHODS.get(name) in (_call_split, _call_tensor_split) else ():
        number_lists.seen(tx, value.realize())
    if name == "tolist":
        row_entries.watch(tx, tensor)
        listed = row_entries.listed(tx, tensor) or layers.listed(tx, tensor)
        if listed is not None:
            return listed
    if name == "item" and (number := place_ends.number_in(tx, tensor)) is not tensor:
        return number.call_method(tx, "item", [], {})
    if name == "item" and current_frame().seeks and is_scalar(tensor):
        row_entries.watch_item(tx, tensor)
        lifted.watch(tx, tensor)
    if name == "item":
        flags.watch(tx, tensor)
        watch_count(tx, tensor.as_proxy().node)
    if current_frame().seeks:
        counts.watch(tx, name, [*args, *kwargs.values()])
    if name in OF_MEMORY and mode in LOOP_MODES and _is_of_a_list(tensor):
        raise refuse("list-use", f"{name}() of a document: how it lies in memory is not known", location_of(tx))
    if mode is Mode.PROBE:
        if name == "tolist":
            if is_vector(tensor) or is_matrix(tensor):
                documents_of(tx, tensor)  # for what it restarts
            watch_list(tx, tensor)
        if name == "tensor_split":
            places_of_split(tx, args, kwargs)
        if name == "unbind":
            _unbind(tx, tensor, *args, **kwargs)
        return None
    if name == "tolist" and is_vector(tensor):
        if documents_of(tx, tensor) is not None:
            return call(tx, plain.of_tolist, tensor)
        return tensor.call_method(tx, name, args, kwargs) if tensor is not method.obj.realize() else None
    if name == "tolist" and is_matrix(tensor):
        return rows_of_numbers(tx, tensor)
    if name == "tolist" and active.regions and running.may_extend(tensor):
        return call(tx, plain.of_tolist, tensor.call_method(tx, "detach", [], {}))
    replacement = _METHODS.get(name)
    given = with_numbers(tx, args, kwargs) if name in TAKING_SIZES else None
    args, kwargs = given or (args, kwargs)
    out = None if replacement is None else replacement(tx, tensor, *args, **kwargs)
    return tensor.call_method(tx, name, args, kwargs) if out is None and given is not None else out


_ENTRIES = (markers.LIST_GET, markers.SPLIT_GET)


def _is_of_a_list(tensor: Any) -> bool:
    """Is this an entry of a list that a loop over documents has filled, or a part of a split, or made of one?"""
    return any(node.target in _ENTRIES for node in needed_for([tensor.as_proxy().node]))


def _call_extreme(function: Any) -> Callable[..., Any]:
    """``max(lengths)`` of a list of numbers; with a ``default`` where they cannot be none."""

    def replacement(tx: Any, items: Any = None, *rest: Any, **kwargs: Any) -> Any:
        if rest and active.regions and not kwargs:
            return _extreme_of(tx, _PLAIN[function], [items.realize(), *(value.realize() for value in rest)])
        known = not kwargs or (set(kwargs) == {"default"} and joins.has_entries(tx, items))
        return joins.extreme(tx, function, items) if items is not None and not rest and known else None

    return replacement


def _extreme_of(tx: Any, function: Any, values: list[Any]) -> Any:
    """``min(e, x.shape[0])`` of a number in a tensor and one of the program's: of the numbers."""
    if not any(isinstance(value, TensorVariable) and is_scalar(value) for value in values):
        return None
    numbers = [widths.as_number(tx, value) for value in values]
    if not all(isinstance(number, (SymNodeVariable, ConstantVariable)) for number in numbers):
        return None
    return call(tx, function, *numbers)


_PLAIN = {plain_numbers.largest: builtins.max, plain_numbers.smallest: builtins.min}


def _call_split(tx: Any, tensor: Any = None, split_size_or_sections: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    sizes = split_size_or_sections or kwargs.get("split_size") or kwargs.get("split_sizes")
    return _split(tx, plain_parts.of_split, tensor, sizes, dim)


def _call_tensor_split(tx: Any, tensor: Any = None, indices: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    places = places_of_split(tx, [] if indices is None else [indices], kwargs)
    if isinstance(places, TensorVariable):
        return None
    if places is not None and tensor is not None and places.is_python_constant():
        return divisible.sections(tx, tensor, places, *([] if dim is None else [dim]))
    return _split(tx, plain_parts.of_tensor_split, tensor, places, dim)


def watch(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A function of torch, before a loop is looked for: one that reads numbers from a tensor."""
    if function is torch.tensor_split:
        places_of_split(tx, args[1:], kwargs)
    if function is torch.unbind:
        _unbind(tx, *args, **kwargs)


def watch_lists(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A function of torch is given lists."""
    for value in [*args, *kwargs.values()] if function in _OF_LISTS else ():
        number_lists.seen(tx, value.realize())


def places_of_split(tx: Any, given: list[Any], kwargs: dict[str, Any]) -> Any:
    """Where ``tensor_split`` cuts: a vector of places is read as its ``tolist()``."""
    places = given[0] if given else kwargs.get("indices_or_sections") or kwargs.get("tensor_indices_or_sections")
    places = places if places is None else places.realize()
    if not isinstance(places, TensorVariable) or not is_vector(places):
        return places
    if documents_of(tx, places) is None:
        watch_list(tx, places)
        return places
    return call(tx, plain.of_tolist, places)


def _split(tx: Any, function: Any, tensor: Any, numbers: Any, dim: Any) -> Any:
    """What a list of one number per document cuts a tensor into; None if it is another list."""
    if numbers is None or tensor is None:
        return None
    numbers = numbers.realize()
    if function is plain_parts.of_split and (parts := divisible.split(tx, tensor, numbers, dim)) is not None:
        return parts
    known = numbers_of(numbers)
    numbers = numbers if known is None else known
    if not is_documents(numbers):
        return None
    if attribute(tx, numbers, "origin").is_python_constant():
        raise refuse_use(tx, "splitting by a list that is not the tolist() of one tensor")
    return call(tx, function, tensor.realize(), numbers, constant(0) if dim is None else dim)


def _unbind(tx: Any, tensor: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    """``boundaries.unbind()``: their entries, as going over them gives. ``t, h, w = sizes.unbind()`` has so many."""
    tensor = tensor.realize() if tensor is not None else kwargs.get("input")
    if not isinstance(tensor, TensorVariable) or code_loops.unpacks(tx):
        return None
    rows = is_batch(tensor) and (dim is None or (dim.is_python_constant() and dim.as_python_constant() == 0))
    if not (is_vector(tensor) or is_jagged(tensor) or (rows and not kwargs)):
        return None
    if is_jagged(tensor) and (dim is not None or kwargs):
        return None
    found = documents_of(tx, tensor)
    return None if found is None else call(tx, plain.listed, found, variable(tx, tuple))


def _note_check(tx: Any, condition: Any = None, *args: Any, **kwargs: Any) -> None:
    """``torch._check`` on data: Dynamo keeps it as one of its own assertions, which the passes drop; this one is the
    user's."""
    condition = condition.realize() if condition is not None else None
    if isinstance(condition, SymNodeVariable) and is_unknown(condition.sym_num):
        if not active.regions:
            current_frame().user_checks = True
            return
        region = active.regions[-1]
        must_hold(tx, region, condition.as_proxy(), f"torch._check in the loop at {region.location} failed")


def _call_roll(tx: Any, input: Any, shifts: Any = None, dims: Any = None) -> Any:
    """Inside a symbolic loop, and wherever a size is unknown, roll through an op whose fake does not guard."""
    value = example(input.realize()) if isinstance(input.realize(), TensorVariable) else None
    if value is None or shifts is None or not any(is_unknown(s) for s in value.shape):
        return None
    try:
        k = shifts.realize().as_python_constant()
        d = dims.realize().as_python_constant() if dims is not None else ()
    except NotImplementedError:
        return None
    as_list = lambda a: [a] if isinstance(a, int) else list(a)  # noqa: E731
    args = (input.realize().as_proxy(), as_list(k), as_list(d))
    return emit(tx, markers.ROLL, *args)


def _shadowed(function: Any) -> Callable[..., Any]:
    return lambda tx, *args, **kwargs: shadows.call(tx, function, *args, **kwargs)


def _divided(name: str) -> Callable[..., Any]:
    return lambda tx, *args, **kwargs: divisible.call(tx, name, *args, **kwargs)


def _counted(function: Any) -> Callable[..., Any]:
    return lambda tx, *args, **kwargs: counts.call(tx, function, *args, **kwargs)


def _sized(name: str, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """A method that takes sizes, and may mean something else in a loop as well."""

    def replacement(tx: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        out = counts.call_method(tx, name, tensor, *args, **kwargs)
        return otherwise(tx, tensor, *args, **kwargs) if out is None and otherwise is not None else out

    return replacement


_TYPED = {torch.IntTensor: torch.int32, torch.LongTensor: torch.int64, torch.FloatTensor: torch.float32}


def _typed(dtype: torch.dtype) -> Callable[..., Any]:
    """``torch.LongTensor(numbers)``, which is ``torch.tensor(numbers, dtype=torch.long)``."""

    def replacement(tx: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        return None if data is None or args or kwargs else joins.tensor(tx, data, dtype=variable(tx, dtype))

    return replacement


def _new_tensor(tx: Any, tensor: Any, data: Any = None, **kwargs: Any) -> Any:
    """``x.new_tensor(numbers)``: of the dtype of x, and where x is."""
    like = example(tensor)
    given = {"dtype": variable(tx, like.dtype), "device": constant(like.device), **kwargs}
    return joins.tensor(tx, data, **given)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), joins.cat),
    torch.stack: joins.stack,
    torch.hstack: joins.hstack,
    **dict.fromkeys((torch.vstack, torch.row_stack), joins.vstack),
    torch._C._nn.pad_sequence: joins.pad,
    torch.nested.as_nested_tensor: joins.jagged,
    **dict.fromkeys((torch.split, torch.functional.split), _call_split),
    torch.tensor_split: _call_tensor_split,
    torch.unbind: _unbind,
    builtins.sum: joins.total,
    builtins.int: lifted.number,
    builtins.max: _call_extreme(plain_numbers.largest),
    builtins.min: _call_extreme(plain_numbers.smallest),
    builtins.len: joins.count,
    builtins.any: lambda tx, items: joins.condition(tx, "any", items),
    builtins.all: lambda tx, items: joins.condition(tx, "all", items),
    torch.roll: _call_roll,
    **{getattr(torch, name): row_numbers.counted(name) for name in OF_A_ROW},
    torch.masked_select: masked.selected,
    **dict.fromkeys((torch.nonzero, torch.argwhere), masked.places),
    torch.where: masked.places_by_where,
    torch.index_select: masked.index_selected,
    **dict.fromkeys((torch.nn.functional.pad, native_pad()), widths.call),
    torch._check: _note_check,
    torch.nn.functional.interpolate: images.interpolate,
    torch.nn.functional.unfold: images.unfold,
    torch.conv2d: images.convolution,
    torch.tensor: joins.tensor,
    **{function: _typed(dtype) for function, dtype in _TYPED.items()},
    **{function: _shadowed(function) for function in shadows.SHADOWED},
    **{function: _divided(name) for function, name in divisible.FUNCTIONS.items()},
    **{function: _counted(function) for function in counts.FUNCTIONS},
    **reals.REPLACED,
}
"""Function of torch or Python -> ``replacement(tx, *args, **kwargs)``."""

_BOTH = (
    torch.split, torch.tensor_split, torch.unbind, torch.roll, torch.masked_select, torch.nonzero,
    torch.argwhere, torch.index_select,
)  # fmt: skip
_GIVEN_LISTS = (
    joins.cat, joins.stack, joins.hstack, joins.vstack, joins.pad, joins.total, joins.count, joins.tensor,
    _call_split, _call_tensor_split,
)  # fmt: skip
_OF_LISTS = frozenset(function for function, replacement in _FUNCTIONS.items() if replacement in _GIVEN_LISTS)
"""Functions whose lists may be lengths of documents, or documents. (Others are given sizes in lists.)"""

_METHODS: dict[str, Callable[..., Any]] = {
    "__getitem__": subscripts.get_item,
    "__setitem__": subscripts.set_item,
    "new_tensor": _new_tensor,
    "split_with_sizes": _call_split,
    **{of.__name__: _FUNCTIONS[of] for of in _BOTH},
    **{name: row_numbers.counted(name) for name in OF_A_ROW},
    **lifted.METHODS,
    **{name: _shadowed(function) for name, function in shadows.METHODS.items()},
    **{name: _divided(name) for name in divisible.METHODS},
    **{name: _sized(name, _divided(name) if name in divisible.METHODS else None) for name in counts.METHODS},
}
"""Name of a tensor's method -> ``replacement(tx, tensor, *args, **kwargs)``."""
