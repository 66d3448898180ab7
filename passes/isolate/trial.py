"""Is a region the same for a document alone and for one that is padded to a longer one? Tried on the example's numbers.

Documents of several lengths are cut out of the example's rows. The region runs for each of them alone, and for all of
them as a batch ``[N, L]``; results at real slots, and the gradients of rows and weights, must be the same. Whatever
reads a slot behind the end, or counts slots, shows there. What a padded slot holds is one of `FILLS`: 0 for
convolutions and everything causal, -inf for largest values and softmax, inf for sorting.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from packpass._compat import fake_mode_of, hint_of
from packpass.decisions.location import location_of_node
from packpass.ops._document_plans import chunked_rows, one_batch
from packpass.ops._each_document import each_document
from packpass.semantics import example, op_name, storage
from packpass.semantics.effects import effects_of, written_inputs
from passes.isolate.build import Body
from passes.isolate.chunked import Chunked
from passes.isolate.lengths import Lengths
from passes.refused import Refused

FILLS = (0.0, -math.inf, math.inf, 1.0)
LENGTHS = (37, 300)
"""Slots of the longest document of a trial: less and more than the chunks of the usual scans."""


class Example:
    """Values of nodes of a graph, for the inputs that it is being compiled with (or made-up ones of their shapes)."""

    def __init__(self, gm: fx.GraphModule, wanted: Iterable[fx.Node]) -> None:
        self.values: dict[fx.Node, Any] = {}
        wanted = set(wanted)
        keeper = _Keeper(gm, wanted, self.values)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                keeper.run(*example_inputs(gm))
        except Exception as error:
            if wanted - self.values.keys():
                raise Refused(
                    "mixes-documents", f"the graph cannot be tried with the example: {type(error).__name__}: {error}"
                ) from error


class _Keeper(fx.Interpreter):
    def __init__(self, gm: fx.GraphModule, wanted: set[fx.Node], values: dict[fx.Node, Any]) -> None:
        super().__init__(gm)
        self.wanted, self.kept = wanted, values
        self.filled: dict[fx.Node, Tensor] = {}
        """Wanted values in memory that is written later on."""
        self.written = {storage(target) for node in gm.graph.nodes for target in written_inputs(node)} - {None}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n in self.wanted:
            self.kept[n] = value.detach().clone() if isinstance(value, Tensor) else value
            if isinstance(value, Tensor) and storage(n) in self.written:
                self.filled[n] = value
        memories = {storage(target) for target in written_inputs(n)} if self.filled else set()
        for node, filled in self.filled.items():
            if storage(node) in memories:
                self.kept[node] = filled.detach().clone()
        return value


def example_inputs(gm: fx.GraphModule) -> list[Any]:
    """Copies of the inputs of the call that is being compiled."""
    return [_input(node) for node in gm.graph.nodes if node.op == "placeholder"]


def _input(node: fx.Node) -> Any:
    value = example(node)
    if isinstance(value, torch.SymInt):
        return hint_of(value)
    if not isinstance(value, Tensor):
        return value
    real = getattr(node.meta.get("grapharg"), "example", None)
    if isinstance(real, Tensor) and fake_mode_of(real) is None and real.shape == _shape(value):
        return real.detach().clone()
    made = torch.zeros(_shape(value), dtype=value.dtype, device=value.device)
    return made.normal_() if value.dtype.is_floating_point else made


def _shape(value: Tensor) -> torch.Size:
    return torch.Size([size if isinstance(size, int) else (hint_of(size) or 2) for size in value.shape])


def fill_of(body: Body, values: dict[fx.Node, Any], lengths: Lengths, fills: Sequence[float] = FILLS) -> float:
    """What slots behind a document's end hold. Raises `Refused` if nothing makes the region stop there."""
    for node in body.region.nodes:
        if effects_of(node).random:
            raise Refused("mixes-documents", f"{op_name(node)} draws random numbers while tokens are mixed", node)
    floats = any(example(n).dtype.is_floating_point for n in body.region.entries)
    reason = ""
    for fill in fills if floats else fills[:1]:
        reason = _difference(body, values, lengths, fill)
        if not reason:
            return fill
    names = ", ".join(f"{op_name(n)} at {location_of_node(n) or '?'}" for n in body.region.mixing[:6])
    raise Refused(
        "mixes-documents",
        f"a document cannot be padded here without changing it ({reason}): {names}; stop at documents in the model's "
        "own code (a loop over cu_seqlens, which packpass makes one call), or give it one document per row",
        body.region.mixing[0] if body.region.mixing else None,
    )


