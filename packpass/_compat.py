"""Every private torch import and every version difference, in one place, each with a test in tests/test_compat.py.

Functions import what they need when they are called: importing this module costs nothing and cannot fail.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

log = logging.getLogger("packpass.compat")


# === Reports: counters and the structured trace ==============================================================


def dynamo_counters(group: str) -> Any:
    """Dynamo's ``collections.Counter`` of this name, created on first use."""
    from torch._dynamo.utils import counters

    return counters[group]


def trace_artifact(name: str, payload: Callable[[], str]) -> None:
    """Write a JSON artifact to the structured trace (``TORCH_TRACE=DIR``); free when tracing is off."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=payload,
        expect_trace_id=False,
    )


# === Ops: Inductor's decomposition table =====================================================================


def register_inductor_decomposition(op: Any, decomposition: Callable[..., Any]) -> None:
    """Let Inductor trace ``op`` through ``decomposition`` (an op overload of ours; registering twice raises)."""
    from torch._inductor.decomposition import decompositions, fast_random_decomps, register_decomposition

    clear = getattr(fast_random_decomps, "cache_clear", None)  # a copy of the table, made at Inductor's first compile
    if clear is not None:
        clear()
    if op in decompositions:
        raise RuntimeError(f"{op} already has an Inductor decomposition")
    register_decomposition([op])(decomposition)


def register_inductor_view(op: Any, view: Callable[..., tuple[Any, Any]]) -> None:
    """Let Inductor take ``op(x, ...)`` for a view of x, without a guard on sizes (its own views compare them).

    Args:
        view: ``view(sizes of x, *others) -> (sizes of the result, index of the result -> index of x)``, with sympy
            expressions; ``others`` are numbers, or the sizes of tensors.
    """
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering

    def lower(x: Any, *others: Any) -> Any:
        given = (other.get_size() if isinstance(other, ir.IRNode) else other for other in others)
        sizes, index = view(x.get_size(), *given)
        return ir.TensorBox(ir.GenericView.create(x.data, sizes, index))

    register_lowering(op, type_promotion_kind=None)(lower)


def register_inductor_table(op: Any, sizes: Callable[..., list[Any]], entry: Callable[..., Any], dtype: Any) -> None:
    """Let Inductor compute ``op(vector, total, number)`` once per graph, as a buffer that its readers load.

    Args:
        sizes: ``sizes(length of the vector, total, number)``: of the result.
        entry: one value: ``entry(ops, number -> value, places, (first, last, own) of the vector, total, number)``.
    """
    import sympy
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering
    from torch._inductor.virtualized import V, ops

    def value_of(number: Any) -> Any:
        return ops.index_expr(sympy.sympify(number), torch.int64)

    def lower(vector: Any, total: Any, number: int) -> Any:
        made, node = V.graph.__dict__.setdefault("packpass_tables", {}), V.graph.current_node
        # A node of the graph is one value for good, which a buffer that is written in place is not.
        known = (op, node.args[0], total, number) if node is not None and node.target is op else None
        if known in made:
            return made[known]
        load, length = vector.make_loader(), vector.get_size()[0]

        def inner(at: Any) -> Any:
            def bound(place: Any) -> Any:
                return ops.to_dtype(load([place]), torch.int64)

            bounds = (lambda: bound(sympy.Integer(0)), lambda: bound(length - 1), lambda: bound(at[-1]))
            return ops.to_dtype(entry(ops, value_of, [value_of(place) for place in at], bounds, total, number), dtype)

        table = ir.Pointwise.create(
            device=vector.get_device(), dtype=dtype, inner_fn=inner, ranges=sizes(length, total, number)
        )
        table.realize()
        if known is not None:
            made[known] = table
        return table

    register_lowering(op, type_promotion_kind=None)(lower)


def floor_div(value: Any, by: int) -> Any:
    """``value // by`` in numbers, symbolic ones, and the expressions of Inductor, where ``//`` is sympy's own."""
    import sympy

    if isinstance(value, sympy.Expr):
        from torch.utils._sympy.functions import FloorDiv

        return FloorDiv(value, by)
    return value // by


