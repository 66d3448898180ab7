"""Arguments of a call by name: as torch's schema has them, or as the signature of the Python function.

Names are the same in every spelling of an operation: what aten calls ``self`` is ``input``, and numpy's ``axis`` and
``keepdims`` are ``dim`` and ``keepdim``. Defaults are filled in.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

_CANONICAL = {"self": "input", "axis": "dim", "keepdims": "keepdim", "x": "input"}
_Parameter = tuple[str, Callable[[Any, bool], bool], bool, bool, bool, Any]
_NUMBERS = (int, float, bool, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def example(argument: Any) -> Any:
    """The fake value that a node was recorded with; anything else is itself."""
    if not isinstance(argument, fx.Node):
        return argument
    value = argument.meta.get("example_value")
    return argument.meta.get("val") if value is None else value


def is_tensor(argument: Any) -> bool:
    """Is it a node with a tensor?"""
    return isinstance(argument, fx.Node) and isinstance(example(argument), torch.Tensor)


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a node as it is spelled there: by position, or by that name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def bind_overload(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call of an overload, by name."""
    return _bind(overload, args, kwargs, exact=False)


def bind_packet(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """The overload of a packet that a call means, and its arguments; None if none takes them."""
    for exact in (True, False):
        for overload in _overloads(packet):
            bound = _bind(overload, args, kwargs, exact)
            if bound is not None:
                return overload, bound
    return None


def bind_signature(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call of a function written in Python; None if it says nothing about them."""
    signature = _signature(function)
    if signature is None:
        return None
    renamed = {name if name in signature.parameters else _python_name(name, signature): v for name, v in kwargs.items()}
    try:
        bound = signature.bind(*args, **renamed)
    except TypeError:
        return None
    bound.apply_defaults()
    several = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_POSITIONAL]
    for name in several:  # meshgrid(a, b) and meshgrid([a, b])
        given = bound.arguments[name]
        if len(given) == 1 and isinstance(given[0], (tuple, list)):
            bound.arguments[name] = tuple(given[0])
    names = {**_CANONICAL, "tensor": "input"} if "input" not in bound.arguments else _CANONICAL
    return {names.get(name, name): value for name, value in bound.arguments.items()}


def parameters_of(overload: Any, target: Any) -> list[str]:
    """Names of the arguments that the function which a node calls takes by position."""
    if overload is not None:
        return [p[0] for p in _parameters(overload)[0] if not p[2]]
    if target is operator.getitem:
        return ["input", "index"]
    signature = _signature(getattr(torch.Tensor, target, None) if isinstance(target, str) else target)
    return [] if signature is None else [_CANONICAL.get(name, name) for name in signature.parameters]


@functools.cache
def _signature(function: Any) -> inspect.Signature | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    kinds = {p.kind for p in signature.parameters.values()}
    return None if inspect.Parameter.VAR_KEYWORD in kinds else signature


def _python_name(name: str, signature: inspect.Signature) -> str:
    """The parameter that a keyword in another spelling means."""
    wanted = _CANONICAL.get(name, name)
    return next((p for p in signature.parameters if _CANONICAL.get(p, p) == wanted), name)


@functools.cache
def _overloads(packet: Any) -> tuple[Any, ...]:
    """Overloads that a Python call can mean: those that write to an ``out`` are not among them."""
    found = (getattr(packet, name) for name in packet.overloads())
    return tuple(o for o in found if not any(a.is_out for a in o._schema.arguments))


@functools.cache
def _parameters(overload: Any) -> tuple[tuple[_Parameter, ...], tuple[str, ...]]:
    """``(name, fits, keyword only, is a list of numbers, has a default, default)`` of every argument of a schema, and
    the types of those that may be given by position."""
    arguments = overload._schema.arguments
    parameters = tuple(
        (
            _CANONICAL.get(a.name, a.name),
            _fitting(str(a.real_type)),
            a.kwarg_only,
            "List[int]" in str(a.real_type) or "List[SymInt]" in str(a.real_type),
            a.has_default_value(),
            a.default_value,
        )
        for a in arguments
    )
    return parameters, tuple(str(a.real_type) for a in arguments if not a.kwarg_only)


def _bind(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], exact: bool) -> dict[str, Any] | None:
    parameters, types = _parameters(overload)
    positional = [p for p in parameters if not p[2]]
    args = _gathered(args, types)
    if len(args) > len(positional):
        return None
    given = {p[0]: value for p, value in zip(positional, args, strict=False)}
    for name, value in kwargs.items():
        name = _CANONICAL.get(name, name)
        if name in given:
            return None
        given[name] = value
    bound: dict[str, Any] = {}
    for name, fits, _, lists, has_default, default in parameters:
        if name in given:
            bound[name] = given.pop(name)
            if not fits(example(bound[name]), exact):
                return None
            if lists and isinstance(example(bound[name]), (int, torch.SymInt)):
                bound[name] = (bound[name],)
        elif has_default:
            bound[name] = default
        else:
            return None
    return bound if not given or not any(v is not None for v in given.values()) else None


def _gathered(args: tuple[Any, ...], types: tuple[str, ...]) -> tuple[Any, ...]:
    """``x.view(2, 3)`` and ``torch.zeros(2, 3)``: sizes one by one where the only argument left is a list of them."""
    at = next((i for i, t in enumerate(types) if t.endswith("List[int]") or t.endswith("List[SymInt]")), None)
    if at is None or at > 1 or len(args) <= at:
        return args
    rest = args[at:]
    if all(isinstance(example(a), (int, torch.SymInt)) and not isinstance(example(a), bool) for a in rest):
        if len(rest) == 1 or at + 1 == len(types):
            return (*args[:at], tuple(rest))
    return args


@functools.cache
def _fitting(kind: str) -> Callable[[Any, bool], bool]:
    """Does a value fit an argument of this type? Not ``exact``: as far as torch converts numbers to tensors."""
    if kind.startswith("Optional["):
        inner = _fitting(kind[9:-1])
        return lambda value, exact: value is None or inner(value, exact)
    if kind.startswith("List["):
        item, sizes = _fitting(kind[5:-1]), kind in ("List[int]", "List[SymInt]")
        return lambda value, exact: (
            all(item(example(v), exact) for v in value)
            if isinstance(value, (tuple, list))
            else sizes and not exact and item(value, exact)
        )
    if kind == "Tensor":
        return lambda value, exact: isinstance(value, torch.Tensor) or (not exact and isinstance(value, _NUMBERS))
    types = _TYPES.get(kind)
    if types is None:
        return lambda value, exact: not exact and value is not None
    if kind in ("int", "SymInt"):
        return lambda value, exact: isinstance(value, types) and not isinstance(value, bool)
    return lambda value, exact: isinstance(value, types)


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int, torch.SymInt),
    "SymInt": (int, torch.SymInt),
    "float": (int, float, torch.SymInt, torch.SymFloat),
    "number": _NUMBERS,
    "bool": (bool, torch.SymBool),
    "str": (str,),
    "Device": (str, torch.device, int),
    "ScalarType": (torch.dtype,),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
    "Generator": (torch.Generator,),
}
