"""Collectives that Dynamo does not trace, in the words of those that it does: ``dist.all_to_all_single``.

* ``all_to_all_single`` of ``torch.distributed.nn.functional``, which from torch 2.13 on raises where it is compiled.
  Nothing but that refusal stands in the way: what it calls afterwards is an ``autograd.Function`` that Dynamo traces,
  and that the passes prove like any other.
* ``dist.all_to_all`` between lists, and its differentiable form of ``torch.distributed.nn.functional``. What is sent is
  put into one tensor, and what comes is copied to where it was asked for.
* Either, or another collective, with ``async_op=True``, inside a loop over documents: nobody may look at the result
  before the wait, so that it may as well be there at once. One exchange of all documents has nothing to overlap with.
* ``all_reduce`` (a sum) and ``all_gather`` of ``torch.distributed.nn.functional``, inside a loop over documents: the
  functional collectives of torch have the same gradients.

Each would break the graph, and with it every loop around it. Where the loop is refused all the same, its exchanges are
left to stock torch: the pieces between its breaks are compiled once for all documents, the loop in one piece anew for
every number of them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from packpass._compat import statically_known_true
from packpass.capture import plain_messages
from packpass.capture.dynamo import ListVariable, TensorVariable, TupleVariable, call, constant, example
from packpass.capture.frame import FrameState, Mode
from packpass.capture.state import active, caller_of, current_frame

_ASYNC = "async_op"
_SINGLE = ("output", "input", "output_split_sizes", "input_split_sizes", "group")
_LISTS = ("output_tensor_list", "input_tensor_list", "group", _ASYNC)


def call_function(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The call in words that are traced; None if it is something else, or a call that raises in eager as well."""
    traced = _functions().get(function)
    if traced is None or _is_left(tx):
        return None
    names, needed, replacement = traced
    if len(args) > len(names) or set(kwargs) - set(names[len(args) :]):
        return None
    given = dict(zip(names, args, strict=False)) | kwargs
    if not set(names[:needed]) <= set(given):
        return None
    out = replacement(tx, *(given.get(name, constant(None)) for name in names))
    if out is not None:
        for region in active.regions:
            current_frame().exchanging.setdefault(region.key, set()).add(_line(region.tx))
    return out


_left: set[tuple[str, int]] = set()
"""Lines of loops that were refused, from which exchanges are called."""


def leave_refused(frame: FrameState) -> None:
    """A frame is traced again: the exchanges of its loops that are not captured any more are left to stock torch, also
    in what Dynamo makes of the code behind a graph break."""
    for key, lines in frame.exchanging.items():
        if frame.mode is Mode.STOCK or key in frame.left:
            _left.update(lines)


def _is_left(tx: Any) -> bool:
    """Is an exchange called from a loop that was refused?"""
    if active.regions or not _left:
        return False
    while tx is not None and _line(tx) not in _left:
        tx = caller_of(tx)
    return tx is not None


def _line(tx: Any) -> tuple[str, int]:
    return tx.f_code.co_filename, tx.lineno