def generated_cpp_is_sequential() -> bool:
    """Whether C++ code that Inductor generates now runs in one thread, that is without an OpenMP region.

    An assertion inside such a region throws out of it, which aborts the process.
    """
    import torch
    from torch._inductor import config

    threads = config.cpp.threads if config.cpp.threads >= 1 else torch.get_num_threads()
    return threads == 1 and not config.cpp.dynamic_threads


def assert_async(condition: Any, message: str) -> None:
    """Assert that a 0-d bool tensor is True without waiting for its device; on the CPU raises RuntimeError at once."""
    import torch

    torch.ops.aten._assert_async.msg(condition, message)


def compile_cpp(source: str, function: str, arguments: str) -> Callable[..., Any] | None:
    """A C function out of C++ source, compiled and cached as Inductor does with its own kernels; it returns nothing.

    Args:
        arguments: one letter per argument, "p" a pointer or None, "i" an int64.

    Returns:
        None where the compiler is missing or fails, with a warning in the log.
    """
    import ctypes

    from torch._inductor.codecache import CppCodeCache

    try:
        # Inductor vectorises on its own and turns the compiler's vectoriser off.
        library: Any = CppCodeCache.load(source, extra_flags=("-ftree-loop-vectorize",))
        found = getattr(library, function)
    except Exception as error:  # the compiler's errors have no common class
        log.warning("no C++ kernel, torch's own ops are used instead (slower): %s", str(error).split("\n")[0])
        return None
    found.restype = None
    found.argtypes = [{"p": ctypes.c_void_p, "i": ctypes.c_int64}[letter] for letter in arguments]
    called: Callable[..., Any] = found
    return called


# === Symbolic shapes =========================================================================================


def current_shape_env() -> Any:
    """The ShapeEnv of the fake mode that is being traced with."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode()
    if mode is None or mode.shape_env is None:
        raise RuntimeError("packpass: a capture marker was called outside tracing")
    return mode.shape_env


def free_unbacked_symbols(value: Any) -> Any:
    """The data-dependent symbols in a SymInt, a tensor's shape, or anything else that holds some."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols as implementation

    return implementation(value)


# === Measuring: profiler events, generated code, caches =======================================================


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


@contextlib.contextmanager
def generated_code() -> Iterator[list[str]]:
    """Collect the Python wrappers that Inductor generates inside the block (not those it finds in a cache)."""
    from torch._inductor.graph import GraphLowering

    sources: list[str] = []
    previous = GraphLowering.save_output_code

    def save(code: str) -> None:
        if previous is not None:
            previous(code)
        sources.append(code)

    GraphLowering.save_output_code = staticmethod(save)
    try:
        yield sources
    finally:
        GraphLowering.save_output_code = previous


@contextlib.contextmanager
def empty_compile_caches() -> Iterator[None]:
    """Compile inside the block as on a machine that has never compiled anything; the user's caches stay untouched."""
    import torch._functorch.config
    from torch._inductor.utils import fresh_cache

    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=False):
        yield


@contextlib.contextmanager
def eager_random_numbers() -> Iterator[None]:
    """Compile inside the block so that Inductor draws random numbers from eager's generator."""
    config: Any = importlib.import_module("torch._inductor.config")
    with config.patch(fallback_random=True):
        yield


# === Doctor ==================================================================================================


def registered_ops(namespace: str) -> list[str]:
    """Names of the ops that are registered in a torch library, sorted."""
    import torch

    prefix = f"{namespace}::"
    return sorted({n.split(".")[0] for n in torch._C._dispatch_get_all_op_names() if n.startswith(prefix)})


def fake_mode_of(value: Any) -> Any:
    """The FakeTensorMode of a fake tensor, or None for a real one."""
    from torch._subclasses.fake_tensor import FakeTensor

    return value.fake_mode if isinstance(value, FakeTensor) else None


def statically_known_true(condition: Any) -> bool:
    """Is a symbolic condition true without a new guard?"""
    from torch.fx.experimental.symbolic_shapes import statically_known_true as implementation

    return bool(implementation(condition))


