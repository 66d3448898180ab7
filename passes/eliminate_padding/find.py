"""Which tensor says what is padding, which attentions obey it, and which inputs hold the tokens these attend to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from packpass.layout.sources import belongs_to_module, source_name
from packpass.semantics import argument, example, family_of, op_of, storage
from packpass.semantics.effects import effects_of
from packpass.semantics.names import op_name
from packpass.semantics.products import MATMULS
from passes.eliminate_padding.facts import Fact, Table, facts, of_padding
from passes.eliminate_padding.rules_scores import CASES, HIDDEN, aligned
from passes.eliminate_padding.tile import Tile, holds, same
from passes.eliminate_padding.writes import written

FUSED = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_OF_MASKS = frozenset({"pointwise", "views", "indexing", "joins", "reductions"})
"""Families of calls that make a mask of masks."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A padding mask: the node, and whether 0 says that a token is real.

    ``sites``: attentions (fused ones, or where scores are masked) -> the nodes of their keys. ``hidden``: do the masks
    of all sites hide padding from real tokens?
    """

    mask: fx.Node
    inverted: bool
    tile: Tile
    facts: dict[fx.Node, Fact]
    sites: dict[fx.Node, tuple[fx.Node, ...]]
    hidden: bool

    @property
    def seeds(self) -> set[fx.Node]:
        return set(_tokens(self))


def find(graph: fx.Graph) -> Found | None:
    """The padding mask of a graph; None if no attention is masked by anything that could be one."""
    unclear: Found | None = None
    for mask, tile in _candidates(graph):
        same_masks = list(_same_masks(graph, mask))
        for inverted in (False, True):
            table = of_padding(tile, mask)
            opposite = Table(table.dims, table.cells.flip(0))
            table, opposite = (opposite, table) if inverted else (table, opposite)
            known = facts(graph, tile, {n: table if agrees else opposite for n, agrees in same_masks})
            sites = dict(_sites(graph, known))
            if not sites:
                unclear = unclear or _unclear(graph, mask, tile, known)
                break
            found = Found(mask, inverted, tile, known, sites, all(_hides(s, known) for s in sites))
            if found.hidden:
                return found
            unclear = unclear or found
    return unclear


def _unclear(graph: fx.Graph, mask: fx.Node, tile: Tile, known: dict[fx.Node, Fact]) -> Found | None:
    """An attention whose mask is made of a padding mask and of something that is not understood."""
    for node in graph.nodes:
        start = mask_of(node)
        if start is None or start in known:
            continue
        if op_of(node) not in FUSED and not any(_is_product(n) for n in node.all_input_nodes if n is not start):
            continue
        seen, stack = {start}, [start]
        while stack:
            here = stack.pop()
            table = known.get(here)
            if isinstance(table, Table) and depends_on_padding(table):
                return Found(mask, False, tile, known, {node: ()}, False)
            if here is start or family_of(here) in _OF_MASKS:
                stack += [n for n in here.all_input_nodes if n not in seen]
                seen.update(here.all_input_nodes)
    return None


def _candidates(graph: fx.Graph) -> Iterator[tuple[fx.Node, Tile]]:
    """Inputs first; then comparisons, such as ``ids != pad_id``."""
    inputs, computed = [], []
    for node in graph.nodes:
        value = example(node)
        if not isinstance(value, Tensor) or value.dim() not in (2, 4) or value.is_complex():
            continue
        if value.dim() == 4 and not (value.dtype is torch.bool and same(value.shape[1], 1) and same(value.shape[2], 1)):
            continue
        if any(same(n, small) for n in (value.shape[0], value.shape[-1]) for small in (0, 1)):
            continue
        tile = Tile(value.shape[0], value.shape[-1])
        if node.op == "placeholder" and not is_parameter(node) and not _is_ids(node):
            inputs.append((node, tile))
        elif (
            node.op in ("call_function", "call_method") and value.dtype is torch.bool and family_of(node) == "pointwise"
        ):
            if _of_one_input(node, tile):
                computed.append((node, tile))
    yield from inputs
    yield from computed


def _of_one_input(mask: fx.Node, tile: Tile) -> bool:
    """Does a mask read one input per token, and that once? ``padding & segment``, or ``(ids != pad) & (ids != other)``,
    hides tokens that are no padding."""
    seen, stack = {mask}, [mask]
    while stack:
        new = [n for n in stack.pop().all_input_nodes if n not in seen]
        stack += new
        seen.update(new)
    reads = 0
    for node in seen:
        value = example(node)
        if node.op == "placeholder" and isinstance(value, Tensor) and value.dim() >= 2 and not is_parameter(node):
            if same(value.shape[0], tile.batch) and any(same(n, tile.length) for n in value.shape[1:]):
                reads += sum(user in seen and op_of(user) != "size" for user in node.users)
    return reads <= 1


_OPPOSITE = {"eq": "ne", "ne": "eq"}


def _same_masks(graph: fx.Graph, mask: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """The mask, and other calls that compute it (True) or its opposite (False) once more: ``ids != pad`` per layer."""
    yield mask, True
    if mask.op == "placeholder":
        return
    changing = {storage(n.args[0]) for n in graph.nodes if n.args and written(n)} - {None}
    wanted = _way(mask, changing)
    opposite = (_OPPOSITE.get(wanted[0]), *wanted[1:])
    for node in graph.nodes:
        if node is not mask and op_name(node) in (wanted[0], opposite[0]):
            way = _way(node, changing)
            if way in (wanted, opposite):
                yield node, way == wanted


def _way(x: Any, changing: set[Any]) -> Any:
    """How a value is computed: what is computed in one way is one value. Where that is unclear, the node itself."""
    if isinstance(x, (tuple, list)):
        return tuple(_way(item, changing) for item in x)
    if not isinstance(x, fx.Node):
        return (type(x), (x.start, x.stop, x.step) if isinstance(x, slice) else x)
    known = family_of(x) in ("pointwise", "views") and not effects_of(x).random
    if not known or any(storage(n) in changing for n in (x, *x.all_input_nodes)):
        return (x,)
    named = tuple((name, _way(value, changing)) for name, value in sorted(x.kwargs.items()))
    return (op_name(x), *(_way(arg, changing) for arg in x.args), named)


def is_parameter(node: fx.Node) -> bool:
    source = source_name(node)
    return (source is not None and belongs_to_module(source)) or isinstance(example(node), torch.nn.Parameter)


def _is_ids(node: fx.Node) -> bool:
    value = example(node)
    if value.dtype is torch.bool:
        return False
    return any(op_of(user) in ("embedding", "one_hot") and user.args[:1] == (node,) for user in node.users)


def depends_on_padding(table: Table) -> bool:
    cells = table.cells
    if table.tokens == 0:
        return False
    return any(not torch.equal(*cells.unbind(axis)) for axis in range(table.tokens))


def _sites(graph: fx.Graph, known: dict[fx.Node, Fact]) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
    for node in graph.nodes:
        mask = mask_of(node)
        table = known.get(mask) if mask is not None else None
        if not isinstance(table, Table) or not table.dims or not holds(table.dims[-1], "S"):
            continue
        if not depends_on_padding(table):
            continue
        if op_of(node) in FUSED:
            keys = tuple(k for k in (argument(node, 1, "key"), argument(node, 2, "value")) if isinstance(k, fx.Node))
            yield node, keys
        elif (product := _product_behind(node, known)) is not None:
            key = argument(product, 1, "other", product.kwargs.get("mat2"))
            if isinstance(key, fx.Node):
                yield node, (key,)


def mask_of(node: fx.Node) -> fx.Node | None:
    """The operand of an op that would be the mask if the op were attention or masked scores."""
    name = op_of(node)
    if name == "scaled_dot_product_attention":
        mask = argument(node, 3, "attn_mask")
    elif name == "multi_head_attention_forward":
        mask = argument(node, 14, "key_padding_mask")
    elif name in ("add", "sub") and len(node.args) == 2 and isinstance(node.args[0], fx.Node):
        a, b = node.args
        mask = a if _rank(a) < _rank(b) or (isinstance(b, fx.Node) and _is_product(b)) else b
    elif name in ("masked_fill", "where") and len(node.args) == 3:
        mask = node.args[0 if name == "where" else 1]
    else:
        return None
    return mask if isinstance(mask, fx.Node) else None


def _rank(x: object) -> int:
    value = example(x)
    return value.dim() if isinstance(value, Tensor) else 0


def _is_product(node: fx.Node) -> bool:
    return _product_behind(node, {}) is not None


def _product_behind(node: fx.Node, known: dict[fx.Node, Fact]) -> fx.Node | None:
    """The product whose result is scaled, cast or viewed into a node, if its two operands both are activations."""
    here: fx.Node | None = node
    while here is not None and op_of(here) not in MATMULS | {"einsum"}:
        if family_of(here) not in ("pointwise", "views"):
            return None
        tensors = [n for n in here.all_input_nodes if isinstance(example(n), Tensor) and n not in known]
        here = tensors[0] if len(tensors) == 1 else None
    return here if here is not None and min(_rank(a) for a in here.args[:2]) >= 3 else None


def _hides(site: fx.Node, known: dict[fx.Node, Fact]) -> bool:
    """Does a mask hide padding, and nothing less, from a real token?"""
    mask = mask_of(site)
    table = known.get(mask) if mask is not None else None
    assert isinstance(table, Table)
    if table.tokens > 2:
        return False
    cells = aligned(table, [2, 1]).expand(CASES)
    name = op_of(site)
    if cells.dtype is torch.bool:
        shown = ~cells if name in ("masked_fill", "multi_head_attention_forward") else cells
        if name == "where" and not (isinstance(site.args[1], fx.Node) and isinstance(site.args[2], (int, float))):
            other = site.args[2]
            numeric = isinstance(other, fx.Node) and isinstance(known.get(other), Table)
            shown = cells if numeric else ~cells
    else:
        shown = (-cells if name == "sub" else cells) > HIDDEN
    return bool(shown[1, 1, 1]) and not bool(shown[1, 0, 2])


def _tokens(found: Found) -> Iterator[fx.Node]:
    """Inputs ``[B, S, ...]`` that keys are computed from, other than through masks."""
    seen: set[fx.Node] = set()
    stack = [key for keys in found.sites.values() for key in keys]
    while stack:
        node = stack.pop()
        if node in seen or node in found.facts:
            continue
        seen.add(node)
        value = example(node)
        if node.op == "placeholder":
            if isinstance(value, Tensor) and value.dim() >= 2 and not is_parameter(node):
                sizes = same(value.shape[0], found.tile.batch) and same(value.shape[1], found.tile.length)
                if sizes and all(isinstance(n, int) for n in value.shape[2:]):
                    yield node
            continue
        stack += [n for n in node.all_input_nodes if n is not mask_of(node) or n not in found.facts]
