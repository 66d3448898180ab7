"""`Call`: a node of a graph with its operation named and its arguments bound, the way everything else here reads it."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from packpass.semantics.binding import bind_overload, bind_packet, bind_signature, example
from packpass.semantics.names import base_name, is_in_place, op_name

_CASTS = {
    **{"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16},
    **{"long": torch.int64, "int": torch.int32, "short": torch.int16, "char": torch.int8, "byte": torch.uint8},
    **{"bool": torch.bool, "cfloat": torch.complex64, "cdouble": torch.complex128},
}
_OTHER_CASTS = frozenset({"cpu", "cuda", "type", "type_as"})
_UNPARSED = frozenset({"cpu", "cuda", "type", "requires_grad_", "size", "stride", "dim", "numel", "item", "tolist"})
"""Methods that torch has no schema of for every form."""
_UNREAD = {
    # Arguments that give a dtype, a device or a shape; their contents are not read.
    **{"numel": ("input",), "dim": ("input",), "stride": ("input",)},
    **{"sym_stride": ("input",), "sym_storage_offset": ("input",)},
    **{"type_as": ("other",), "to": ("other",), "view_as": ("other",), "reshape_as": ("other",)},
    **{"expand_as": ("other",), "resize_as_": ("the_template",), "sym_size": ("input",), "size": ("input",)},
}


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor among the arguments of a call."""

    argument: str
    at: int | None
    """Its place in the argument, if that is a list or an index."""
    node: fx.Node
    value: torch.Tensor

    @property
    def rank(self) -> int:
        return self.value.dim()


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """A call of an operation that has a name."""

    node: fx.Node
    name: str
    """Canonical name, as `packpass.semantics.names` gives it: ``add_``, ``float``."""
    op: str
    """The operation without its spellings: ``add``, ``to``."""
    arguments: Mapping[str, Any]
    """Arguments by name, with defaults."""
    operands: tuple[Operand, ...]
    results: tuple[Any, ...]
    """The fake values of the results; of a call that returns one tensor, that."""
    several: bool
    """Does it return a tuple or a list?"""
    overload: Any = None
    """The overload it means, if torch has a schema of it."""
    unread: frozenset[str] = frozenset()
    """Arguments that give a dtype, a device or a shape only."""
    known: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """What was found out about it, each thing once."""

    @functools.cached_property
    def in_place(self) -> bool:
        """Does it write its first operand?"""
        return is_in_place(self.name) or self.name in ("setitem", "delitem") or bool(self.arguments.get("inplace"))

    def of(self, argument: str) -> Operand | None:
        """The operand that is this argument."""
        return next((o for o in self.operands if o.argument == argument and o.at is None), None)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these arguments that the call has."""
        return next((self.arguments[name] for name in names if name in self.arguments), default)


def read_inputs(node: fx.Node) -> list[fx.Node]:
    """The inputs of a node whose contents it may read: not those that only give it a shape, a dtype or a device."""
    call = call_of(node)
    if call is None or not call.unread:
        return node.all_input_nodes
    lent = {o.node for o in call.operands if o.argument in call.unread}
    lent -= {o.node for o in call.operands if o.argument not in call.unread}
    return [n for n in node.all_input_nodes if n not in lent]


def op_of(node: fx.Node) -> str:
    """The operation that a node calls, without its spellings: ``add`` for ``add_``, ``to`` for ``float``."""
    call = call_of(node)
    return call.op if call is not None else op_of_name(op_name(node))


def op_of_name(name: str) -> str:
    """The operation of that name, without its spellings."""
    op = base_name(name)
    return "to" if op in _CASTS or op in _OTHER_CASTS else op


def invoke(node: fx.Node, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What a node calls, a function or a method, called with these arguments."""
    target: Any = node.target
    return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)


def as_function(node: fx.Node, operands: Sequence[fx.Node]) -> Callable[..., Any]:
    """What a node calls as a function of its operands; several results are a tuple."""

    def run(*given: Any) -> Any:
        env = dict(zip(operands, given, strict=True))
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), env.__getitem__)
        out = invoke(node, args, kwargs)
        return tuple(out) if isinstance(out, (tuple, list)) else out

    return run


def kept(node: fx.Node, what: str, make: Callable[[fx.Node], Any]) -> Any:
    """What ``make`` says about a node, made again when its target, its arguments or its value are others.

    It lies with the graph, in the attribute ``what``: as it names nodes, a table beside the graph would keep all of
    the graph, weak keys or not.
    """
    table = node.graph.__dict__.get(what)
    if table is None:
        table = node.graph.__dict__[what] = {}
    known = table.get(node)
    if known is None or not is_as_it_was(node, known):
        known = table[node] = (node.target, node.args, node.kwargs, example(node), make(node))
    return known[4]


def is_as_it_was(node: fx.Node, known: tuple[Any, ...]) -> bool:
    """Is an entry of a table of `kept` about the node as it is now?"""
    value = node.meta.get("example_value")  # as `example` does, which is a call for every node of a graph
    if value is None:
        value = node.meta.get("val")
    return known[0] is node.target and known[1] is node.args and known[2] is node.kwargs and known[3] is value