def guard_or_false(condition: Any) -> bool:
    """Is a symbolic condition true, by what is known or by a guard on sizes at hand? False where only data knows."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false as implementation

    return bool(implementation(condition))


def either(one: Any, other: Any) -> Any:
    """``one or other`` of symbolic conditions, without deciding them."""
    from torch.fx.experimental.symbolic_shapes import sym_or

    return sym_or(one, other)


def size_oblivious(on: bool = True) -> Any:
    """Context in which (if ``on``) symbolic sizes are neither 0 nor 1 where only a layout question depends on it."""
    from torch.fx.experimental import _config

    config: Any = _config
    return config.patch(backed_size_oblivious=on)


def is_size_oblivious() -> bool:
    """Whether that context, or the user's own setting, is on."""
    from torch.fx.experimental import _config

    return bool(_config.backed_size_oblivious)


def native_pad() -> Any:
    """The builtin that ``torch.nn.functional.pad`` becomes in a Dynamo graph."""
    import torch

    return torch._C._nn.pad


def ignore_fresh_symbols(mode: Any) -> Any:
    """Context in which data-dependent sizes created by fake runs are not expected to be bound by a graph node."""
    import contextlib

    env = getattr(mode, "shape_env", None)
    return contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()


# === Graphs ==================================================================================================


_OWN_COLLECTIVES = ("all_to_all_group", "cp_to_hp", "hp_to_cp", "cp_packed_roll")


def qualified_name(target: Any) -> tuple[str, str]:
    """``(namespace, name)`` of an op, overload or packet of overloads; empty strings for anything else."""
    name = getattr(target, "_qualified_op_name", None) or getattr(getattr(target, "_schema", None), "name", "")
    namespace, _, op = name.partition("::") if isinstance(name, str) else ("", "", "")
    return namespace, op


def is_collective(target: Any) -> bool:
    """Is this call target a collective (functional, from ``torch.distributed``, or an op of ours that makes one)?

    Both overloads and the packets of overloads that Dynamo writes down where user code calls ``torch.ops.x.y``.
    """
    try:
        return _is_collective(target)
    except TypeError:  # of a target that cannot be hashed, which no function of torch's is
        return False


@functools.lru_cache(4096)
def _is_collective(target: Any) -> bool:
    namespace, op = qualified_name(target)
    if namespace in ("_c10d_functional", "c10d", "_c10d_functional_autograd"):
        return op != "wait_tensor"
    if namespace:
        return namespace == "packpass" and op in _OWN_COLLECTIVES
    module = getattr(target, "__module__", None) or ""
    return module.startswith("torch.distributed") and getattr(target, "__name__", "").startswith(
        ("all_", "reduce", "broadcast", "isend", "irecv", "send", "recv")
    )


