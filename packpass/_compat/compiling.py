"""Compiling outside of Dynamo, and what a compilation and a run leave to be counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


def dynamo_counters(group: str) -> Any:
    """Dynamo's ``collections.Counter`` of this name, created on first use."""
    from torch._dynamo.utils import counters

    return counters[group]


def keep_compiled(error: Exception) -> bool:
    """A frame was given up with this error: have later ones run what their function was compiled to before, where it
    fits. Dynamo by itself runs such a function eagerly for good. False where this torch has no way to say so."""
    try:
        from torch._dynamo.types import FrameAction, FrameExecStrategy
    except ImportError:
        return False
    if not hasattr(error, "frame_exec_strategy"):
        return False
    error.frame_exec_strategy = FrameExecStrategy(FrameAction.RUN_ONLY, FrameAction.DEFAULT)
    return True


def trace_artifact(name: str, payload: Callable[[], str]) -> None:
    """Write a JSON artifact to the structured trace (``TORCH_TRACE=DIR``); free when tracing is off."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=payload,
        expect_trace_id=False,
    )


class ProfilerEvent(NamedTuple):
    """One event of a profiled run, in order of time; ``allocated_bytes`` is negative where memory was freed."""

    name: str
    start_ns: int
    allocated_bytes: int


def profile_cpu(call: Callable[[], Any]) -> list[ProfilerEvent]:
    """Run ``call`` under the CPU profiler with memory tracking and return its events."""
    import torch
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    # Public events() folds allocations into the op around them, which loses their order, and with it the peak.
    raw = profiler.profiler.kineto_results.events()
    events = [
        ProfilerEvent(event.name(), event.start_ns(), event.nbytes() if event.name() == "[memory]" else 0)
        for event in raw
        if event.name() != "[memory]" or event.device_type() == torch.profiler.DeviceType.CPU
    ]
    return sorted(events, key=lambda event: event.start_ns)


def compile_for(inner: Any, gm: Any, inputs: Any, sizes: Any) -> tuple[Any, Callable[..., Any]]:
    """Hand a graph and fakes of real inputs to a backend, with symbols of its own.

    Args:
        inner: the backend, ``inner(gm, fakes)``.
        sizes: per input ``(together, alone)``: dimensions that are symbolic and one symbol with others of their size,
            and dimensions that are symbols of their own. For a number ``({0}, ())`` makes it symbolic.

    Returns:
        ``(guards, compiled)``: whether ``compiled`` fits other inputs is what `holds_for` says.
    """
    import torch
    from torch._dynamo.source import LocalSource
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    fakes: list[Any] = []
    for i, (x, (together, alone)) in enumerate(zip(inputs, sizes, strict=True)):
        source = LocalSource(f"input_{i}")
        if isinstance(x, torch.Tensor):
            kinds = [
                DimDynamic.DYNAMIC if d in alone else DimDynamic.DUCK if d in together else DimDynamic.STATIC
                for d in range(x.dim())
            ]
            context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
            # With a source, a number in a 0-d tensor gets a symbol, for which AOTAutograd wants Dynamo to trace again.
            named = source if x.dim() else None
            fakes.append(mode.from_tensor(x, symbolic_context=context, source=named))
        elif type(x) is int and together:
            symbol = env.create_symbol(x, source, dynamic_dim=DimDynamic.DUCK)
            fakes.append(env.create_symintnode(symbol, hint=x, source=source))
        else:
            fakes.append(x)
    with tracing(TracingContext(mode)):
        compiled = inner(gm, fakes)
    return (env, fakes, [None]), compiled


def holds_for(guards: Any, inputs: Any) -> bool:
    """Do the assumptions under which `compile_for` compiled hold for these inputs? Sizes that are no symbols are not
    checked."""
    import torch

    env, fakes, code = guards
    symbolic = [i for i, fake in enumerate(fakes) if isinstance(fake, (torch.Tensor, torch.SymInt))]
    if code[0] is None or code[0][0] != len(env.guards):  # the backward, compiled later, may add some
        code[0] = (len(env.guards), env.produce_guards_expression([fakes[i] for i in symbolic]))
    expression = code[0][1]
    return expression is None or bool(env.evaluate_guards_expression(expression, [inputs[i] for i in symbolic]))