def _difference(body: Body, values: dict[fx.Node, Any], lengths: Lengths, fill: float) -> str:
    """What differs between documents alone and padded ones; empty if nothing does."""
    device = example(body.region.entries[0]).device.type
    plain = None if body.plain is None else _widened(body.plain)
    wide = dataclasses.replace(body, function=_widened(body.function), plain=plain)
    values = {n: _wide(x) for n, x in values.items()}
    try:
        with torch.autocast(device, enabled=False):
            if lengths.constant:
                return _of_one_length(wide, values, lengths, fill)
            tried = dict.fromkeys(lengths.trial(n) for n in LENGTHS)
            if not any(lengths.fits(m) for n in tried for m in _tried(n)):
                return "the code is good for no length that is tried"
            reason = next(filter(None, (_compare(wide, values, n, fill, lengths.fits) for n in tried)), "")
            shortest = next(n for n in tried if any(lengths.fits(m) for m in _tried(n)))
            moved = (_results_elsewhere(wide, values, shortest, fill, lengths.fits, sign) for sign in (-1.0, 1.0))
            return reason or next(filter(None, moved), "")
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


_HALF = (torch.float16, torch.bfloat16)


def _widened(function: fx.GraphModule) -> fx.GraphModule:
    """The same in single precision: what is tried is the code, and halves would hide how little it lets through."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(function.graph, {}))
    for node in graph.nodes:
        node.args, node.kwargs = _wide(node.args), _wide(node.kwargs)
    return fx.GraphModule(function, graph)


def _wide(x: Any) -> Any:
    """float32 for halves, in numbers and in arguments."""
    if isinstance(x, Tensor):
        return x.float() if x.dtype in _HALF else x
    if isinstance(x, dict):
        return {key: _wide(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)) and not isinstance(x, torch.Size):
        return type(x)(_wide(item) for item in x)
    return torch.float32 if isinstance(x, torch.dtype) and x in _HALF else x


def _of_one_length(body: Body, values: dict[fx.Node, Any], lengths: Lengths, fill: float) -> str:
    """As `_difference`, for code that torch has traced for one length: it may run for others all the same."""

    def difference(fits: Callable[[int], bool]) -> str:
        reason = _compare(body, values, lengths.example, fill, fits)
        moved = (_results_elsewhere(body, values, lengths.example, fill, fits, sign) for sign in (-1.0, 1.0))
        return reason or next(filter(None, moved), "")

    reason = difference(lengths.fits)
    if not reason:
        return ""
    try:
        return difference(lambda number: True)
    except Exception:  # sizes are constants of the code
        return reason


def differs_in_chunks(
    body: Body, chunked: Chunked, same_as: Sequence[int], values: dict[fx.Node, Any], fill: float
) -> str:
    """What differs between a batch of documents and rows of chunks with several of them each; empty if nothing does."""
    count, slots = chunked.count, chunked.slots
    lengths = [slots + 1, 1, slots, 3, count * slots - 1, 2 * slots - 1, slots - 1, 2]
    ends = list(itertools.accumulate(lengths))
    documents = [(end - n, n) for end, n in zip(ends, lengths, strict=True)]
    device = example(body.region.entries[0]).device
    plans = (
        one_batch(documents, ends[-1], device, lambda longest, total: count * slots, slots),
        chunked_rows(documents, ends[-1], device, count, slots),
    )
    found = []
    try:
        with torch.autocast(device.type, enabled=False):
            for function, plan in zip((body.function, chunked.function), plans, strict=True):
                rows = [
                    _leaf(_window(_wide(values[n]), dim, 0, ends[-1]), example(n))
                    for n, dim in zip(body.region.entries, body.given, strict=True)
                ]
                others = [_weight(_wide(values[n]), example(n)) for n in body.others]
                others = [others[first] for first in same_as]
                results = each_document(
                    _widened(function), body.given, body.fills(fill), body.returned, (plan,), *rows, *others
                )
                found.append([*(x.detach() for x in results), *itertools.chain(*_gradients(results, rows, others))])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    same = all(_same(x, y) for x, y in zip(*found, strict=True))
    return "" if same else "a document changes with what lies in front of it"


def _tried(longest: int) -> list[int]:
    """Slots of the documents of one trial."""
    return sorted({longest, longest - 1, longest // 2, 3, 1} & set(range(1, longest + 1)), reverse=True)


def _compare(
    body: Body,
    values: dict[fx.Node, Any],
    longest: int,
    fill: float,
    fits: Callable[[int], bool],
    roughly: bool = False,
) -> str:
    """A document of a length that the code is good for (``fits``) is tried by itself, another one as the start of a
    longer one. ``roughly``: look at results alone, and only for what cannot be rounding."""
    lengths = _tried(longest)
    others = [_weight(values[n], example(n)) for n in body.others]
    fills = body.fills(fill)
    wholes = [
        [_window(values[n], dim, 7 * i, longest) for n, dim in zip(body.region.entries, body.given, strict=True)]
        for i in range(len(lengths))
    ]
    want, want_grads = [], []
    for n, whole in zip(lengths, wholes, strict=True):
        given = [_leaf(x.narrow(d, 0, n) if fits(n) else x, x) for x, d in zip(whole, body.given, strict=True)]
        results = (body.plain or body.function).forward(*given, *others)
        results = [x.narrow(d, 0, n) for x, d in zip(results, body.returned, strict=True)]
        want.append([x.detach() for x in results])
        grads = _gradients(results, given, others)
        want_grads.append(([g.narrow(d, 0, n) for g, d in zip(grads[0], body.given, strict=True)], grads[1]))
    padded = [
        torch.stack([_padded(whole[k], d, n, fills[k]) for n, whole in zip(lengths, wholes, strict=True)])
        for k, d in enumerate(body.given)
    ]
    leaves = [_leaf(x, x) for x in padded]
    in_dims: tuple[int | None, ...] = (0,) * len(leaves) + (None,) * len(others)
    counts = []
    if body.plain is not None:
        counts, in_dims = [torch.tensor(lengths, device=padded[0].device)], (*in_dims, 0)
    batch = torch.func.vmap(body.function.forward, in_dims=in_dims)(*leaves, *others, *counts)
    cut = [[x[i].narrow(d, 0, n) for x, d in zip(batch, body.returned, strict=True)] for i, n in enumerate(lengths)]
    for n, a, b in zip(lengths, want, cut, strict=True):
        if not all((_roughly_same if roughly else _same)(x, y) for x, y in zip(a, b, strict=True)):
            return f"its first {n} slots change with what follows"
    if roughly:
        return ""
    row_grads, other_grads = _gradients([x for results in cut for x in results], leaves, others)
    # Where attention is nearly certain a gradient is small, and its rounding that of what it is the difference of.
    largest = max(
        (float(g.abs().amax()) for grads, _ in want_grads for g in grads if g.is_floating_point() and g.numel()),
        default=0.0,
    )
    for i, n in enumerate(lengths):
        got = [g[i].narrow(d, 0, n) for g, d in zip(row_grads, body.given, strict=True)]
        if not all(_same(x, y, largest) for x, y in zip(want_grads[i][0], got, strict=True)):
            return "gradients change with what follows"
    for k, g in enumerate(other_grads):
        if not _same(sum((grads[1][k] for grads in want_grads), torch.zeros_like(g)), g):
            return "gradients of weights change with what follows"
    return ""


def _results_elsewhere(
    body: Body, values: dict[fx.Node, Any], longest: int, fill: float, fits: Callable[[int], bool], sign: float
) -> str:
    """As `_compare`, results alone and roughly, of numbers that are all below the example's, or all above: among these
    no value behind the end is neither the largest nor the smallest by chance."""
    moved = dict(values)
    for n in body.region.entries:
        if example(n).dtype.is_floating_point and values[n].numel():
            moved[n] = values[n] + sign * (1 + 2 * values[n].abs().nan_to_num(0.0, posinf=0.0, neginf=0.0).amax())
    return _compare(body, moved, longest, fill, fits, roughly=True)


def _window(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """So many slots of a row from one on, around its end."""
    places = torch.arange(length, device=x.device) + start
    row = x.index_select(dim, places % x.shape[dim])
    if not x.dtype.is_floating_point:
        return row
    # No number twice where the row goes on from its start (equal numbers may be ordered in any way): each round has
    # factors of its own.
    rounds = (places // x.shape[dim]).view([-1, *[1] * (x.dim() - 1 - dim)])
    noise = torch.rand(row.shape, generator=torch.Generator().manual_seed(start), dtype=torch.float32).to(row.device)
    return row * (1 + 1e-2 * (rounds + 0.5 * noise) / (rounds.max() + 1)).to(row.dtype)


def _padded(x: Tensor, dim: int, length: int, fill: float) -> Tensor:
    out = x.clone()
    rest = x.shape[dim] - length
    if rest:
        out.narrow(dim, length, rest).fill_(fill)
    return out


def _leaf(x: Any, like: Any) -> Any:
    """A value to take gradients of."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().clone().requires_grad_(x.dtype.is_floating_point)


