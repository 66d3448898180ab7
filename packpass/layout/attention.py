"""Calls of variable-length attention: what takes packed queries, keys, values and an argument named like boundaries.

Such calls are not ours, and their names are many; the names of what they take are few. Less than all of it (rotary
embeddings take ``q`` and ``cu_seqlens``) may be anything and proves nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import example

_INDEX = (torch.int32, torch.int64)
_CU_ARGUMENTS = ("cu_seq_q", "cu_seqlens_q", "cu_seq_lens_q", "cu_seqlens", "cum_seq_q")
_OTHER_CU_ARGUMENTS = ("cu_seq_k", "cu_seqlens_k", "cu_seq_lens_k", "cum_seq_k", "cu_seqlens_kv")


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """Packed queries ``[T, H, D]`` (or ``[1, T, H, D]``) and their boundaries; ``dim`` is the packed dimension.

    ``other_boundaries``: those of the keys, None if they are the same argument.
    """

    query: fx.Node
    keys: tuple[fx.Node, ...]
    boundaries: fx.Node
    other_boundaries: fx.Node | None
    dim: int


def attention(node: fx.Node) -> AttentionCall | None:
    """The parts of a call with arguments that are named like queries, keys, values and boundaries of the queries."""
    if node.op != "call_function":
        return None
    arguments = named_arguments(node)
    cu = next((arguments[n] for n in _CU_ARGUMENTS if isinstance(arguments.get(n), fx.Node)), None)
    q, k, v = (
        next((arguments[n] for n in names if isinstance(arguments.get(n), fx.Node)), None)
        for names in (("q", "query", "qkv"), ("k", "key", "kv", "qkv"), ("v", "value", "kv", "qkv"))
    )
    if cu is None or q is None or k is None or v is None:
        return None
    value = example(q)
    if not isinstance(value, torch.Tensor) or not is_boundaries(example(cu)):
        return None
    dim = 0 if value.dim() == 3 else 1 if value.dim() == 4 and value.shape[0] == 1 else None
    if dim is None:
        return None
    others = next((arguments[n] for n in _OTHER_CU_ARGUMENTS if isinstance(arguments.get(n), fx.Node)), None)
    keys = tuple(n for n in (k, v) if n is not q and _rank(n) == value.dim())
    return AttentionCall(q, keys, cu, others, dim)


def is_boundaries(value: Any) -> bool:
    """Can this be boundaries?"""
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in _INDEX


def _rank(node: fx.Node) -> int | None:
    value = example(node)
    return value.dim() if isinstance(value, torch.Tensor) else None


def parameter_names(node: fx.Node) -> list[str]:
    """Names of the parameters of a call, in order, as far as they are known."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return [a.name for a in target._schema.arguments]
    code = getattr(target, "__code__", None)
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) if code is not None else []


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by the names of its parameters, as far as those are known."""
    return {**dict(zip(parameter_names(node), node.args, strict=False)), **node.kwargs}
