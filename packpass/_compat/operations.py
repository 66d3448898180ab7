"""Operations: their names, what takes them apart, and those that have no public spelling."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


def registered_ops(namespace: str) -> list[str]:
    """Names of the ops that are registered in a torch library, sorted."""
    import torch

    prefix = f"{namespace}::"
    return sorted({n.split(".")[0] for n in torch._C._dispatch_get_all_op_names() if n.startswith(prefix)})


def native_pad() -> Any:
    """The builtin that ``torch.nn.functional.pad`` becomes in a Dynamo graph."""
    import torch

    return torch._C._nn.pad


def assert_async(condition: Any, message: str) -> None:
    """Assert that a 0-d bool tensor is True without waiting for its device; on the CPU raises RuntimeError at once."""
    import torch

    torch.ops.aten._assert_async.msg(condition, message)


def in_functorch(tensor: Any) -> bool:
    """Is this a value inside ``torch.vmap`` or a transform of ``torch.func``, which has no memory of its own?"""
    import torch

    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


@contextlib.contextmanager
def vmap_by_rules_alone() -> Iterator[None]:
    """Inside, ``torch.vmap`` raises RuntimeError for an op that it would run sample by sample."""
    import torch

    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def transforms_open() -> int:
    """How many transforms of ``torch.func`` (and ``torch.vmap``) the calls that run now are inside of."""
    import torch

    depth = getattr(torch._C._functorch, "get_dynamic_layer_stack_depth", None)
    return int(depth()) if depth is not None else 0


@contextlib.contextmanager
def transforms_closed() -> Iterator[None]:
    """What is opened inside and not closed, because an error came between, is closed at the end: everything that runs
    later would be inside of it, and a gradient taken there is one of nothing."""
    import torch

    before = transforms_open()
    try:
        yield
    finally:
        if transforms_open() > before:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(before)


def qualified_name(target: Any) -> tuple[str, str]:
    """``(namespace, name)`` of an op, overload or packet of overloads; empty strings for anything else."""
    name = getattr(target, "_qualified_op_name", None) or getattr(getattr(target, "_schema", None), "name", "")
    namespace, _, op = name.partition("::") if isinstance(name, str) else ("", "", "")
    return namespace, op


_OWN_COLLECTIVES = (
    "all_to_all_group", "cp_to_hp", "hp_to_cp", "host_cp_to_hp", "host_hp_to_cp", "cp_packed_roll",
    "host_cp_packed_roll", "cp_unpartition", "cp_sum_partition",
)  # fmt: skip


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
