"""Floating point numbers that documents add up to.

::

    total = 0.0
    for s, e in spans:
        loss = f(x[s:e])
        total += loss.item() * (e - s)

The host would have to read a number for every document before the next one can begin. What a document adds is worked
out as a tensor of 64 bits instead, which hold a float of Python exactly, and the host reads the sum, once, where
somebody asks for it. (The sum is taken in another order than eager takes it.)
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols
from packpass.capture import nothing
from packpass.capture.dynamo import ConstantVariable, SymNodeVariable, call, emit, size_of, wrap_fx_proxy
from packpass.capture.loop_checks import must_hold
from packpass.capture.shares import number_in
from packpass.capture.tallies import end_of, filled, nodes_of, read, stacked
from packpass.semantics.effects import mutated_after

if TYPE_CHECKING:
    from packpass.capture.region import Region

_SUMS = (operator.add, operator.iadd, operator.sub, operator.isub)
_LESS = (operator.sub, operator.isub)


@dataclasses.dataclass(frozen=True)
class Summed:
    """A number of Python that becomes a floating point number of the data."""


def learn_summed(before: Any, after: list[Any]) -> Summed | None:
    """Is a local a number before the loop, and one that data decides after a document? The next trace shows whether it
    was added up."""
    begins = type(number_in(before)) in (int, float) or _is_float(before)
    known = all(_is_float(value) or isinstance(value, ConstantVariable) for value in after)
    return Summed() if begins and known and any(map(_is_float, after)) else None


def is_float(value: Any) -> bool:
    """Is it a floating point number, of the data or of the program?"""
    return type(number_in(value)) is float or _is_float(value)


def _is_float(value: Any) -> bool:
    return isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymFloat)


def _is_float_node(value: Any) -> bool:
    number = value.meta.get("example_value") if isinstance(value, fx.Node) else value
    return isinstance(number, (float, torch.SymFloat))


class Summing:
    """Such a number while the loop is traced again."""

    def __init__(self, region: Region, before: Any) -> None:
        self.region, self.before = region, before
        self.shares: list[Any] = []
        """What each traced iteration adds, as a tensor of one number."""
        first = number_in(before)
        self.ready = type(first) in (int, float) or _is_float(before)
        self.whole = type(first) is int
        """Does it begin with an integer, which it stays where nothing is added?"""
        self.ready &= not (self.whole and free_unbacked_symbols(size_of(region.length)))

    def begin(self, index: Any) -> None:
        """A stand-in, which each traced iteration may do nothing with but add to it."""
        create, tx = self.region.tx.output.create_proxy, self.region.tx
        made = wrap_fx_proxy(tx, create("call_function", torch.empty, ((),), {"dtype": torch.float64}))
        self.start = made.call_method(tx, "item", [], {})

    def has_grown(self, values: list[Any]) -> bool:
        """Have numbers been added, and nothing else been done with the stand-in?"""
        (value,) = values
        stand_in = self.start.as_proxy().node
        if not isinstance(value, SymNodeVariable):
            return False
        found = _added(value.as_proxy().node, stand_in)
        if found is None or (self.whole and not any(_is_float_node(share) for _, share in found)):
            return False
        done = [*(node for node, _ in found), stand_in]
        if done[0].users or any(list(later.users) != [sooner] for sooner, later in itertools.pairwise(done)):
            return False
        kept = {node for items in self.region.lists for values in items.values for node in nodes_of(values)}
        if kept & set(done):
            return False  # each document keeps what it has counted up to
        shares = [(node.target in _LESS, _Tensors(self.region).of(share)) for node, share in reversed(found)]
        if any(share is None for _, share in shares):
            return False
        for node in (*done, stand_in.args[0]):
            node.graph.erase_node(node)
        self.shares.append(self._together(shares))
        return True

    def _together(self, shares: list[tuple[bool, Any]]) -> Any:
        """All that a document adds; None if it adds nothing."""
        made: Any = None
        for less, share in shares:
            if made is None:
                made = emit(self.region.tx, torch.neg, share).as_proxy() if less else share
            else:
                made = emit(self.region.tx, operator.sub if less else operator.add, made, share).as_proxy()
        return made

    def after(self) -> Any:
        """The number after the loop."""
        tx, region = self.region.tx, self.region
        if self.whole and bool(size_of(region.length) == 0):  # settled by a guard
            return self.before
        made = [_constant(region, 0, i) if share is None else share for i, share in enumerate(self.shares)]
        number = read(tx, stacked(region, _on_one_device(region, made)))
        return number if number_in(self.before) == 0 else call(tx, operator.add, number, self.before)


def _added(node: fx.Node, before: fx.Node) -> list[tuple[fx.Node, Any]] | None:
    """What is added to the number ``before``, or taken from it, and by which nodes, the last one first; None if
    ``node`` is made of it in another way, or not at all."""
    found = []
    while node is not before:
        if node.target not in _SUMS or len(node.args) != 2:
            return None
        total, share = node.args
        if node.target not in _LESS and not _comes_from(total, before):
            total, share = share, total
        if not isinstance(total, fx.Node) or _comes_from(share, before):
            return None
        found.append((node, share))
        node = total
    return found


def _comes_from(value: Any, before: fx.Node) -> bool:
    """Is it the stand-in, or a sum that begins with it?"""
    while isinstance(value, fx.Node) and value is not before and value.target in _SUMS and len(value.args) == 2:
        first, second = value.args
        if second is before:
            return True
        value = first
    return value is before


def _constant(region: Region, number: Any, iteration: int) -> Any:
    return filled(region, iteration, (), number, dtype=torch.float64).as_proxy()


def float_vector(region: Region, values: list[Any]) -> Any:
    """float64 ``[documents]``: all documents' numbers, given those of the traced iterations, of which the loop has
    come to its end; None for other values."""
    if not all(map(is_float, values)):
        return None
    made = []
    for iteration, value in enumerate(values):
        end = end_of(region, iteration)
        number = value.as_proxy().node if _is_float(value) else number_in(value)
        with end.graph.inserting_before(end):
            made.append(_Tensors(region, iteration).of(number))
    return None if any(proxy is None for proxy in made) else stacked(region, _on_one_device(region, made))


def _on_one_device(region: Region, made: list[Any]) -> list[Any]:
    """What the traced iterations leave, where one has a number of the program, which is host memory, and another one a
    number of a device."""
    devices = [proxy.node.meta["example_value"].device for proxy in made]
    device = next((device for device in devices if device.type != "cpu"), devices[0])
    for iteration, own in enumerate(devices):
        if own != device:
            end = end_of(region, iteration)
            with end.graph.inserting_before(end):
                made[iteration] = emit(region.tx, "to", made[iteration], device, method=True).as_proxy()
    return made


class _Tensors:
    """Numbers of one document as tensors of 64 bits: the proxies, and None for what a tensor does not tell."""

    def __init__(self, region: Region, iteration: int = -1) -> None:
        self.region, self.iteration = region, iteration

    def of(self, value: Any) -> Any:
        made = self._made(value)
        if made is None or _is_tensor(made):
            return made
        return self._constant(value)

    def _made(self, value: Any) -> Any:
        """A proxy of a tensor, or of an integer, or a number."""
        if type(value) in (int, float):
            return value
        number = value.meta.get("example_value") if isinstance(value, fx.Node) else None
        if isinstance(number, torch.SymInt):
            return self.region.tx.output.current_tracer.proxy(value)
        if not isinstance(number, torch.SymFloat):
            return None
        if value.target is torch.sym_float:
            return self._made(value.args[0])
        if value.target == "item":
            return self._read(value)
        if value.target in (operator.truediv, operator.itruediv):
            return self._quotient(*value.args)
        if value.target not in _FUNCTIONS:
            return None
        parts = [self._made(part) for part in value.args]
        return None if any(part is None for part in parts) else self._emit(_FUNCTIONS[value.target], *parts)

    def _emit(self, function: Any, *parts: Any) -> Any:
        """Of parts of which none is a tensor one is made one: integers of Python have no end, those of torch do."""
        if not any(map(_is_tensor, parts)):
            first = parts[0]
            parts = (self._constant(first.node if isinstance(first, fx.Proxy) else first), *parts[1:])
        return emit(self.region.tx, function, *parts).as_proxy()

    def _constant(self, number: Any) -> Any:
        return _constant(self.region, number, self.iteration)

    def _read(self, value: fx.Node) -> Any:
        """What ``item`` has read, unless the tensor has been changed since, or stands in for another sum."""
        (tensor,) = value.args
        if not isinstance(tensor, fx.Node) or tensor.target is torch.empty:
            return None
        if mutated_after(tensor.graph, tensor, value):
            return None
        made = self.region.tx.output.current_tracer.proxy(tensor)
        for method, *arguments in (("detach",), ("to", torch.float64), ("reshape", ())):
            made = emit(self.region.tx, method, made, *arguments, method=True).as_proxy()
        return made

    def _quotient(self, number: Any, by: Any) -> Any:
        """What Python makes of two numbers, which raises an error where it divides by 0."""
        sides = [self._made(side) for side in (number, by)]
        if any(side is None for side in sides) or not self._is_checked(by, sides[1]):
            return None
        return self._emit(torch.true_divide, *sides)

    def _is_checked(self, by: Any, made: Any) -> bool:
        """Has it been settled, by a guard or by a check of the graph, that a divisor is not 0?"""
        tx, region = self.region.tx, self.region
        message = f"division by zero in the loop over documents at {region.location}"
        if _is_tensor(made):
            nothing.ensure(tx, emit(tx, torch.ne, made, 0), message)
            return True
        size = by if type(by) in (int, float) else by.meta["example_value"]
        if not free_unbacked_symbols(size):
            return bool(size != 0)
        must_hold(tx, region, emit(tx, operator.ne, made, 0).as_proxy(), message, self.iteration % len(region.indices))
        return True


_FUNCTIONS = {
    operator.add: operator.add, operator.iadd: operator.add, operator.sub: operator.sub, operator.isub: operator.sub,
    operator.mul: operator.mul, operator.imul: operator.mul, operator.neg: torch.neg, abs: torch.abs,
}  # fmt: skip


def _is_tensor(proxy: Any) -> bool:
    return isinstance(proxy, fx.Proxy) and isinstance(proxy.node.meta.get("example_value"), torch.Tensor)
