"""What makes Dynamo able to trace a loop over documents: permanent hooks, gated to frames that packpass compiles.

`install` is called once when the backend is first imported. ``PACKPASS_DISABLE_HOOKS=<group>,...`` switches groups
off; `hook_states` says what is on, off or broken on this torch. Without a group, a model compiles as stock torch
would compile it.

How it fits together: `dynamo` lists every private name of torch. This file is the gate, which knows the frames that
packpass compiles, and the table of what is wrapped. A call in such a frame goes by `_call_function`, an instruction by
`opcodes`; both ask `python_functions`, `calls` (torch's functions), `extended` (lists) and `p2p` (messages). Sequences
over documents are the plain classes of `plain`, going over them is in `sequences`; `region` is a loop that is being
traced, `effects` watches what it could carry from one document to the next.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

from packpass._compat import size_oblivious, untold_attempts
from packpass.capture import (
    calls,
    counts,
    effects,
    exchanges,
    extended,
    failures,
    fakes,
    inputs,
    joined_numbers,
    kept_functions,
    left_loops,
    lifted,
    made_inputs,
    message_lists,
    number_lists,
    opcodes,
    outgoing,
    p2p,
    python_functions,
    row_entries,
    sequences,
)
from packpass.capture.dynamo import (
    FunctoolsPartialVariable,
    GetAttrVariable,
    InstructionTranslator,
    InstructionTranslatorBase,
    ListVariable,
    OutputGraph,
    RestartAnalysis,
    SideEffects,
    SkipFrame,
    Unsupported,
    builder,
    callee,
    dynamic_sources,
    dynamo_config,
    dynamo_utils,
    innermost_backend,
)
from packpass.capture.frame import LOOP_MODES, FrameState, Mode
from packpass.capture.hooks import GROUPS, Group, Hook, HookState, group_is_on, hook_states, install_group, switched_off
from packpass.capture.inputs import Client
from packpass.capture.stack_room import with_room
from packpass.capture.state import Trace, active, current_frame, frame_state, note
from packpass.decisions.records import RefusedError
from packpass.semantics.names import name_of_target

__all__ = [
    "GROUPS",
    "Client",
    "HookState",
    "Mode",
    "active",
    "backend_behind",
    "frame_state",
    "group_is_on",
    "hook_states",
    "install",
]

log = logging.getLogger("packpass.capture")


def backend_behind(compiler_fn: Any) -> tuple[Any, dict[str, Any]]:
    """The backend that torch.compile was given, and what it was given for it (``mode``, ``options``)."""
    inner = innermost_backend(compiler_fn)
    return getattr(inner, "compiler_fn", inner), getattr(inner, "kwargs", {})


# === The gate ================================================================================================


def _output_graph_init(
    client: Client, original: Any, self: Any, code_options: Any, compiler_fn: Any, *args: Any, **kwargs: Any
) -> None:
    """The ShapeEnv is built here, and with it whether ``.item()`` may be traced: decide before."""
    compiler_fn = client.backend_for(compiler_fn)
    options = client.options_of(compiler_fn)
    frame = None if options is None else frame_state(options)
    with _data(frame):
        original(self, code_options, compiler_fn, *args, **kwargs)


@contextlib.contextmanager
def _data(frame: FrameState | None) -> Iterator[None]:
    """Capture ``.item()`` in a frame with a loop, and shapes that depend on values where the loop is one over rows of
    sizes, or goes by such a shape; elsewhere do what the user has set, also where another frame is compiled while one
    with a loop is being traced."""
    captured = frame is not None and frame.mode in LOOP_MODES
    stock = active.stock_settings
    if not captured and stock is None:
        yield
        return
    if stock is None:
        active.stock_settings = {name: getattr(dynamo_config, name) for name in (_SCALARS, _SHAPES)}
    settings: dict[str, Any] = dict(active.stock_settings or {})
    if captured and frame is not None:
        settings |= {
            _SCALARS: True,
            _SHAPES: settings[_SHAPES] or frame.row_sizes or bool(frame.data_sizes),
            **_defaults(),
        }
    try:
        with dynamo_config.patch(**settings), untold_attempts() if captured else contextlib.nullcontext():
            yield
    finally:
        active.stock_settings = stock


_SCALARS, _SHAPES = "capture_scalar_outputs", "capture_dynamic_output_shape_ops"


def _defaults() -> dict[str, Any]:
    """Lists that are defaults of functions keep their sources: a body that changes one must be seen to do so.

    Torch 2.11 takes an empty list for a constant, and gives every call a new one.
    """
    setting = "skip_guards_on_constant_func_defaults"
    return {setting: False} if hasattr(dynamo_config, setting) else {}


def _run(client: Client, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``InstructionTranslator.run``: open the gate for one frame."""
    if not isinstance(self, InstructionTranslator):
        return original(self, *args, **kwargs)  # an inlined function belongs to its frame
    outer = active.frame, active.regions, active.trace, active.ours
    options = client.options_of(self.output.compiler_fn)
    # Without options another backend compiles something while a packpass frame is traced (Dynamo runs user code for
    # constants).
    frame = None if options is None else frame_state(options)
    active.frame, active.regions, active.trace = frame, [], Trace(dict(self.symbolic_locals))
    active.ours = frame is not None
    if frame is not None:
        client.frame_starts(self, frame)
        effects.watch_breaks(self)
        exchanges.leave_refused(frame)
        frame.not_replayable = ""
    if frame is None or frame.mode is Mode.STOCK:
        active.frame = None
    loops = frame is not None and frame.mode in LOOP_MODES
    sources = frame.dynamic_sources if frame is not None and frame.mode is not Mode.STOCK else set()
    if frame is not None:
        sources = sources | frame.rows
    try:
        with _data(frame), dynamic_sources(sources, frame.batches if frame is not None and frame.rows_alone else ()):
            if frame is not None:
                number_lists.frame_starts(self, frame)
                result = with_room(original, self, *args, **kwargs)
            else:
                result = original(self, *args, **kwargs)
        if frame is not None:
            client.frame_ended(self, frame, None)
        return result
    except RestartAnalysis as error:
        if active.regions:  # a graph break: the frame is cut in front of the call that the loop is in
            reason = f"the loop body cannot be captured: {effects.first_line(error.restart_reason)}"
            note("graph-break", reason, active.regions[-1].location)
        raise
    except (SkipFrame, RefusedError):
        raise
    except Exception as error:
        if frame is None:
            raise
        failures.forget_half_made_nodes(self.output)
        refusal = failures.refused(self, error, loops)
        if refusal is None:
            client.frame_ended(self, frame, error)
            raise
        raise refusal from error
    finally:
        while active.regions:
            active.regions.pop().abandon()
        active.frame, active.regions, active.trace, active.ours = outer
        if frame is not None:
            client.trace_ended()


