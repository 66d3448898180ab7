"""Every private name of torch that capture uses, what for, and nothing else: the seam between packpass and Dynamo.

No other module of this folder imports torch's internals. Names are chosen for having meant the same from torch 2.11 to
2.15; where a torch differs, the difference is a capability that is looked for here, never a version that is compared.
Beside the imports, capture relies on attributes of what it is given:

========================  ==========================================================================================
instruction translator    ``run call_function dispatch_table stack push pop popn jump instructions indexof
                          instruction_pointer current_instruction block_stack parent output f_code f_globals f_locals
                          lineno symbolic_locals prune_dead_locals``
output graph              ``__init__ create_proxy compile_subgraph compile_and_call_fx_graph compiler_fn graph tracers
                          root_tracer current_tracer root_tx current_tx side_effects shape_env nn_modules``
side effects              ``check_allowed_side_effect store_attr load_cell store_attr_mutations id_to_variable``
variables                 ``realize as_proxy is_python_constant as_python_constant call_function call_method
                          python_type reconstruct visit build source mutation_type cls_source``, ``fn`` or ``value``
                          of functions, ``obj`` and ``name`` of methods, ``items`` of sequences, ``sym_num`` of numbers
========================  ==========================================================================================
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

# Whether scalars are captured, per frame; how a node is run on fake tensors; what a graph break in a hook looks like.
from torch._dynamo import config as dynamo_config
from torch._dynamo import utils as dynamo_utils

# A scope tells what was made inside a region from what was there before.
from torch._dynamo.current_scope_id import current_scope_id, enter_new_scope

# The backend behind what torch.compile wrapped around it.
from torch._dynamo.eval_frame import innermost_backend

# Restarting the analysis of a frame; what must pass through; errors that the user sees as they are.
from torch._dynamo.exc import (
    RestartAnalysis,
    ShortenTraceback,
    SkipFrame,
    TensorifyScalarRestartAnalysis,
    UnspecializeRestartAnalysis,
    Unsupported,
)

# The graph of a frame is only good for the process groups that it has seen.
from torch._dynamo.guards import GuardBuilder, install_guard

# The three classes whose functions are wrapped, and the translator of a frame (inlined functions have others).
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.side_effects import SideEffects

# An argument that the code never reads.
from torch._dynamo.source import LocalSource
from torch._dynamo.symbolic_convert import InstructionTranslator, InstructionTranslatorBase

# Kinds of values, and what a node gives as it is noted on it: numbers, tensors, containers, cells, functions that are
# not plain, managers that swallow errors.
from torch._dynamo.variables import (
    AutogradFunctionVariable,
    CellVariable,
    ConstantVariable,
    ConstDictVariable,
    ContextWrappingVariable,
    DefaultDictVariable,
    GetAttrVariable,
    ListVariable,
    NumpyNdarrayVariable,
    NumpyVariable,
    SliceVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    UserDefinedObjectVariable,
    builder,
)
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew, VariableTracker, is_side_effect_safe

# Making values: of Python objects without a source, and of results of graph nodes.
from torch._dynamo.variables.builder import SourcelessBuilder, wrap_fx_proxy
from torch._dynamo.variables.ctx_manager import GenericContextWrappingVariable

# What carries a position from one document to the next.
from torch._dynamo.variables.functions import FunctoolsPartialVariable, LocalGeneratorObjectVariable
from torch._dynamo.variables.iter import IteratorVariable
from torch._dynamo.variables.misc import AutogradFunctionContextVariable, NullVariable

# State that survives restarts of one compile and nothing else.
from torch._guards import CompileContext

from packpass._compat import hint_of, statically_known_true

AttrSource: Any = getattr(builder, "AttrSource", None)
FloatTensorSource: Any = getattr(builder, "FloatTensorSource", object)
"""Where values come from: an attribute; a number of Python of which torch makes a tensor at every call."""

# === Values ==================================================================================================


def constant(value: Any) -> Any:
    """A Python constant as a value of the traced program."""
    return ConstantVariable.create(value)


def variable(tx: Any, value: Any) -> Any:
    """A function or class of ours as a value of the traced program; it brings no guard with it."""
    if getattr(value, "__module__", "") == "numpy":
        return NumpyVariable(value)
    return SourcelessBuilder.create(tx, value)


def call(tx: Any, function: Any, *args: Any) -> Any:
    """Trace ``function(*args)``; a function of Python or of torch, with values of the traced program."""
    callable_ = function if isinstance(function, VariableTracker) else variable(tx, function)
    return callable_.call_function(tx, list(args), {})


def attribute(tx: Any, value: Any, name: str) -> Any:
    """Trace ``value.name``."""
    return call(tx, getattr, value, constant(name)).realize()


def emit(tx: Any, target: Any, *args: Any, method: bool = False) -> Any:
    """Write a call into the graph as it is, and return its result as a value; ``args`` are proxies and constants."""
    kind = "call_method" if method else "call_function"
    return wrap_fx_proxy(tx, tx.output.create_proxy(kind, target, args, {}))


def example(value: Any) -> Any:
    """The fake tensor, symbolic number or constant that stands for a value of the graph."""
    return value.as_proxy().node.meta.get("example_value")


def callee(function: Any) -> Any:
    """The Python object that is being called, or None if it is made by the traced program."""
    for name in ("fn", "value"):
        found = getattr(function, name, None)
        if found is not None:
            return found
    # A method or a closure: as a constant it would hold copies of values, which may not be looked at.
    if hasattr(function, "obj") or hasattr(function, "closure") or not function.is_python_constant():
        return None
    return function.as_python_constant()


# === Sizes ===================================================================================================


@contextlib.contextmanager
def dynamic_sources(names: set[str], rows: Collection[str] = ()) -> Iterator[None]:
    """Inputs of these names (``L['cu_seqlens']``) have symbolic sizes from the first compile on. Of ``rows`` the first
    size alone is a symbol, where torch can be told so."""
    if not names:
        yield
        return
    # The setting is a list of regular expressions between commas, without spaces; behind a colon is the dimension.
    which = ":0" if "dim" in inspect.signature(builder.is_dynamic_source).parameters else ""
    plain = {name: "".join(c if c.isalnum() or c == "_" else f"\\x{ord(c):02x}" for c in name) for name in names}
    escaped = [f"{found}${which if name in rows else ''}" for name, found in plain.items()]
    config: Any = torch.compiler.config
    with config.patch(dynamic_sources=",".join([*filter(None, [config.dynamic_sources]), *sorted(escaped)])):
        yield


@contextlib.contextmanager
def _unknown_bounds(count: int) -> Iterator[list[tuple[Any, Any]]]:
    """``count`` pairs ``0 <= start <= stop`` that only the data knows, where tensors are fake."""
    modes: Any = importlib.import_module("torch._subclasses.fake_tensor")
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    env = shapes.ShapeEnv()
    with modes.FakeTensorMode(shape_env=env):
        pairs = [(env.create_unbacked_symint(), env.create_unbacked_symint()) for _ in range(count)]
        for start, stop in pairs:
            torch._check(start >= 0)
            torch._check(stop >= start)
        yield pairs


@functools.cache
def fake_slices_are_expressions() -> bool:
    """Is the size of ``x[s:e]`` written down as ``e - s``? Before torch 2.12, each slice has a size of its own."""
    with _unknown_bounds(1) as [(start, stop)]:
        x = torch.empty(4)
        return statically_known_true(x[start:stop].shape[0] == x[start:stop].shape[0])


@functools.cache
def fake_writes_assume_sizes() -> bool:
    """Is ``x[a:b] = x[c:d]`` taken to fit where all bounds are data? Before torch 2.13, it asks, and nobody can say."""
    with _unknown_bounds(2) as [(a, b), (c, d)]:
        x = torch.empty(4)
        try:
            x[a:b] = x[c:d]
        except RuntimeError:
            return False
    return True


def fake_slice_table() -> dict[Any, Callable[..., Any]]:
    """Where torch looks up the fake of ``aten.slice``; empty if it does so elsewhere."""
    implementations: Any = importlib.import_module("torch._subclasses.fake_impls")
    table: dict[Any, Callable[..., Any]] = getattr(implementations, "op_implementations_dict", {})
    return table


def size_of(value: Any) -> Any:
    """The integer that a value of the traced program is, as torch has it: a symbolic one, or an int."""
    return value.sym_num if isinstance(value, SymNodeVariable) else value.as_python_constant()


def settled_within(number: Any, most: Any) -> bool:
    """Is ``0 <= number <= most`` now? Then a guard says so for other calls; False also where only data knows."""
    now, end = hint_of(number), hint_of(most)
    return now is not None and end is not None and 0 <= now <= end and bool(number >= 0) and bool(number <= most)


def expression(value: Any) -> Any:
    """The sympy expression (or int) behind an integer of the traced program."""
    return value.sym_num.node.expr if isinstance(value, SymNodeVariable) else value.as_python_constant()