def python_dispatcher() -> Any:
    """Context in which fakes run torch's Python decompositions, as in Dynamo; the C++ ones fix symbolic sizes."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def hint_of(size: Any) -> int | None:
    """The value of a symbolic size while compiling, without a guard; None if it is data-dependent."""
    import torch

    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else None


class Assumed(NamedTuple):
    """What has been guarded of a symbolic size so far.

    ``holds(number)``: does a number satisfy the same? (Code that asked whether a row is a multiple of its chunk is good
    for multiples only.) Guards that relate the size to other ones are left out. ``value_of(other)``: another size as a
    function of this one; None if it depends on more. ``divisors``: by which numbers it is divided in guards.
    ``guards``: each by itself, False where it cannot be computed.
    """

    holds: Callable[[int], bool] = lambda value: True
    guards: tuple[Callable[[int], bool], ...] = ()
    value_of: Callable[[Any], Callable[[int], int] | None] = lambda other: None
    divisors: frozenset[int] = frozenset()


def assumed_of(size: Any) -> Assumed:
    """See `Assumed`."""
    import sympy
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP
    from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
    from torch.utils._sympy.printers import PythonPrinter

    symbol, env = size.node.expr, size.node.shape_env
    number = sympy.Symbol("number", integer=True)

    def function(expression: Any) -> Callable[[int], Any]:
        # As Python: a chunked scan has hundreds of guards, and sympy takes milliseconds for each.
        code = compile(PythonPrinter().doprint(expression.xreplace({symbol: number})), "<size>", "eval")
        return lambda value: eval(code, dict(SYMPY_INTERP), {"number": value})

    def satisfied(condition: Callable[[int], Any]) -> Callable[[int], bool]:
        def ask(value: int) -> bool:
            try:
                return bool(condition(value))
            except ZeroDivisionError:
                return False

        return ask

    def value_of(other: Any) -> Callable[[int], int] | None:
        expression = env.replace(other.node.expr)
        return function(expression) if expression.free_symbols == {symbol} else None

    if not isinstance(symbol, sympy.Symbol):
        return Assumed()
    guards = dict.fromkeys(env.replace(guard.expr) for guard in env.guards)
    mine = [guard for guard in guards if guard.free_symbols == {symbol}]
    conditions = tuple(satisfied(function(guard)) for guard in mine)
    divided = {atom for guard in mine for atom in guard.atoms(Mod, PythonMod, FloorDiv) if atom.args[0] == symbol}
    divisors = frozenset(int(atom.args[1]) for atom in divided if atom.args[1].is_Integer)

    @functools.cache
    def holds(value: int) -> bool:
        return all(condition(value) for condition in conditions)

    return Assumed(holds, conditions, value_of, divisors)


# === Taking an operation apart ================================================================================


@contextlib.contextmanager
def sizes_of_nobody() -> Iterator[tuple[Any, Callable[[int], Any]]]:
    """``(fake mode, size)``: fake tensors with sizes of which nothing is known but that they are not negative.

    ``size(least)`` makes one. They belong to no graph, and nothing can be decided by their values.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()

    def size(least: int) -> Any:
        with env.ignore_fresh_unbacked_symbols():
            made = env.create_unbacked_symint()
            torch._check(made >= least)
        return made

    mode = FakeTensorMode(shape_env=env)
    with mode:
        yield mode, size


@contextlib.contextmanager
def sizes_of_anybody() -> Iterator[tuple[Any, Callable[[int], Any]]]:
    """``(fake mode, size)`` away from what is being traced: fake tensors whose sizes may be asked for.

    ``size(n)`` makes one that is a symbol, and ``n`` where its value is asked for; `asked` says what was.
    """
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    made = itertools.count()

    def size(hint: int) -> Any:
        source = ConstantSource(f"__packpass_size_{next(made)}")
        symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        return env.create_symintnode(symbol, hint=hint, source=source)

    with unset_fake_temporarily(), FakeTensorMode(shape_env=env) as mode:
        yield mode, size


def asked(mode: Any) -> list[Any]:
    """The conditions on sizes that were decided, as expressions."""
    return [guard.expr for guard in mode.shape_env.guards]


def asks_for_data(error: BaseException | None) -> bool:
    """Did something fail because it asked for a size that only the data knows?"""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    while error is not None:
        if isinstance(error, GuardOnDataDependentSymNode):
            return True
        error = error.__cause__ or error.__context__
    return False


def assumptions(mode: Any) -> list[str]:
    """What was taken for granted about the sizes of a fake mode, but for what they were made with."""
    env = mode.shape_env
    deferred = [str(check.expr) for checks in env.deferred_runtime_asserts.values() for check in checks]
    found = [str(guard.expr) for guard in env.guards] + [f"{old} is {new}" for old, new in env.replacements.items()]
    return found + [text for text in deferred if not (text[:5] in ("0 <= ", "1 <= ") and text[5:].isidentifier())]


def aten_graph(function: Callable[..., Any], inputs: Any, decompositions: Any) -> tuple[Any, bool]:
    """The `fx.GraphModule` of aten operations that a function runs, below autograd; ``node.meta["val"]`` are fakes.

    The second value says whether all of them ran with gradients recorded (or without, like the function itself).
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    recording, switched = torch.is_grad_enabled(), False

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal switched
            switched |= torch.is_grad_enabled() != recording
            return func(*args, **(kwargs or {}))

    def watched(*given: Any) -> Any:
        with Watch():
            return function(*given)

    with python_dispatcher():
        return make_fx(watched, decomposition_table=decompositions)(*inputs), not switched


def decomposition_of(overload: Any) -> Callable[..., Any] | None:
    """Torch's own definition of an operation by others, or None."""
    from torch._decomp import decomposition_table

    found: Callable[..., Any] | None = decomposition_table.get(overload)
    return found