# === Calls ===================================================================================================


def _call_function(original: Any, self: Any, fn: Any, args: Any, kwargs: Any) -> Any:
    """``InstructionTranslatorBase.call_function``: every call of the traced program."""
    if active.frame is not None and active.frame.left and left_loops.makes_left_loop(self):
        left_loops.end_graph(self)
    out = _replacement(self, fn.realize(), list(args), dict(kwargs))
    if out is not None:
        self.push(out)
        return
    try:
        original(self, fn, args, kwargs)
    except Unsupported as error:
        effects.failed(self, error, fn.realize(), [*args, *kwargs.values()])
        raise
    effects.note_birth(self.stack[-1])


def _replacement(tx: Any, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The value that a call is replaced by, or None if it is what it seems."""
    while isinstance(fn, FunctoolsPartialVariable):
        args, kwargs = [*fn.args, *args], {**fn.keywords, **kwargs}
        fn = fn.func.realize()
    if isinstance(fn, GetAttrVariable):
        if group_is_on("symbolic-loops"):
            return calls.call_method(tx, fn, args, kwargs)
        return None
    if getattr(fn, "method_name", None) == "extend" and len(args) == 1:  # from torch 2.15 on
        return extended.extend(tx, fn.obj.realize(), args[0].realize())
    function = callee(fn)
    try:
        hash(function)
    except TypeError:  # an object of the user that can be called
        return None
    if function is None:
        return None
    answer = _QUESTIONS.get(function)
    if answer is not None:
        return answer(tx, *args)
    if group_is_on("p2p") and (out := message_lists.call_function(tx, function, args, kwargs)) is not None:
        return out
    out = exchanges.call_function(tx, function, args, kwargs)
    if out is not None:
        return out
    return _loop_function(tx, function, args, kwargs) if group_is_on("symbolic-loops") else None


def _loop_function(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    of_python = python_functions.FUNCTIONS.get(function)
    if of_python is not None:
        args = [arg.realize() for arg in args]
        number_lists.seen_together(tx, function, args)
        out = of_python(tx, args, {name: value.realize() for name, value in kwargs.items()})
        if out is not None:
            return out
    calls.watch_lists(tx, function, args, kwargs)
    if current_frame().seeks and function in _READING:
        row_entries.watch_items(tx, args)
        lifted.watch(tx, args[0] if args and function is int else None)
    elif current_frame().seeks:
        counts.watch(tx, name_of_target(function), [*args, *kwargs.values()])
    if current_frame().mode is Mode.PROBE:
        calls.watch(tx, function, args, kwargs)
    if current_frame().mode in LOOP_MODES:
        out = calls.call_function(tx, function, args, kwargs)
        if out is not None:
            return out
        python_functions.refuse_unknown(tx, function, args)
    if active.regions and not python_functions.is_ours(tx) and getattr(function, "__module__", "") in _GOING_THROUGH:
        effects.check_iterators(*args)
    return None


_QUESTIONS = {**sequences.QUESTIONS, **joined_numbers.QUESTIONS, **kept_functions.QUESTIONS, **p2p.QUESTIONS}
_READING = frozenset({int, float, bool, range, operator.index})
"""Functions that read a 0-d tensor as a number."""
_GOING_THROUGH = ("builtins", "itertools", "functools", "math")


# === The table ===============================================================================================


def _always(owner: Any) -> Callable[[], Any]:
    return lambda: owner


def _run_node(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``utils.run_node``: a node is run on fake tensors.

    In a frame with a loop, sizes such as ``len(cu) - 1`` are not compared with 0 and 1 for layout questions: one
    document would otherwise need a graph of its own.
    """
    if active.frame is None or active.frame.mode not in LOOP_MODES:
        return original(*args, **kwargs)
    with size_oblivious():
        out = fakes.run_node(original, *args, **kwargs)
    fakes.ignore_views(*args)
    return out


def _arguments_problem() -> str | None:
    """Arguments are found through the real values of a frame's locals."""
    parameters = inspect.signature(InstructionTranslatorBase.__init__).parameters
    return None if "f_locals" in parameters else "InstructionTranslatorBase has no f_locals"


def _hook(owner: Any, attribute: str, parameters: str, replacement: Any, gated: bool = True) -> Hook:
    return Hook(_always(owner), attribute, tuple(parameters.split()), replacement, gated)


def _groups(client: Client) -> list[Group]:
    init, run = functools.partial(_output_graph_init, client), functools.partial(_run, client)
    graph = functools.partial(inputs.compile_graph, client)
    return [
        Group(
            "gate",
            "tells frames compiled by packpass from all others; scalar outputs in loops over documents",
            (
                _hook(OutputGraph, "__init__", "self code_options compiler_fn", init, gated=False),
                _hook(InstructionTranslatorBase, "run", "self", run, gated=False),
                _hook(InstructionTranslatorBase, "call_function", "self fn args kwargs", _call_function),
            ),
        ),
        Group(
            "symbolic-loops",
            "traces a loop over documents once for every number of documents",
            (
                _hook(dynamo_utils, "run_node", "tracer node args kwargs nnmodule", _run_node),
                _hook(builder, "set_example_value", "node example_value", fakes.set_example_value),
                _hook(SideEffects, "check_allowed_side_effect", "self item", effects.check_allowed_side_effect),
                _hook(SideEffects, "store_attr", "self item name value", effects.store_attr),
                _hook(SideEffects, "load_cell", "self cellvar", effects.load_cell),
                _hook(OutputGraph, "compile_subgraph", "self tx reason", effects.compile_subgraph),
                _hook(OutputGraph, "create_proxy", "self", effects.create_proxy),
                _hook(ListVariable, "as_python_constant", "self", outgoing.as_python_constant),
            ),
            extra=_install_loops,
            check=lambda: opcodes.problem() or fakes.problem(),
        ),
        Group(
            "late-reads",
            "reads a tensor attribute of an autograd.Function when its backward runs, without a graph break",
            (),
            extra=opcodes.install_late_reads,
            check=opcodes.problem,
        ),
        Group(
            "boundary-inputs",
            "hands cu_seqlens to the passes where the model itself does not use it",
            (_hook(OutputGraph, "compile_and_call_fx_graph", "self tx rv root", graph, gated=False),),
            check=_arguments_problem,
        ),
        Group(
            "list-inputs",
            "makes lists of numbers or tensors, one for each document, inputs of one graph for any number of them",
            (),
            check=made_inputs.problem,
        ),
        Group("p2p", "captures isend and irecv inside a loop over documents", (), check=p2p.problem),
    ]


def _install_loops() -> None:
    opcodes.install_loops()
    fakes.install()


_lock = threading.Lock()


def install(client: Client) -> None:
    """Install every hook group that fits this torch and is not switched off. Idempotent."""
    with _lock:
        if GROUPS:
            return
        off = switched_off()
        groups = _groups(client)
        for group in groups:
            if group.name != "gate" and groups[0].state != "on":
                group.state, group.reason = groups[0].state, f"needs the group 'gate': {groups[0].reason}"
            else:
                install_group(group, off)
        GROUPS.extend(groups)
