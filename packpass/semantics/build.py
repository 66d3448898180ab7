"""Adding calls to a graph, each with the fake value that it will have: the one builder of nodes."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from packpass._compat import (
    bindings_of,
    fake_mode_of,
    free_unbacked_symbols,
    ignore_fresh_symbols,
    python_dispatcher,
    statically_known_true,
    without_fake_cache,
)
from packpass.semantics.binding import example
from packpass.semantics.call import invoke
from packpass.semantics.effects import open_autocasts
from packpass.semantics.slotwise import of_one_slot

NO_VALUE = object()
"""In place of a fake value: the call gives nothing that anybody reads, and Dynamo notes no value of such."""


class NotBuilt(Exception):
    """A call fails on the fake values of its arguments; `node` is already in the graph, and undone with the rest."""

    def __init__(self, target: Any, node: fx.Node, error: Exception) -> None:
        super().__init__(f"{getattr(target, '__name__', target)} fails: {error}")
        self.node = node


class Builder:
    """Adds calls to a graph, before a node or where the graph inserts, and can take them back.

    Fake values are made as where the graph was traced: in its fake mode, under the autocast regions that are open
    there.
    """

    def __init__(
        self, graph: fx.Graph, before: fx.Node | None = None, like: Any = None, rule: str = "", names: bool = False
    ) -> None:
        """``like``: a tensor node, for its fake mode (else that of the arguments); ``rule``: stamped on every node;
        ``names``: sizes that are made up keep their names when the graph is traced again. (AOTAutograd traces it twice,
        and the sizes of gradients have the names of the first time.)"""
        self.graph, self.before, self.rule = graph, before, rule
        self.mode = fake_mode_of(example(like))
        self.made: list[fx.Node] = []
        self.names = names
        self._regions: list[tuple[Any, ...]] | None = None
        self._graphs: dict[fx.Node, fx.GraphModule] = {}

    def call(self, target: Any, *args: Any, method: bool = False, fake: Any = None, **kwargs: Any) -> fx.Node:
        """One call; its fake value is computed unless ``fake`` gives it.

        Raises:
            NotBuilt: the call fails.
        """
        with self.graph.inserting_before(self.before) if self.before is not None else contextlib.nullcontext():
            node = (
                self.graph.call_method(target, args, kwargs)
                if method
                else self.graph.call_function(target, args, kwargs)
            )
        self.made.append(node)
        if self.before is not None:
            node.meta["stack_trace"] = self.before.meta.get("stack_trace", "")
        if self.rule:
            node.meta["packpass"] = self.rule
        if fake is None:
            try:
                fake = self._run(node, args, kwargs)
            except Exception as error:  # whatever torch raises for these values: there is no common class
                raise NotBuilt(target, node, error) from error
        if fake is not NO_VALUE:
            node.meta["example_value"] = fake
        if self.names and isinstance(fake, (torch.Tensor, torch.SymInt)):
            given = [example(n) for n in node.all_input_nodes]
            made = bindings_of(fake, set().union(*map(free_unbacked_symbols, given)))
            if made:
                node.meta["unbacked_bindings"] = made
        return node

    def inner(self, graph: fx.GraphModule) -> fx.Node:
        """A graph for a higher-order operator, which becomes a part of the module."""
        owner: Any = self.graph.owning_module
        known = [name for name, module in owner.named_children() if module is graph]
        name = (
            known[0] if known else next(n for n in map("inner_{}".format, itertools.count()) if not hasattr(owner, n))
        )
        setattr(owner, name, graph)
        with self.graph.inserting_before(self.before) if self.before is not None else contextlib.nullcontext():
            node = self.graph.get_attr(name)
        self.made.append(node)
        self._graphs[node] = graph
        return node

    def undo(self) -> None:
        """Remove what was added."""
        for node in reversed(self.made):
            self.graph.erase_node(node)
        self.made = []

    def _value(self, node: fx.Node) -> Any:
        return self._graphs[node] if node in self._graphs else example(node)

    def _run(self, node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._regions is None:
            self._regions = open_autocasts(self.graph, self.before if self.before is not None else node)
        mode = self.mode
        if mode is None:
            mode = next((m for n in node.all_input_nodes if (m := fake_mode_of(example(n))) is not None), None)
        given, keywords = fx.map_arg((args, dict(kwargs)), self._value)
        with (
            mode or contextlib.nullcontext(),
            ignore_fresh_symbols(mode),
            without_fake_cache(mode),
            python_dispatcher(),
            autocasts(self._regions),
        ):
            known = of_one_slot(node, given, keywords)
            return invoke(node, given, keywords) if known is None else known


def memory_order(value: torch.Tensor) -> tuple[int, ...]:
    """Its dimensions, from the outermost in memory to the innermost; as they are if it has gaps. Sets no guard."""
    orders = itertools.permutations(range(value.dim())) if value.dim() <= 4 else ()
    return next((order for order in orders if fills(value, order)), tuple(range(value.dim())))


def fills(value: torch.Tensor, order: tuple[int, ...]) -> bool:
    """Do its slots lie one behind the other with its dimensions in that order, for all sizes? Sets no guard."""
    expected: Any = 1
    for d in reversed(order):
        if not statically_known_true(value.shape[d] == 1):
            if not statically_known_true(value.stride(d) == expected):
                return False
            expected = expected * value.shape[d]
    return True


def laid_out(build: Builder, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    """The same values with their dimensions in that order in memory: what stands for a call, where code behind it may
    ask for a view that another order does not have."""
    if fills(example(node), order):
        return node
    return in_order(functools.partial(build.call, method=True), node, order)


def in_order(method: Callable[..., fx.Node], node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    """A copy with its dimensions in that order in memory; ``method(name, tensor, *args)`` adds a call of a method."""
    if order == tuple(range(len(order))):
        return method("contiguous", node)
    dense = method("contiguous", method("permute", node, order))
    return method("permute", dense, tuple(order.index(d) for d in range(len(order))))


@contextlib.contextmanager
def autocasts(regions: list[tuple[Any, ...]]) -> Iterator[None]:
    """Autocast regions around Python code that runs now."""
    with contextlib.ExitStack() as stack:
        for device, dtype, enabled, cache in regions:
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache))
        yield
