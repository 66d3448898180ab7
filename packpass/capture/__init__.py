"""What makes Dynamo able to trace a loop over documents: permanent hooks, gated to frames that packpass compiles.

`install` is called once when the backend is first imported. ``PACKPASS_DISABLE_HOOKS=<group>,...`` switches groups
off; `hook_states` says what is on, off or broken on this torch. Without a group, a model compiles as stock torch
would compile it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo import config as dynamo_config
from torch._dynamo import exc, output_graph, side_effects, symbolic_convert, trace_rules
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.variables import (
    AutogradFunctionVariable,
    BuiltinVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    builder,
    builtin,
    functions,
    lists,
    user_defined,
)
from torch._dynamo.variables import iter as iterators
from torch.fx.experimental import symbolic_shapes

from packpass._compat import is_size_oblivious, size_oblivious
from packpass._location import shorten
from packpass._options import Options
from packpass._report import RefusedError
from packpass.capture import calls, ddp, effects, inputs, jumps, late_reads, p2p, skipped, watch
from packpass.capture.hooks import Group, Hook, HookState, install_group, switched_off
from packpass.capture.state import Mode, active, frame_state, refuse

__all__ = ["HookState", "Mode", "active", "frame_state", "group_is_on", "hook_states", "install", "options_of"]

log = logging.getLogger("packpass.capture")


def options_of(compiler_fn: Any) -> Options | None:
    """The options of the packpass backend behind ``compiler_fn``, or None for any other backend."""
    from packpass._backend import Backend

    inner = innermost_backend(compiler_fn)
    wrapper = getattr(inner, "compiler_fn", inner)  # torch._TorchCompileWrapper, when options or a mode are given
    if not isinstance(wrapper, Backend):
        return None
    options, _ = Options.from_dict(getattr(inner, "kwargs", {}).get("options"))
    return options


# === The gate ================================================================================================


def _output_graph_init(
    original: Any, self: Any, code_options: Any, compiler_fn: Any, *args: Any, **kwargs: Any
) -> None:
    """The ShapeEnv is built here, and with it whether ``.item()`` may be traced: decide before."""
    compiler_fn = ddp.rewriting_first(compiler_fn, lambda behind: options_of(behind) is not None)
    options = options_of(compiler_fn)
    loops = options is not None and frame_state(options).mode in (Mode.SYMBOLIC, Mode.UNROLLED)
    with _loop_configuration() if loops else _stock_configuration():
        original(self, code_options, compiler_fn, *args, **kwargs)


@contextlib.contextmanager
def _loop_configuration() -> Iterator[None]:
    """Scalars are captured, and sizes such as ``len(cu) - 1`` are not compared with 0 and 1 for layout questions:
    one document would otherwise need a graph of its own."""
    outer = active.stock_settings
    if outer is None:
        active.stock_settings = (dynamo_config.capture_scalar_outputs, is_size_oblivious())
    try:
        with dynamo_config.patch(capture_scalar_outputs=True), size_oblivious():
            yield
    finally:
        active.stock_settings = outer


@contextlib.contextmanager
def _stock_configuration() -> Iterator[None]:
    """What the user has set, also where another frame is compiled while one with a captured loop is being traced."""
    if active.stock_settings is None:
        yield
        return
    scalars, oblivious = active.stock_settings
    with dynamo_config.patch(capture_scalar_outputs=scalars), size_oblivious(oblivious):
        yield


def _run(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``InstructionTranslator.run``: open the gate for one frame."""
    if not isinstance(self, symbolic_convert.InstructionTranslator):
        return original(self, *args, **kwargs)  # an inlined function belongs to its frame
    outer, regions = active.frame, active.regions
    options = options_of(self.output.compiler_fn)
    if options is None:
        # Another backend compiles something while a packpass frame is traced (Dynamo runs user code for constants).
        active.frame, active.regions = None, []
        try:
            with _stock_configuration():
                return original(self, *args, **kwargs)
        finally:
            active.frame, active.regions = outer, regions
    frame = frame_state(options)
    inputs.remember_arguments(self)
    frame.not_replayable = ""
    active.frame, active.regions = (None if frame.mode is Mode.STOCK else frame), []
    scope = _loop_configuration() if frame.mode in (Mode.SYMBOLIC, Mode.UNROLLED) else _stock_configuration()
    try:
        with scope:
            return original(self, *args, **kwargs)
    except (exc.RestartAnalysis, exc.SkipFrame, RefusedError):
        raise
    except Exception as error:
        _forget_half_made_nodes(self.output)
        # Whatever fails because of what packpass does to a frame must not fail the model: stock torch decides.
        what = f"{type(error).__name__}: {effects.first_line(error)}"
        if active.regions:
            raise refuse(
                "body-not-traceable", f"the loop body cannot be captured: {what}", active.regions[-1].location
            ) from error
        if frame.mode in (Mode.SYMBOLIC, Mode.UNROLLED):
            where = next(iter(frame.sites.values()), shorten(self.f_code.co_filename, self.f_code.co_firstlineno))
            reason = f"a frame with a captured loop failed to compile: {skipped.reason_of(error)}"
            raise refuse("frame-not-compiled", reason, where) from error
        skipped.note_skipped(self, frame, error)
        raise
    finally:
        while active.regions:
            active.regions.pop().abandon()
        active.frame, active.regions = outer, regions


