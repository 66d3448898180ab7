"""Operations on what each document has one of, for all documents at once: ``torch.linalg.inv(x[s:e].T @ x[s:e])``.

What has no rule is left to ``torch.vmap``, which knows what most operations do to every sample of a batch. Only what it
knows by rules of its own: what it would run sample by sample, random numbers and what depends on data are refused.

The entry behind the last document, which belongs to none, repeats the first one: an operation may refuse zeros.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import vmap_by_rules_alone, with_any_batch
from packpass.semantics import example, is_tensor, storage
from packpass.semantics.effects import effects_of
from packpass.semantics.names import name_of_target
from passes.document_loops.documents import as_term, document, document_view
from passes.document_loops.integers import EVERY
from passes.document_loops.machine import Document, Machine, Slot, frozen_args
from passes.document_loops.rules import only_documented
from passes.document_loops.terms import Apply, Outside


@dataclasses.dataclass(frozen=True)
class OfEach:
    """``target`` for every entry of the operands with a 0 in ``dims``, of as many documents and one entry behind."""

    target: Any
    method: bool
    dims: tuple[int | None, ...]

    @property
    def __name__(self) -> str:
        return f"{self.target if self.method else name_of_target(self.target)}_of_each"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rows = [torch.cat([arg[:-1], arg[:1]]) if dim == 0 else arg for arg, dim in zip(args, self.dims, strict=True)]
        return self.run(rows, kwargs)

    def run(self, rows: list[Any], kwargs: dict[str, Any]) -> Any:
        """The results for a batch."""

        def one(*operands: Any) -> Any:
            first, *rest = operands
            return getattr(first, self.target)(*rest, **kwargs) if self.method else self.target(*operands, **kwargs)

        return torch.vmap(one, in_dims=self.dims)(*rows)


def batched(machine: Machine, node: fx.Node) -> Any:
    """The value of such a call, or one for each result; NotImplemented for any other."""
    if node.op not in ("call_function", "call_method") or not effects_of(node).repeatable:
        return NotImplemented
    values = [machine.value(arg) if isinstance(arg, fx.Node) else None for arg in node.args]
    operands = [arg for arg in node.args if isinstance(arg, fx.Node)]
    if set(operands) != set(node.all_input_nodes) or machine.reach != EVERY or machine.skips_empty:
        return NotImplemented
    if not all(isinstance(machine.value(arg), (Document, Slot, Outside)) for arg in operands):
        return NotImplemented
    dims = tuple(0 if isinstance(value, (Document, Slot)) else None for value in values)
    target = OfEach(node.target, node.op == "call_method", dims)
    if 0 not in dims or _reads_bytes(node) or not _is_known(target, node):
        return NotImplemented
    only_documented(node)
    given = [
        as_term(machine, arg, node) if dim == 0 else (value if isinstance(value, Outside) else frozen_args(arg))  # type: ignore[arg-type]
        for arg, value, dim in zip(node.args, values, dims, strict=True)
    ]
    kwargs = tuple(sorted((name, frozen_args(value)) for name, value in node.kwargs.items()))
    whole = machine.intern(Apply(target, False, tuple(given), kwargs, 0))
    if not isinstance(example(node), torch.Tensor):
        results = range(len(example(node)))
        return tuple(document(machine, Apply(operator.getitem, False, (whole, i), (), 0)) for i in results)
    shared = _sharing(node)
    seen = next((machine.value(arg) for arg in shared if isinstance(machine.value(arg), (Document, Slot))), None)
    return document(machine, whole) if seen is None else document_view(machine, whole, seen)


def _sharing(node: fx.Node) -> list[fx.Node]:
    """The operands of which a result may be a view."""
    return [arg for arg in node.all_input_nodes if is_tensor(arg) and storage(arg) == storage(node)]


def _reads_bytes(node: fx.Node) -> bool:
    """Does a view take numbers for numbers of another kind? Their last bits depend on the order of a sum."""
    made: Any = example(node)
    return isinstance(made, torch.Tensor) and any(example(arg).dtype != made.dtype for arg in _sharing(node))


def _is_known(target: OfEach, node: fx.Node) -> bool:
    """Does vmap give, by its rules, what the call gives for one document, and of known sizes, whatever their number?"""
    wanted = _tensors(example(node))
    if wanted is None or not all(isinstance(size, int) for fake in wanted for size in fake.shape):
        return False
    operands = [example(arg) if isinstance(arg, fx.Node) else arg for arg in node.args]
    sizes = [size for fake in operands if isinstance(fake, torch.Tensor) for size in fake.shape]
    if not all(isinstance(size, int) for size in sizes):
        return False
    try:
        with torch.no_grad(), vmap_by_rules_alone():
            many = [dim == 0 for dim in target.dims]
            made = _tensors(with_any_batch(lambda rows: target.run(rows, dict(node.kwargs)), operands, many))
    except Exception:  # whatever vmap, or the operation in it, says
        return False
    return made is not None and len(made) == len(wanted) and all(map(_is_batch, made, wanted))


def _tensors(results: Any) -> list[torch.Tensor] | None:
    """The results of a call; None if there are others than tensors."""
    found = list(results) if isinstance(results, (tuple, list)) else [results]
    return found if found and all(isinstance(fake, torch.Tensor) for fake in found) else None


def _is_batch(many: torch.Tensor, one: torch.Tensor) -> bool:
    """Is a result as that of one document, with an unknown number in front?"""
    sizes = many.dim() == one.dim() + 1 and isinstance(many.shape[0], torch.SymInt) and many.shape[1:] == one.shape
    return sizes and many.dtype == one.dtype