def call_of(node: fx.Node) -> Call | None:
    """The call of a node; None if it calls nothing that has a name, or in a way that torch does not document."""
    if node.op not in ("call_function", "call_method"):
        return None
    found: Call | None = kept(node, "_packpass_calls", _call_of)
    return found


def _call_of(node: fx.Node) -> Call | None:
    name = op_name(node)
    if not name:
        return None
    overload, arguments = _bound(node, name)
    if arguments is None or arguments.get("out") is not None:
        return None
    spelled = _spelled(base_name(name), arguments)
    if spelled is None:
        return None
    op, arguments = spelled
    value = example(node)
    several = isinstance(value, (tuple, list)) and not isinstance(value, torch.Size)
    return Call(
        node,
        name,
        op,
        types.MappingProxyType(arguments),
        tuple(_operands(arguments)),
        tuple(value) if several else (value,),
        several,
        overload,
        _unread(op, arguments, value),
    )


def _bound(node: fx.Node, name: str) -> tuple[Any, dict[str, Any] | None]:
    """The overload that a node calls, if there is a schema, and its arguments by name."""
    args, kwargs, target = node.args, node.kwargs, node.target
    if isinstance(target, torch._ops.OpOverload):
        return target, bind_overload(target, args, kwargs)
    if name in ("getitem", "setitem", "delitem", "getattr"):
        names = {"getitem": ("input", "index"), "setitem": ("input", "index", "value"), "getattr": ("input", "name")}
        wanted = names.get(name, ("input", "index"))
        return None, dict(zip(wanted, args, strict=True)) if len(args) == len(wanted) and not kwargs else None
    if name == "einsum" and len(args) > 1 and not kwargs:
        tensors = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
        return torch.ops.aten.einsum.default, {"equation": args[0], "tensors": tuple(tensors)}
    if name.startswith(("higher_order::", "math.", "builtins.")):
        return None, None
    function: Any = getattr(torch.Tensor, str(target), None) if node.op == "call_method" else target
    if isinstance(function, types.FunctionType):
        bound = bind_signature(function, args, kwargs)
        if bound is not None:
            return None, bound
    for spelling in (name, getattr(target, "__name__", str(target))):  # torch.constant_pad_nd has a schema of its own
        packet = getattr(torch.ops.aten, spelling, None)
        found = bind_packet(packet, args, kwargs) if isinstance(packet, torch._ops.OpOverloadPacket) else None
        if found is not None:
            return found
    # What the C parser alone knows: x.float(), x.cpu(), x.type(torch.int64), x.to("cpu", torch.float64).
    return None, _unparsed(name, args, kwargs)


def _unparsed(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of methods of tensors that torch has no schema of."""
    if not args or not isinstance(example(args[0]), torch.Tensor):
        return None
    rest, given = list(args[1:]), dict(kwargs)
    bound: dict[str, Any] = {"input": args[0]}
    if name in _CASTS or name in _UNPARSED:
        for value in rest:
            kind = "dtype" if isinstance(value, torch.dtype) else "dim" if isinstance(value, int) else "device"
            bound[kind] = value
        return {**bound, **given}
    if name == "new_tensor" and len(rest) == 1:
        return {**bound, "data": rest[0], **given}
    if name == "to":
        for value in rest:
            value_type = type(example(value))
            given_as = "dtype" if value_type is torch.dtype else "device" if value_type in (str, torch.device) else None
            if given_as is None or given_as in bound:
                return None
            bound[given_as] = value
        return {**bound, **given}
    return None


def _spelled(op: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Casts are all ``to``, whatever they are called."""
    if op in _CASTS:
        return "to", {**arguments, "dtype": _CASTS[op]}
    if op in ("cpu", "cuda"):
        return "to", {"device": op, **arguments}
    if op == "type":  # without an argument it returns a string; a string may name a class of tensors
        return ("to", arguments) if isinstance(arguments.get("dtype"), torch.dtype) else None
    return ("to" if op == "type_as" else op), arguments


def _unread(op: str, arguments: Mapping[str, Any], value: Any) -> frozenset[str]:
    if op.endswith("_like") or op.startswith("new_") or (op == "getattr" and not isinstance(value, torch.Tensor)):
        return frozenset({"input"} & arguments.keys())
    return frozenset(name for name in _UNREAD.get(op, ()) if name in arguments)


def _operands(arguments: Mapping[str, Any]) -> Iterator[Operand]:
    for name, argument in arguments.items():
        if isinstance(argument, (tuple, list)):
            for at, item in enumerate(argument):
                value = example(item)
                if isinstance(item, fx.Node) and isinstance(value, torch.Tensor):
                    yield Operand(name, at, item, value)
            continue
        value = example(argument)
        if isinstance(argument, fx.Node) and isinstance(value, torch.Tensor):
            yield Operand(name, None, argument, value)