def _forget_half_made_nodes(output: Any) -> None:
    """Dynamo clears the graphs of a failed frame and stumbles over nodes whose creation failed half way."""
    for tracer in output.tracers:
        made = set(tracer.graph.nodes)
        for node in made:
            for user in [user for user in node.users if user not in made]:
                del node.users[user]


# === The table ===============================================================================================


def _always(owner: Any) -> Callable[[], Any]:
    return lambda: owner


def _iterator_hooks() -> tuple[Hook, ...]:
    classes: list[Any] = [iterators.IteratorVariable, functions.LocalGeneratorObjectVariable]
    for cls in classes:
        classes.extend(cls.__subclasses__())
    hooks = [Hook(_always(cls), "__init__", ("self",), effects.iterator_born) for cls in classes[:2]]
    for cls in classes:
        if "tp_iternext_impl" in cls.__dict__ and not cls.__module__.startswith("packpass."):
            hooks.append(Hook(_always(cls), "tp_iternext_impl", ("self", "tx"), effects.iterator_next))
    return tuple(hooks)


def _itself(cls: Any) -> Any:
    return cls


def _loops_problem() -> str | None:
    """Iterators that advance by another method than the hooked one would carry their position unseen."""
    for cls in (lists.ListIteratorVariable, iterators.CountIteratorVariable, functions.LocalGeneratorObjectVariable):
        if "tp_iternext_impl" not in vars(cls):
            return f"{cls.__name__}.tp_iternext_impl is missing"
    return jumps.problem()


def _arguments_problem() -> str | None:
    """Arguments are found through the real values of a frame's locals."""
    parameters = inspect.signature(symbolic_convert.InstructionTranslatorBase.__init__).parameters
    return None if "f_locals" in parameters else "InstructionTranslatorBase has no f_locals"


def _list_builtins() -> list[Any]:
    """``list`` and ``tuple`` as variables of their own, where this torch has them."""
    names = ("ListBuiltinVariable", "TupleBuiltinVariable")
    return [cls for name in names if (cls := getattr(builtin, name, None)) is not None]


