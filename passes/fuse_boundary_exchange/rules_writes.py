"""What writing slots of a document means for `machine`."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass._registry import registrar
from packpass.semantics import argument, example
from passes.document_loops.op_names import name_of
from passes.fuse_boundary_exchange import contents
from passes.fuse_boundary_exchange.machine import PARTWISE, RULES, Machine
from passes.fuse_boundary_exchange.rules import indexed, same_rest, settle
from passes.fuse_boundary_exchange.values import Run, Stack, View
from passes.refused import Refused

rule = registrar(RULES)


@rule("setitem")
def _setitem(machine: Machine, node: fx.Node) -> None:
    base, index, value = node.args
    view = indexed(machine, base, index, node)
    if not isinstance(view, View):
        raise Refused("no-rule", "all parts of what is stacked are written at once", node)
    _assign(machine, view, base, value, node)


@rule("copy_", "fill_")
def _copy(machine: Machine, node: fx.Node) -> View:
    view = machine.view(node.args[0], node)
    value = argument(node, 1, "src" if name_of(node) == "copy_" else "value")
    _assign(machine, view, node.args[0], value, node)
    return view


@rule("zero_")
def _zero(machine: Machine, node: fx.Node) -> View:
    view = machine.view(node.args[0], node)
    _assign(machine, view, node.args[0], 0, node)
    return view


def _assign(machine: Machine, view: View, base: Any, value: Any, node: fx.Node) -> None:
    """``base[...] = value``, for a number or a tensor of exactly the sizes of ``view``, the part of ``base``."""
    if isinstance(value, (bool, int, float, complex)):
        machine.write(view, (Run(view.length, contents.constant(value, example(base).dtype)),), node)
        return
    source = machine.view(value, node)
    if source.kept is None and view.dim is not None:
        source = settle(source, value, view.dim, view.kept)
    if view.kept is None and source.dim is not None:
        view = settle(view, base, source.dim, source.kept)
    if (source.kept, source.dim, source.length) != (view.kept, view.dim, view.length):
        raise Refused("length-mismatch", "what is assigned is not as long as where it goes", node)
    whole = machine.values.get(base)
    rest = list(example(base).shape)
    if isinstance(whole, Stack):
        del rest[whole.axis]
        whole = whole.parts[0]
    kept = whole.kept if isinstance(whole, View) and whole.kept is not None else view.kept
    if not isinstance(whole, View):
        kept = True  # an outer row
    a, b = example(value), example(base)
    if a.dtype != b.dtype or not same_rest(a.shape, rest, source.dim, bool(source.kept), bool(kept)):
        raise Refused("dim-mismatch", "tensors of different sizes or dtypes are put together", node)
    machine.write(view, machine.read(source, node), node)
    if view.whole and source.whole:
        view.memory.function = source.memory.function


PARTWISE.update({_copy, _zero})
