"""Where the documents of a call begin and end.

In this order: boundaries that the auditor was given; those that the code declares (`packpass.packed`) or hands to an
attention call; arguments with well-known names for boundaries; positions that restart, or numbers of documents, among
the arguments; a mask of padding, or rows of a batch, which are documents then. The first three are the sources of
`packpass.layout`, read from the calls that are made rather than from a graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from packpass.layout.arguments import boundary_arguments
from packpass.layout.sources import PADDED_NAMES, in_graph
from packpass.leaks.records import NothingToCompare
from packpass.probing.documents import Documents, from_boundaries
from packpass.probing.tokens import Input, is_mask, name_has, numbers_documents, restarting

GIVE = (
    "give them: packpass.audit(model, cu_seqlens=boundaries)(...), with boundaries [0, end of document 0, ..., T]; or "
    "call the model with an argument called cu_seqlens, or declare the row with packpass.packed(x, cu_seqlens)"
)


class NoDocuments(NothingToCompare):
    """There is nothing to tell documents apart by, or it fits nothing."""


def given(cu_seqlens: Any, inputs: list[Input]) -> Documents:
    """Documents of boundaries that the caller of the audit gave."""
    cu = torch.as_tensor(cu_seqlens)
    if cu.dim() != 1 or cu.dtype not in (torch.int32, torch.int64) or len(cu) < 2:
        raise NoDocuments(
            f"cu_seqlens must be at least two integers in one dimension, got {cu.dtype} of shape {tuple(cu.shape)}"
        )
    return _documents(cu.cpu(), None, inputs, "cu_seqlens")


def found(
    model: Any, call: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Input]
) -> Documents:
    """Documents by what the call itself says. ``call`` runs the model once."""
    told = _Told()
    with told:
        call()
    for kind in ("declared", "loop", "attention"):
        here = [t for t in told.found if t[0] == kind]
        if here:
            (_, where, cu, padded, total) = here[0]
            if any(not torch.equal(cu, other[2]) for other in here):
                raise NoDocuments(
                    f"the code uses several boundaries ({', '.join(dict.fromkeys(t[1] for t in here))}); {GIVE}"
                )
            return _of_total(cu, padded, total, inputs, where)
    named = list(boundary_arguments(_bound(model, args, kwargs)))
    padded_by_name = [a.value for a in named if a.name in PADDED_NAMES]
    named = [a for a in named if a.name not in PADDED_NAMES]
    if named:
        cu = named[0].value
        if any(a.value.shape != cu.shape or not torch.equal(a.value, cu) for a in named):
            raise NoDocuments(f"several arguments could be the boundaries: {', '.join(a.name for a in named)}; {GIVE}")
        if cu.dim() == 1 and cu.dtype in (torch.int32, torch.int64):
            padded = padded_by_name[0].cpu() if len(padded_by_name) == 1 else None
            return _documents(cu.cpu(), padded, inputs, f"argument {named[0].name}")
    by_values = _by_values(inputs) or _by_rows(inputs)
    if by_values is None:
        raise NoDocuments(f"packpass.audit found no boundaries of documents in this call; {GIVE}")
    return by_values


def _bound(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the model's parameters."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        bound = inspect.signature(target).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return dict(kwargs)
    values = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            values.update(values.pop(name, {}))
    return values


# === Boundaries ==============================================================================================


def _documents(cu: torch.Tensor, padded: torch.Tensor | None, inputs: list[Input], source: str) -> Documents:
    end = int((cu if padded is None else padded)[-1])
    if bool((cu[1:] < cu[:-1]).any()) or int(cu[0]) < 0:
        raise NoDocuments(f"{source} = {cu.tolist()} is no list of boundaries: they must not decrease; {GIVE}")
    shapes = [tuple(i.value.shape) for i in inputs]
    flattened = [s[:2] for s in shapes if len(s) >= 2 and s[0] > 1 and s[1] > 1 and s[0] * s[1] == end]
    sizes = {size for shape in shapes for size in shape}
    if end not in sizes and flattened:
        return Documents(from_boundaries(cu, end, padded).reshape(flattened[0]), source)
    if end not in sizes:
        longer = sorted({s for i in inputs for s in _row_lengths(i.value) if s > end})
        if len(longer) != 1:
            fits = ", ".join(f"{i.name} {tuple(i.value.shape)}" for i in inputs) or "no tensor at all"
            raise NoDocuments(
                f"{source} ends at {end}, which is the length of no argument's dimension ({fits}); give boundaries "
                "whose last entry is the number of tokens of the row"
            )
        end = longer[0]
    return Documents(from_boundaries(cu, end, padded), source)


def _of_total(cu: torch.Tensor, padded: torch.Tensor | None, total: int, inputs: list[Input], source: str) -> Documents:
    last = int((cu if padded is None else padded)[-1])
    if last > total:
        raise NoDocuments(f"{source}: boundaries end at {last}, behind the row of {total} slots")
    rows = [tuple(i.value.shape[:2]) for i in inputs if i.value.dim() >= 2 and i.value.shape[0] > 1]
    labels = from_boundaries(cu, total, padded)
    flattened = [shape for shape in rows if shape[0] * shape[1] == total]
    return Documents(labels.reshape(flattened[0]) if flattened else labels, source)


def _row_lengths(value: torch.Tensor) -> Iterator[int]:
    """Sizes of the dimensions that tokens may lie along."""
    if value.is_floating_point():
        yield from value.shape[: max(1, value.dim() - 1)]
    elif value.dim() in (1, 2):
        yield value.shape[-1]


# === Other arguments =========================================================================================


def _by_values(inputs: list[Input]) -> Documents | None:
    """Positions that restart, or numbers of documents."""
    for entry in inputs:
        value = entry.value
        if value.is_floating_point() or value.dim() not in (1, 2) or value.numel() < 2:
            continue
        rows = value.reshape(-1, value.shape[-1]).cpu()
        starts = None
        if name_has(entry.name, "position", "pos_ids") and restarting(rows):
            starts = rows == 0
        elif numbers_documents(entry):
            starts = torch.ones_like(rows, dtype=torch.bool)
            starts[:, 1:] = rows[:, 1:] != rows[:, :-1]
        if starts is None or int(starts.sum()) <= len(rows):
            continue
        starts[:, 0] = True
        labels = starts.flatten().long().cumsum(0).reshape(rows.shape)
        padding = _padding(inputs, tuple(rows.shape))
        labels = labels if padding is None else labels.masked_fill(padding, 0)
        return Documents(labels[0] if len(labels) == 1 else labels, f"argument {entry.name}")
    return None


def _padding(inputs: list[Input], shape: tuple[int, ...]) -> torch.Tensor | None:
    """Slots that a mask of this shape calls padding."""
    for entry in inputs:
        if tuple(entry.value.shape) == shape and is_mask(entry):
            mask = entry.value.cpu() != 0
            return mask if name_has(entry.name, "padding") and "key_padding" in entry.name else ~mask
    return None


def _by_rows(inputs: list[Input]) -> Documents | None:
    """A batch: every row is a document, without its padding."""
    shapes = [tuple(i.value.shape) for i in inputs if is_mask(i) and i.value.dim() == 2]
    shapes += [tuple(i.value.shape) for i in inputs if i.value.dim() == 2 and not i.value.is_floating_point()]
    shapes += [tuple(i.value.shape[:2]) for i in inputs if i.value.dim() == 3]
    for rows, width in shapes:
        padding = _padding(inputs, (rows, width))
        if rows < 2 and (padding is None or not bool(padding.any())):
            continue
        labels = torch.arange(1, rows + 1)[:, None].expand(rows, width)
        labels = labels.clone() if padding is None else labels.masked_fill(padding, 0)
        source = "rows of the batch" + ("" if padding is None else ", mask of padding")
        return Documents(labels[0] if rows == 1 else labels, source)
    return None


# === What the code says while it runs ========================================================================


class _Told(TorchFunctionMode):
    """Collects the boundaries that calls are given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, torch.Tensor, torch.Tensor | None, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._look(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        target = getattr(func, "default", func) if isinstance(func, torch._ops.OpOverloadPacket) else func
        if not isinstance(target, torch._ops.OpOverload) and not hasattr(target, "__code__"):
            return  # the sources know the arguments of a call by their names
        graph = fx.Graph()

        def node_of(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            node = graph.placeholder(f"t{len(graph.nodes)}")
            node.meta["example_value"] = tensor
            return node

        try:
            call = graph.call_function(
                target, tuple(map(node_of, args)), {key: node_of(value) for key, value in kwargs.items()}
            )
        except Exception:  # an argument that no graph can hold is no boundaries
            return
        for axis, packing in in_graph(call):
            cu = packing.boundaries.meta["example_value"].cpu()
            padded = packing.padded.meta["example_value"].cpu() if packing.padded is not None else None
            total = axis.node.meta["example_value"].shape[axis.dim]
            self.found.append((packing.kind, packing.text, cu, padded, total))