@functools.cache
def _functions() -> dict[Any, tuple[tuple[str, ...], int, Callable[..., Any]]]:
    """What this torch does not trace -> the names of its parameters, how many of them every call gives, and what is
    traced instead."""
    if not torch.distributed.is_available():
        return {}
    module: Any = importlib.import_module("torch.distributed.nn.functional")
    dist = torch.distributed
    found: dict[Any, Any] = {
        dist.all_to_all: (_LISTS, 2, _between_lists),
        dist.all_to_all_single: ((*_SINGLE, _ASYNC), 2, _without_waiting(_all_to_all_single_done)),
        dist.all_gather: (("tensor_list", "tensor", "group", _ASYNC), 2, _without_waiting(_all_gather_done)),
        dist.all_gather_into_tensor: (
            ("output_tensor", "input_tensor", "group", _ASYNC),
            2,
            _without_waiting(_all_gather_into_tensor_done),
        ),
        dist.all_reduce: (("tensor", "op", "group", _ASYNC), 1, _without_waiting(_all_reduce_done)),
    }
    if hasattr(dist, "reduce_scatter_tensor"):
        names = ("output", "input", "op", "group", _ASYNC)
        found[dist.reduce_scatter_tensor] = (names, 2, _without_waiting(_reduce_scatter_tensor_done))
    if hasattr(module, "_AlltoAllSingle"):
        found[module.all_to_all] = (_LISTS[:3], 2, _between_lists_with_gradient)
        if hasattr(module, "_not_supported_under_compile"):
            found[module.all_to_all_single] = (_SINGLE, 2, _single)
    if hasattr(module, "all_reduce") and _has_gradient("all_reduce"):
        found[module.all_reduce] = (("tensor", "op", "group"), 1, _summed_with_gradient)
    if hasattr(module, "all_gather") and hasattr(_functional(), "all_gather_tensor_autograd"):
        found[module.all_gather] = (("tensor", "group"), 1, _gathered_with_gradient)
    return found


# === One tensor ==============================================================================================


def _single(tx: Any, *given: Any) -> Any:
    return call(tx, _all_to_all_single, *given)


def _all_to_all_single(output: Any, input: Any, received: Any, sent: Any, group: Any) -> Any:
    # Dynamo traces an autograd.Function that it finds by its names, from a global on.
    functions: Any = torch.distributed.nn.functional  # type: ignore[attr-defined]
    return functions._AlltoAllSingle.apply(group, output, received, sent, input)


def _without_waiting(done: Callable[..., Any]) -> Callable[..., Any]:
    """A collective with ``async_op=True``; None for what torch traces itself."""

    def replacement(tx: Any, *given: Any) -> Any:
        *rest, async_op = given
        return call(tx, done, *rest) if _returns_handle(async_op) else None

    return replacement


def _returns_handle(async_op: Any) -> bool:
    value = async_op.realize()
    return bool(active.regions) and value.is_python_constant() and value.as_python_constant() is True


def _all_to_all_single_done(output: Any, input: Any, received: Any, sent: Any, group: Any) -> Any:
    torch.distributed.all_to_all_single(output, input, received, sent, group)
    return plain_messages.done()


def _all_gather_done(outputs: Any, input: Any, group: Any) -> Any:
    torch.distributed.all_gather(outputs, input, group)
    return plain_messages.done()


def _all_gather_into_tensor_done(output: Any, input: Any, group: Any) -> Any:
    torch.distributed.all_gather_into_tensor(output, input, group)
    return plain_messages.done()


def _all_reduce_done(tensor: Any, op: Any, group: Any) -> Any:
    if op is None:
        torch.distributed.all_reduce(tensor, group=group)
    else:
        torch.distributed.all_reduce(tensor, op, group)
    return plain_messages.done()


def _reduce_scatter_tensor_done(output: Any, input: Any, op: Any, group: Any) -> Any:
    if op is None:
        torch.distributed.reduce_scatter_tensor(output, input, group=group)
    else:
        torch.distributed.reduce_scatter_tensor(output, input, op, group)
    return plain_messages.done()


# === With gradients ==========================================================================================


def _functional() -> Any:
    return importlib.import_module("torch.distributed._functional_collectives")


def _has_gradient(name: str) -> bool:
    """Does this torch know the gradient of a functional collective?"""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    op = f"_c10d_functional::{name}"
    return any(has(op, key) for key in ("Autograd", "AutogradCPU"))


def _summed_with_gradient(tx: Any, tensor: Any, op: Any, group: Any) -> Any:
    value = op.realize()
    known = value.as_python_constant() if value.is_python_constant() else None
    if not active.regions or known not in (None, torch.distributed.ReduceOp.SUM):
        return None
    return call(tx, _summed, tensor, group)