def _weight(x: Any, like: Any) -> Any:
    """A value without tokens, to take gradients of if anybody does: nobody asks for those of a mask."""
    return _leaf(x, like) if isinstance(like, Tensor) and like.requires_grad else x


def _gradients(
    results: Sequence[Tensor], rows: Sequence[Tensor], others: Sequence[Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Of a number made of all slots, each with a weight of its own."""
    weights = [others_i for others_i in others if isinstance(others_i, Tensor) and others_i.requires_grad]
    leaves = [*[x for x in rows if x.requires_grad], *weights]
    terms = [x for x in results if x.requires_grad]
    if not terms or not leaves:
        return [torch.zeros_like(x) for x in rows], [torch.zeros_like(x) for x in weights]
    total = torch.stack(
        [(x * torch.sin(torch.arange(x.numel(), device=x.device) + 1.0).view(x.shape)).sum().double() for x in terms]
    ).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    grads = iter([g if g is not None else torch.zeros_like(x) for g, x in zip(found, leaves, strict=True)])
    of_rows = [next(grads) if x.requires_grad else torch.zeros_like(x) for x in rows]
    return of_rows, list(grads)


def _roughly_same(a: Tensor, b: Tensor) -> bool:
    """Are two values the same wherever both are numbers?"""
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    both = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[both].detach(), b[both].detach()
    return not a.numel() or bool((a - b).abs().max() <= 2e-2 * (1e-3 + a.abs().max()))


def _same(a: Tensor, b: Tensor, beside: float = 0.0) -> bool:
    """Equal but for rounding, of numbers of their own size, or of those that stand beside them."""
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return bool(torch.equal(torch.isfinite(a), torch.isfinite(b)) and torch.equal(a.nan_to_num(), b.nan_to_num()))
    bound = {torch.float64: 1e-8, torch.float32: 1e-4}.get(a.dtype, 3e-2)
    return a.numel() == 0 or bool((a - b).abs().max() <= bound * (1e-3 + max(float(a.abs().max()), beside)))