# === Process groups ==========================================================================================


def process_group_of(name: str) -> Any:
    """The ProcessGroup of this name; raises if there is none."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)  # type: ignore[arg-type]


def group_store(group: Any) -> Any:
    """The store of a ProcessGroup, with its name as prefix; raises KeyError if torch did not make the group."""
    from torch.distributed.distributed_c10d import _get_process_group_store

    return _get_process_group_store(group)


def all_to_all_of_equal_parts(send: Any, group_name: str, group_size: int) -> Any:
    """Functional all-to-all: ``send[r]`` goes to rank r. Traceable; waits before it returns.

    Args:
        send: contiguous, ``[group_size, ...]``: the splits are 1 entry each, so no size of a graph is read.
    """
    import torch
    import torch.distributed._functional_collectives

    ops = torch.ops._c10d_functional
    splits = [1] * group_size
    return ops.wait_tensor.default(ops.all_to_all_single.default(send, splits, splits, group_name))


def all_gather_of_equal_parts(part: Any, group_name: str, group_size: int) -> Any:
    """Functional all-gather: the ranks' contiguous ``part [n, ...]`` behind each other, ``[group_size * n, ...]``.
    Traceable; waits before it returns."""
    import torch
    import torch.distributed._functional_collectives

    ops = torch.ops._c10d_functional
    return ops.wait_tensor.default(ops.all_gather_into_tensor.default(part, group_size, group_name))


def reduce_scatter_sum(parts: Any, group_name: str, group_size: int) -> Any:
    """Functional reduce-scatter: this rank's ``[n, ...]`` of the sum of the ranks' contiguous
    ``parts [group_size * n, ...]``. Traceable; waits before it returns."""
    import torch
    import torch.distributed._functional_collectives

    ops = torch.ops._c10d_functional
    return ops.wait_tensor.default(ops.reduce_scatter_tensor.default(parts, "sum", group_size, group_name))


def ddp_optimizer_class() -> Any:
    """What Dynamo puts around a backend while a DistributedDataParallel module runs."""
    from torch._dynamo.backends.distributed import DDPOptimizer

    return DDPOptimizer


# === Graphs after autograd ===================================================================================


def custom_graph_pass(run: Callable[[Any], None], uuid: Callable[[], str]) -> Any:
    """A pass over Inductor's graphs; ``uuid()`` is asked at every cache lookup and becomes part of the key."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            run(graph)

        def uuid(self) -> str:
            return uuid()

    return Pass()


def custom_graph_passes(given: Any, ours: Any) -> Any:
    """``ours`` after what the user put at the same place, in these options or (``given`` is None) in the config."""
    config: Any = importlib.import_module("torch._inductor.config")
    module: Any = importlib.import_module("torch._inductor.custom_graph_pass")
    given = config.post_grad_custom_pre_pass if given is None else given
    if given is None:
        return ours
    if hasattr(module, "get_custom_graph_passes"):
        return (*module.get_custom_graph_passes(given), ours)
    if isinstance(given, module.CustomGraphPass):
        return custom_graph_pass(lambda graph: (given(graph), ours(graph))[1], lambda: (given.uuid(), ours.uuid()))  # type: ignore[arg-type, return-value]

    def both(graph: Any) -> None:  # without a uuid, so that nothing is cached, as for the user's own
        given(graph)
        ours(graph)

    return both


def suppress_guards(mode: Any) -> Any:
    """Context in which fake runs decide by the sizes at hand and leave no guard, for what is known to hold anyway."""
    env = getattr(mode, "shape_env", None)
    return contextlib.nullcontext() if env is None else env.suppress_guards()


# === Compiling outside of Dynamo =================================================================================


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


# === Audit ===================================================================================================


def in_functorch(tensor: Any) -> bool:
    """Is this a value inside ``torch.vmap`` or a transform of ``torch.func``, which has no memory of its own?"""
    import torch

    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