def _summed(tensor: Any, group: Any) -> Any:
    functional: Any = torch.distributed._functional_collectives
    return functional.all_reduce(tensor, "sum", torch.distributed.group.WORLD if group is None else group)


def _gathered_with_gradient(tx: Any, tensor: Any, group: Any) -> Any:
    value = tensor.realize()
    if not active.regions or not isinstance(value, TensorVariable) or not example(value).dim():
        return None
    return call(tx, _gathered, tensor, group)


def _gathered(tensor: Any, group: Any) -> Any:
    functional: Any = torch.distributed._functional_collectives
    group = torch.distributed.group.WORLD if group is None else group
    gathered = functional.all_gather_tensor_autograd(tensor.contiguous(), 0, group)
    return gathered.view(torch.distributed.get_world_size(group), *tensor.shape).unbind(0)


# === Lists ===================================================================================================


def _between_lists(tx: Any, outputs: Any, inputs: Any, group: Any, async_op: Any) -> Any:
    """``dist.all_to_all``; None where it returns a handle that may be kept, and for what eager checks and refuses."""
    value = async_op.realize()
    handle = _returns_handle(value)
    known = handle or (value.is_python_constant() and not value.as_python_constant())
    alike = _alike(outputs, inputs) if known else None
    if alike is None:
        return None
    made = call(tx, _all_to_all if alike else _all_to_all_uneven, outputs, inputs, group)
    return call(tx, plain_messages.done) if handle else made


def _between_lists_with_gradient(tx: Any, outputs: Any, inputs: Any, group: Any) -> Any:
    """The same of ``torch.distributed.nn.functional``, for parts of one size: it returns the tensors of the list."""
    return call(tx, _all_to_all_with_gradient, outputs, inputs, group) if _alike(outputs, inputs) else None


def _alike(outputs: Any, inputs: Any) -> bool | None:
    """Are all tensors of the two lists of one size, whatever the batch? None if they are no lists of as many tensors
    of one dtype."""
    lists = [outputs.realize(), inputs.realize()]
    if not all(isinstance(given, (ListVariable, TupleVariable)) and type(given.items) is list for given in lists):
        return None
    tensors = [item.realize() for given in lists for item in given.items]
    if not tensors or len(lists[0].items) != len(lists[1].items):
        return None
    if not all(isinstance(tensor, TensorVariable) for tensor in tensors):
        return None
    fakes = [example(tensor) for tensor in tensors]
    if len({(fake.dtype, fake.device) for fake in fakes}) > 1:
        return None
    first = fakes[0].shape
    return all(
        len(fake.shape) == len(first)
        and all(statically_known_true(a == b) for a, b in zip(fake.shape, first, strict=True))
        for fake in fakes
    )


def _all_to_all(outputs: Any, inputs: Any, group: Any) -> Any:
    sent = torch.stack(tuple(inputs))
    received = torch.empty_like(sent)
    torch.distributed.all_to_all_single(received, sent, group=group)
    for output, part in zip(outputs, received.unbind(0)):  # noqa: B905  (traced: as plain as can be)
        output.copy_(part)


def _all_to_all_uneven(outputs: Any, inputs: Any, group: Any) -> Any:
    sent = torch.cat([part.reshape(-1) for part in inputs])
    sizes = [output.numel() for output in outputs]
    received = sent.new_empty(sum(sizes))
    torch.distributed.all_to_all_single(received, sent, sizes, [part.numel() for part in inputs], group=group)
    for output, part in zip(outputs, received.split(sizes)):  # noqa: B905
        output.copy_(part.view(output.shape))


def _all_to_all_with_gradient(outputs: Any, inputs: Any, group: Any) -> Any:
    # What is returned are the tensors of the list, as in eager, and the copies hand the gradient on.
    sent = torch.stack(tuple(inputs))
    received = _all_to_all_single(torch.empty_like(sent), sent, None, None, group)
    for output, part in zip(outputs, received.unbind(0)):  # noqa: B905
        output.copy_(part)
    return tuple(outputs)
