"""Inductor: its tables of decompositions and lowerings, its passes, the code that it generates."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger("packpass.compat")


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


def register_inductor_pointwise(op: Any, sizes: Callable[..., list[Any]], value: Callable[..., Any]) -> None:
    """Let Inductor fuse ``op(x, ...)`` into what reads it; the result has the dtype and the device of x.

    Args:
        sizes: ``sizes(*arguments)``: of the result, with sympy expressions; tensors are given as their sizes.
        value: one value: ``value(ops, index, *arguments)``; tensors are given as functions of an index.
    """
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering
    from torch._inductor.virtualized import ops

    def lower(x: Any, *others: Any) -> Any:
        given = (x, *others)
        ranges = sizes(*(g.get_size() if isinstance(g, ir.IRNode) else g for g in given))
        arguments = [g.make_loader() if isinstance(g, ir.IRNode) else g for g in given]
        return ir.Pointwise.create(
            device=x.get_device(), dtype=x.get_dtype(), inner_fn=lambda at: value(ops, at, *arguments), ranges=ranges
        )

    register_lowering(op, type_promotion_kind=None)(lower)


def register_inductor_buffer(op: Any) -> None:
    """Let Inductor compute the argument of ``op(x)`` into a buffer, which readers load instead of computing it anew."""
    from torch._inductor.lowering import register_lowering

    def lower(x: Any) -> Any:
        x.realize()
        return x

    register_lowering(op, type_promotion_kind=None)(lower)


def register_inductor_entries(op: Any) -> None:
    """Let Inductor read ``op(numbers, places)``, entries of a vector by their numbers, without code that looks whether
    a number is negative or beyond the end: what is, reads the first or the last entry."""
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering
    from torch._inductor.virtualized import ops

    def lower(numbers: Any, places: Any) -> Any:
        numbers.realize()
        size, load, place = numbers.get_size()[0], numbers.make_loader(), places.make_loader()

        def entry(at: Any) -> Any:
            least, most = ops.constant(0, torch.int64), ops.index_expr(size - 1, torch.int64)
            found = ops.minimum(ops.maximum(place(at), least), most)
            return load([ops.indirect_indexing(found, size, check=False, wrap_neg=False)])

        device, dtype = numbers.get_device(), numbers.get_dtype()
        return ir.Pointwise.create(device=device, dtype=dtype, inner_fn=entry, ranges=places.get_size())

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
