"""What may pass between iterations of a symbolic loop: mutation, cells, iterators, and other ways out of the loop.

Two traced iterations that look alike stand for all only if nothing but the index tells one from another; a body that
could notice is refused. Each function is ``replacement(original, *args)`` for one entry of the hook table in
`packpass.capture`.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import variables
from torch._dynamo.current_scope_id import current_scope_id
from torch._dynamo.variables.base import is_side_effect_safe
from torch._dynamo.variables.misc import AutogradFunctionContextVariable

from packpass.capture.region import Poison, catches_exceptions
from packpass.capture.sequences import SymbolicIterator
from packpass.capture.state import active, refuse


def _refuse_mutation(item: Any) -> None:
    region = active.regions[-1]
    what = type(item).__name__.removesuffix("Variable")
    raise refuse(
        "outer-mutation", f"the loop body changes a Python object from outside the loop ({what})", region.location
    )


def _new_cell(item: Any) -> bool:
    return isinstance(item, variables.CellVariable) and item.source is None and item.pre_existing_contents is None


def check_allowed_side_effect(original: Any, self: Any, item: Any) -> Any:
    """``SideEffects.check_allowed_side_effect``: only objects born in this iteration may change."""
    if active.regions and not isinstance(item, AutogradFunctionContextVariable):
        region = active.regions[-1]
        if item.mutation_type is not None and not is_side_effect_safe(item.mutation_type):
            if not (_new_cell(item) or region.adopt_list(item)):
                _refuse_mutation(item)
            return False
    return original(self, item)


def store_attr(original: Any, self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """``SideEffects.store_attr``: stock Dynamo defers this check for constants; a loop may not."""
    if active.regions and item.mutation_type is not None and not is_side_effect_safe(item.mutation_type):
        if _new_cell(item) and name == "cell_contents":
            for region in active.regions:
                region.cells.write(item)
        elif not isinstance(item, AutogradFunctionContextVariable):
            _refuse_mutation(item)
    return original(self, item, name, *args, **kwargs)


def load_cell(original: Any, self: Any, cell: Any) -> Any:
    """``SideEffects.load_cell``: closures are locals too."""
    value = original(self, cell)
    if isinstance(value, Poison):
        raise value.refuse()
    for region in active.regions:
        if cell.mutation_type is not None and cell.mutation_type.scope != current_scope_id():
            region.cells.read(cell)
    return value


def iterator_born(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """``__init__`` of iterators and generators: remember the region they were created in."""
    original(self, *args, **kwargs)
    self.__dict__["_packpass_region"] = active.regions[-1] if active.regions else None


def iterator_next(original: Any, self: Any, tx: Any) -> Any:
    """``tp_iternext_impl``: an iterator from outside the loop carries its position from document to document."""
    if active.regions and not isinstance(self, SymbolicIterator):
        region = active.regions[-1]
        born = self.__dict__.get("_packpass_region")
        if born is not region:
            raise refuse("outer-iterator", "the loop body advances an iterator from outside the loop", region.location)
    return original(self, tx)


def generator_method(original: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    """``LocalGeneratorObjectVariable.call_method``: ``send`` and ``throw`` advance a generator as ``next`` does."""
    if active.regions and name in ("send", "throw", "close"):
        region = active.regions[-1]
        if self.__dict__.get("_packpass_region") is not region:
            raise refuse("outer-iterator", "the loop body advances a generator from outside the loop", region.location)
    return original(self, tx, name, args, kwargs)


def compute_unbacked_bindings(original: Any, shape_env: Any, *args: Any, **kwargs: Any) -> Any:
    """``symbolic_shapes.compute_unbacked_bindings``: writing in place to a segment makes autograd compute its view
    again, with sizes that belong to no result; nobody refers to them."""
    if active.regions and shape_env is not None and not kwargs.get("peek"):
        shape_env.ignorable_fresh_unbacked_symbols.extend(shape_env.pending_fresh_unbacked_symbols)
    return original(shape_env, *args, **kwargs)


def create_proxy(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``OutputGraph.create_proxy``: an op of the body, where an error of one document would be caught."""
    if active.regions:
        region = active.regions[-1]
        if catches_exceptions(self.current_tx, region.tx):
            raise refuse("try-block", "the loop body is inside try, or a with that may swallow errors", region.location)
    return original(self, *args, **kwargs)


# === Leaving a region in other ways than its end =============================================================


def fail_and_restart(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``SpeculationEntry.fail_and_restart_analysis``: a graph break inside a loop body."""
    if active.regions:
        reason = self.reason.reason if self.reason is not None else "unknown"
        raise refuse(
            "graph-break", f"the loop body cannot be captured: {first_line(reason)}", active.regions[-1].location
        )
    return original(self, *args, **kwargs)


def compile_subgraph(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``OutputGraph.compile_subgraph``: the graph ends while a loop is still open."""
    if active.regions:
        raise refuse(
            "early-exit",
            "the loop over documents is left by break, return, an exception or a graph break",
            active.regions[-1].location,
        )
    return original(self, *args, **kwargs)


def first_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[0][:200] if lines else ""