def _groups() -> list[Group]:
    gate = Group(
        "gate",
        "tells frames compiled by packpass from all others; scalar outputs in loops over documents",
        (
            Hook(
                lambda: output_graph.OutputGraph,
                "__init__",
                ("self", "code_options", "compiler_fn"),
                _output_graph_init,
                gated=False,
            ),
            Hook(lambda: symbolic_convert.InstructionTranslatorBase, "run", ("self",), _run, gated=False),
        ),
    )
    call, method = ("self", "tx", "args", "kwargs"), ("self", "tx", "name", "args", "kwargs")
    loops = Group(
        "symbolic-loops",
        "traces a loop over documents once for every number of documents",
        (
            Hook(lambda: builder.VariableBuilder, "wrap_tensor", ("self", "value"), watch.wrap_tensor),
            Hook(lambda: builder, "is_dynamic_source", ("source_name",), watch.is_dynamic_source),
            Hook(lambda: BuiltinVariable, "call_function", call, calls.call_builtin),
            *(Hook(functools.partial(_itself, c), "call_function", call, calls.call_list) for c in _list_builtins()),
            Hook(lambda: functions.PolyfilledFunctionVariable, "call_function", call, calls.call_polyfill),
            Hook(lambda: TorchInGraphFunctionVariable, "call_function", call, calls.call_torch),
            Hook(lambda: TensorVariable, "call_method", method, calls.call_tensor_method),
            Hook(lambda: TensorVariable, "tp_iter_impl", ("self", "tx"), calls.tensor_iter),
            Hook(lambda: lists.ListVariable, "tp_iter_impl", ("self", "tx"), calls.list_iter),
            Hook(
                lambda: side_effects.SideEffects,
                "check_allowed_side_effect",
                ("self", "item"),
                effects.check_allowed_side_effect,
            ),
            Hook(lambda: side_effects.SideEffects, "store_attr", ("self", "item", "name", "value"), effects.store_attr),
            Hook(lambda: side_effects.SideEffects, "load_cell", ("self", "cellvar"), effects.load_cell),
            Hook(
                lambda: symbolic_convert.SpeculationEntry,
                "fail_and_restart_analysis",
                ("self",),
                effects.fail_and_restart,
            ),
            Hook(
                lambda: output_graph.OutputGraph, "compile_subgraph", ("self", "tx", "reason"), effects.compile_subgraph
            ),
            Hook(
                lambda: symbolic_shapes,
                "compute_unbacked_bindings",
                ("shape_env", "example_value"),
                effects.compute_unbacked_bindings,
            ),
            Hook(lambda: functions.LocalGeneratorObjectVariable, "call_method", method, effects.generator_method),
            Hook(lambda: output_graph.OutputGraph, "create_proxy", ("self",), effects.create_proxy),
            *_iterator_hooks(),
        ),
        extra=jumps.install_jumps,
        check=_loops_problem,
    )
    late = Group(
        "late-reads",
        "reads a tensor attribute of an autograd.Function when its backward runs, without a graph break",
        (
            Hook(
                lambda: AutogradFunctionVariable,
                "var_getattr",
                ("self", "tx", "name"),
                late_reads.getattr_of_function,
            ),
        ),
    )
    boundaries = Group(
        "boundary-inputs",
        "hands cu_seqlens to the passes where the model itself does not use it",
        (
            Hook(
                lambda: output_graph.OutputGraph,
                "compile_and_call_fx_graph",
                ("self", "tx", "rv", "root"),
                functools.partial(inputs.compile_graph, options_of),
                gated=False,
            ),
        ),
        check=_arguments_problem,
    )
    messages = Group(
        "p2p",
        "captures isend and irecv inside a loop over documents",
        (
            Hook(lambda: functions.CollectiveFunctionRewriteVariable, "call_function", call, p2p.call_collective),
            Hook(lambda: user_defined.UserDefinedClassVariable, "call_function", call, p2p.call_class),
        ),
        check=p2p.problem,
    )
    return [gate, loops, late, boundaries, messages]


_GROUPS: list[Group] = []
_lock = threading.Lock()


def install() -> None:
    """Install every hook group that fits this torch and is not switched off. Idempotent."""
    with _lock:
        if _GROUPS:
            return
        off = switched_off()
        groups = _groups()
        for group in groups:
            if group.name != "gate" and groups[0].state != "on":
                group.state, group.reason = groups[0].state, f"needs the group 'gate': {groups[0].reason}"
            else:
                install_group(group, off)
            if group.state == "broken":
                log.warning("hook group %s does not fit this torch and is off: %s", group.name, group.reason)
        trace_rules.add("packpass.capture")  # else Dynamo would compile the hooks where torch calls them from a frame
        # What Dynamo cached before the hooks were there would bypass them: packpass may be imported late.
        BuiltinVariable.call_function_handler_cache.clear()
        for cached in ("_type_dispatch_impl", "_id_dispatch"):
            clear = getattr(getattr(builder.VariableBuilder, cached, None), "cache_clear", None)
            if clear is not None:
                clear()
        _GROUPS.extend(groups)


def group_is_on(name: str) -> bool:
    """Is this hook group installed?"""
    return any(group.name == name and group.state == "on" for group in _GROUPS)


def hook_states() -> list[HookState]:
    """One entry per hook group, for `python -m packpass doctor`."""
    install()
    return [HookState(g.name, g.purpose, g.state, g.reason) for g in _GROUPS]
