"""What each op that moves data does to blocks: one small function per op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from packpass._registry import registrar
from packpass.semantics import argument, example
from packpass.semantics.views import TRANSPOSING, permutation_of
from passes.fuse_all_to_all import blocks as B
from passes.fuse_all_to_all.blocks import Blocks, NotMovement, Size
from passes.fuse_all_to_all.spelled_out import numbers_of

if TYPE_CHECKING:
    from passes.fuse_all_to_all.body import Body

Move = Callable[["Body", fx.Node, Blocks], Any]
MOVES: dict[str, Move] = {}
"""Op name -> its result for a first argument that is known; None if this call of it is not understood."""


move = registrar(MOVES)
"""Registers an op under its plain names."""


def index(body: Body, node: fx.Node, value: Blocks, entries: Sequence[Any]) -> Blocks:
    """Indexing of ``node`` by integers, slices and None, one entry per dimension."""
    d = 0
    for entry in entries:
        if entry is None:
            value = B.unsqueeze(value, d)
        elif isinstance(entry, slice):
            value = _slice(body, value, d, entry)
        elif type(entry) is int:
            value = B.select(value, d, entry)
            continue
        elif len(entries) - sum(isinstance(e, slice) for e in entries) == 1 and (
            numbers := numbers_of(body, entry, node)
        ):
            if B.outer(value, d)[1]:
                raise NotMovement("single tokens of a chunk")
            value = B.take(value, d, _in_range(numbers, B.outer(value, d)[0]))
        else:
            raise NotMovement("an index that is not a constant")
        d += 1
    return value


def entries_of(entries: Any, rank: int) -> list[Any]:
    """An index of a tensor with so many dimensions, one entry for each."""
    given: list[Any] = list(entries) if isinstance(entries, tuple) else [entries]
    if Ellipsis in given:
        at = given.index(Ellipsis)
        known = sum(e is not None for e in given) - 1
        given[at : at + 1] = [slice(None)] * (rank - known)
    return given + [slice(None)] * (rank - sum(e is not None for e in given))


def _slice(body: Body, value: Blocks, d: int, entry: slice) -> Blocks:
    if entry == slice(None):
        return value
    if not B.outer(value, d)[1]:
        if not all(p is None or type(p) is int for p in (entry.start, entry.stop, entry.step)):
            raise NotMovement("a slice that is not constant")
        return B.take(value, d, entry)
    whole = B.size_of(value.dims[d])
    if entry.step not in (None, 1):
        raise NotMovement("a slice with a step over tokens")
    start = Size(0) if entry.start in (None, 0) else body.size(entry.start)
    stop = whole if entry.stop is None else body.size(entry.stop)
    if stop.atoms != whole.atoms or (start.count and start.atoms != whole.atoms) or stop.count > whole.count:
        raise NotMovement("a part that does not consist of whole chunks")
    return B.pieces(value, d, start, Size(stop.count - start.count, whole.atoms))


@move("getitem")
def _getitem(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    return index(body, node, value, entries_of(node.args[1], value.rank))


@move("narrow")
def _narrow(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    d = argument(node, 1, "dim") % value.rank
    return B.pieces(value, d, body.size(argument(node, 2, "start")), body.size(argument(node, 3, "length")))


@move("select")
def _select(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    return B.select(value, argument(node, 1, "dim") % value.rank, argument(node, 2, "index"))


@move("index_select")
def _index_select(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    d, numbers = argument(node, 1, "dim") % value.rank, numbers_of(body, argument(node, 2, "index"), node)
    if numbers is None or B.outer(value, d)[1]:
        raise NotMovement("an index that is not a constant")
    return B.take(value, d, _in_range(numbers, B.outer(value, d)[0]))


@move("flip")
def _flip(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    given: Any = argument(node, 1, "dims")
    for d in given if isinstance(given, (tuple, list)) else [given, *node.args[2:]]:
        if B.outer(value, d % value.rank)[1]:
            raise NotMovement("tokens in reverse order")
        value = B.take(value, d % value.rank, slice(None, None, -1))
    return value


@move("unbind")
def _unbind(body: Body, node: fx.Node, value: Blocks) -> Any:
    d = argument(node, 1, "dim", 0) % value.rank
    return tuple(B.select(value, d, i) for i in range(B.outer(value, d)[0]))


@move("chunk")
def _chunk(body: Body, node: fx.Node, value: Blocks) -> Any:
    count, d = argument(node, 1, "chunks"), argument(node, 2, "dim", 0) % value.rank
    if B.outer(value, d)[0] % count:
        raise NotMovement("chunks that are not whole")
    part = B.size_of(value.dims[d]).over(Size(count))
    return tuple(B.pieces(value, d, Size(i * part.count, part.atoms if i else frozenset()), part) for i in range(count))


@move("tensor_split")
def _tensor_split(body: Body, node: fx.Node, value: Blocks) -> Any:
    if type(argument(node, 1, "indices_or_sections")) is not int:
        return None
    return _chunk(body, node, value)


@move("split", "split_with_sizes")
def _split(body: Body, node: fx.Node, value: Blocks) -> Any:
    sizes = argument(node, 1, "split_size_or_sections", node.kwargs.get("split_size"))
    d = argument(node, 2, "dim", 0) % value.rank
    whole = B.size_of(value.dims[d])
    if not isinstance(sizes, (tuple, list)):
        part = body.size(sizes)
        count = whole.over(part)
        if count.atoms:
            raise NotMovement("a split in an unknown number of parts")
        parts = [part] * count.count
    else:
        parts = [body.size(s) for s in sizes]
    out, at = [], 0
    for part in parts:
        out.append(B.pieces(value, d, Size(at, part.atoms if at else frozenset()), part))
        at += part.count
    if at != whole.count:
        raise NotMovement("a split that does not sum to the length")
    return tuple(out)


@move("reshape", "view")
def _reshape(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    sizes = argument(node, 1, "shape", node.kwargs.get("size"))
    if not isinstance(sizes, (tuple, list)):
        sizes = known if (known := body.sizes(sizes)) is not None else node.args[1:]
    return B.reshape(value, [None if s == -1 and type(s) is int else body.size(s) for s in sizes])


@move("flatten")
def _flatten(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    first = argument(node, 1, "start_dim", 0) % value.rank
    last = argument(node, 2, "end_dim", -1) % value.rank
    sizes: list[Size | None] = [B.size_of(d) for d in value.dims]
    return B.reshape(value, [*sizes[:first], None, *sizes[last + 1 :]])


@move("unflatten")
def _unflatten(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    d, parts = argument(node, 1, "dim") % value.rank, argument(node, 2, "sizes")
    whole = [B.size_of(dim) for dim in value.dims]
    new = [None if s == -1 and type(s) is int else body.size(s) for s in parts]
    return B.reshape(value, [*whole[:d], *new, *whole[d + 1 :]])


@move(*TRANSPOSING)
def _permute(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    order = permutation_of(node)
    if order is None:
        raise NotMovement("axes in an order that is not constant")
    return B.permute(value, order)


@move("unsqueeze")
def _unsqueeze(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    return B.unsqueeze(value, argument(node, 1, "dim") % (value.rank + 1))


@move("squeeze")
def _squeeze(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    dim = argument(node, 1, "dim")
    if type(dim) is not int:
        raise NotMovement("squeeze of all dimensions")
    return B.squeeze(value, dim % value.rank)


@move("view_as", "reshape_as")
def _view_as(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    like = argument(node, 1, "other")
    if like is node.args[0]:
        return value
    return B.reshape(value, [B.size_of(dim) for dim in body.blocks(like).dims])


@move("detach")
def _detach(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    return body.detached(value) if example(node.args[0]).requires_grad else value


@move("contiguous", "clone", "alias")
def _same(body: Body, node: fx.Node, value: Blocks) -> Blocks:
    return value


def _in_range(numbers: list[int], n: int) -> list[int]:
    if not all(-n <= i < n for i in numbers):
        raise NotMovement("an index out of range")
    return [i % n for i in numbers]
