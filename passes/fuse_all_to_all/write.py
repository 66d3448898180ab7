"""Put one exchange before a loop and cut the documents out of its result."""

from __future__ import annotations

import functools
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, storage
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import CHECKS, mutated_after
from packpass.semantics.memory import share_memory
from passes.building import Builder
from passes.document_loops.boundaries import summed
from passes.document_loops.op_names import is_size_check, name_of
from passes.fuse_all_to_all.blocks import TOKENS, size_of
from passes.fuse_all_to_all.digest import steps
from passes.fuse_all_to_all.exchange import Exchange, Section
from passes.fuse_all_to_all.gather import gathered, way_back_of
from passes.fuse_all_to_all.held import Buffer, Source, fills, reads
from passes.fuse_all_to_all.placed import Placed
from passes.fuse_all_to_all.scalars import Counted
from passes.nodes import put_instead, snapshot_of
from passes.prune import prune

if TYPE_CHECKING:
    from passes.fuse_all_to_all.loops import Decided

_ops = torch.ops.packpass


def write(gm: fx.GraphModule, decided: Decided) -> list[tuple[str, list[int]]]:
    """Change the graph; returns the ops that were added and their sections. Undoes its work if it is refused."""
    begin = decided.loop.iterations[0][0]
    like = decided.found[0][1].source.node
    build = Builder(gm.graph, begin, like)
    try:
        rows, made = _exchanges(build, decided)
        bounds = {sharded: _boundaries(build, decided, sharded, example(like).device) for sharded in (True, False)}
        _fills(build, decided, bounds)
    except Exception:
        build.undo()
        raise
    written = decided.loop.written
    inside = {n for _, nodes, _ in decided.loop.iterations for n in nodes}
    outside = [n for node in inside for n in node.all_input_nodes if n not in inside and n.op != "placeholder"]
    for which, (start, nodes, _) in enumerate(decided.loop.iterations):
        body, live = decided.bodies[which], decided.live[which]
        after, order = nodes[0], steps(nodes)
        segments: dict[bool, tuple[fx.Node, int]] = {}
        for (position, exchange), row in zip(decided.found, rows, strict=True):
            node = order[position]
            placed = body.values.get(node)
            segment = Builder(gm.graph, after, like).call(
                markers.SEGMENT, row, bounds[not exchange.to_heads], start, exchange.token_dim, fake=example(node)
            )
            if isinstance(placed, Placed):
                _written_whole(gm.graph, placed, segment, bounds, start)
            segments[not exchange.to_heads] = segment, exchange.token_dim
            if storage(node) in written:
                # What is received is changed in place: it was the document's own, and the row is everybody's.
                build = Builder(gm.graph, segment.next, like)
                segment = build.call("clone", segment, method=True, fake=example(node))
            for user in list(node.users):
                if not (fills(user, node) and user in body.values):
                    user.replace_input_with(node, segment)
        _recount(gm.graph, decided, decided.lengths[which], segments, bounds, start)
        _recut(gm.graph, decided, body, nodes, live, start, bounds)
        _sweep(gm.graph, body, nodes)
    starts = {start for start, _, _ in decided.loop.iterations}
    prune(gm.graph, [n for n in outside if n not in starts])  # views of boundaries, whose sizes AOTAutograd asks about
    return made


# === The exchanges ===========================================================================================


def _exchanges(build: Builder, decided: Decided) -> tuple[list[fx.Node], list[tuple[str, list[int]]]]:
    """For every exchanged tensor the row that holds it for all documents; one op per outer tensor."""
    groups: dict[tuple[tuple[Source, ...], bool], list[Exchange]] = {}
    for _, exchange in decided.found:
        groups.setdefault((exchange.sources, exchange.gathered), []).append(exchange)
    results: dict[tuple[tuple[Source, ...], bool], fx.Node] = {}
    starts: dict[int, int] = {}
    made = []
    for (sources, gathers), exchanges in groups.items():
        sections = [s for e in exchanges for s in e.sections]
        widths = [s.width for s in sections]
        row, name = _exchanged(build, decided, sources, sections, gathers)
        results[sources, gathers] = row
        made.append((name if decided.counts.scale.zigzag else f"{name} of shards of one piece", widths))
        at = 0
        for exchange in exchanges:
            starts[id(exchange)] = at
            at += sum(s.width for s in exchange.sections) // exchange.parts(decided.cp)
    rows = []
    for _, exchange in decided.found:
        width = sum(s.width for s in exchange.sections) // exchange.parts(decided.cp)
        row = results[exchange.sources, exchange.gathered]
        if example(row).shape[-1] != width:
            row = build.call(torch.narrow, row, -1, starts[id(exchange)], width)
        rows.append(_shaped(build, row, exchange))
    return rows, made


def _exchanged(
    build: Builder, decided: Decided, sources: tuple[Source, ...], sections: list[Section], gathers: bool
) -> tuple[fx.Node, str]:
    """One exchange of the columns of the sections of rows, and its name."""
    source = sources[0]
    x = _sections(build, [_columns(build, one) for one in sources], sections, 1 if source.sharded else decided.cp)
    cu = _boundaries(build, decided, False, example(source.node).device)
    zigzag = decided.counts.scale.zigzag
    op = _ops.cp_to_hp.default if source.sharded else _ops.hp_to_cp.default
    if any(example(one.node).requires_grad for one in sources):
        cu = snapshot_of(cu, build.before, build.call)
    if gathers:
        way = way_back_of(decided.bodies[0].ways_back)
        return gathered(build, x, cu, way, decided.group, decided.cp, zigzag), "cp_unpartition"
    widths = [s.width for s in sections]
    made = build.call(op, x, cu, widths, example(x).dim() - 1, decided.group, decided.cp, zigzag)
    return made, op._schema.name.removeprefix("packpass::")


def _columns(build: Builder, source: Source) -> fx.Node:
    """A row as ``[tokens, sizes that are not known.., columns]``."""
    fake = example(source.node)
    others = [d for d in range(fake.dim()) if d != source.dim]
    unknown = [d for d in others if not isinstance(fake.shape[d], int)]
    known = [d for d in others if isinstance(fake.shape[d], int)]
    order = [source.dim, *unknown, *known]
    x = build.call("detach", source.node, method=True) if source.detached else source.node
    if order != list(range(fake.dim())):
        x = build.call("permute", x, order, method=True)
    if not known:
        x = build.call("unsqueeze", x, -1, method=True)
    elif len(known) > 1:
        x = build.call("flatten", x, 1 + len(unknown), method=True)
    return x


def _sections(build: Builder, rows: list[fx.Node], sections: list[Section], part: int) -> fx.Node:
    """The columns of the sections in their order, of which the rows hold one in ``part``."""
    widths = [int(example(x).shape[-1]) for x in rows]
    starts = [sum(widths[:i]) for i in range(len(rows))]
    found: list[tuple[fx.Node, int, int]] = []
    for section in sections:
        begin, end = section.start, section.start + section.width // part
        for x, start, width in zip(rows, starts, widths, strict=True):
            low, high = max(begin, start), min(end, start + width)
            if low < high and found and found[-1][0] is x and found[-1][2] == low - start:
                found[-1] = (x, found[-1][1], high - start)
            elif low < high:
                found.append((x, low - start, high - start))
    cut = [
        x if (low, high) == (0, example(x).shape[-1]) else build.call(torch.narrow, x, -1, low, high - low)
        for x, low, high in found
    ]
    return cut[0] if len(cut) == 1 else build.call(torch.cat, cut, -1)


def _shaped(build: Builder, row: fx.Node, exchange: Exchange) -> fx.Node:
    """The row with the dimensions of the document's tensor."""
    dims = exchange.dims
    atoms = exchange.source.unknown
    ints = [d for d, dim in enumerate(dims) if TOKENS not in dim and not any(isinstance(f, str) for f in dim)]
    sizes = [size_of(dims[d]).count for d in ints]
    if not ints:
        row = build.call("squeeze", row, -1, method=True)
    elif len(ints) > 1:
        row = build.call("unflatten", row, -1, sizes, method=True)
    order = []
    for d, dim in enumerate(dims):
        if TOKENS in dim:
            order.append(0)
        elif d in ints:
            order.append(1 + len(atoms) + ints.index(d))
        else:
            order.append(1 + atoms.index(str(dim[0])))
    return row if order == list(range(len(order))) else build.call("permute", row, order, method=True)


def _written_whole(
    graph: fx.Graph, placed: Placed, whole: fx.Node, bounds: dict[bool, fx.Node], start: fx.Node
) -> None:
    """One write of a document in the place of those of its parts."""
    source = placed.source
    build = Builder(graph, placed.writes[-1], source.node)
    document = build.call(markers.SEGMENT, source.node, bounds[source.sharded], start, source.dim)
    build.call(operator.setitem, document, Ellipsis, whole, fake=NO_VALUE)
    for write in placed.writes:
        graph.erase_node(write)


# === Boundaries ==============================================================================================


def _boundaries(build: Builder, decided: Decided, sharded: bool, device: Any) -> fx.Node:
    """Boundaries that count the whole row, or the slots of a shard."""
    counts, cp = decided.counts, decided.cp
    base_is_whole = counts.scale.of_whole_row(cp)
    node = summed(functools.partial(_made, build), counts.base) if counts.lengths else counts.base
    if sharded and base_is_whole:
        vectors = {} if counts.lengths or cp == 1 else counts.counted
        known = next((b.node for b, c in vectors.items() if c == Counted(Fraction(1, cp))), None)
        node = known if known is not None else _made(build, torch.div, node, cp, rounding_mode="floor")
    elif not sharded and not base_is_whole:
        node = _made(build, torch.mul, node, cp)
    if example(node).device != device:
        node = _made(build, "to", node, device, method=True)
    return node


def _fills(build: Builder, decided: Decided, bounds: dict[bool, fx.Node]) -> None:
    """``split`` raises unless the lengths sum to the size."""
    sources = {cut.source for n, cut in decided.bodies[0].cuts.items() if n.target is markers.SPLIT_GET}
    for source in sorted(sources, key=lambda s: s.node):
        total = build.call(torch.ops.aten.sym_size.int, source.node, source.dim)
        fills = build.call(operator.eq, build.call(operator.getitem, bounds[source.sharded], -1), total)
        message = "packpass: the lengths do not sum to the size of what is split"
        build.call(torch._assert_async, fills, message, fake=NO_VALUE)


def _made(build: Builder, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """The same call once, also for the loops that follow: their documents have boundaries in common then."""
    keywords = {k: v for k, v in kwargs.items() if k != "method"}
    first = args[0] if isinstance(args[0], fx.Node) else args[0][0]  # the first of those that are joined
    for node in (*build.made, *first.users):
        if (node.target, node.args, node.kwargs) == (target, args, keywords) and node < build.before:
            if not mutated_after(node.graph, node, node):
                return node
    return build.call(target, *args, **kwargs)


# === What stays in the loop ==================================================================================


def _recount(
    graph: fx.Graph, decided: Decided, lengths: dict[fx.Node, bool], segments: dict[bool, tuple[fx.Node, int]],
    bounds: dict[bool, fx.Node], start: fx.Node,
) -> None:  # fmt: skip
    """Lengths that were counted on what is gone are counted on documents that are there."""
    for node, sharded in lengths.items():
        if sharded not in segments:
            source = next(e.source for _, e in decided.found if e.source.sharded == sharded)
            build = Builder(graph, next(iter(segments.values()))[0], source.node)
            segment = build.call(markers.SEGMENT, source.node, bounds[sharded], start, source.dim)
            segments[sharded] = segment, source.dim
        build = Builder(graph, segments[sharded][0].next, segments[sharded][0])
        size = build.call(torch.ops.aten.sym_size.int, *segments[sharded], fake=example(node))
        node.replace_all_uses_with(size)


def _recut(
    graph: fx.Graph, decided: Decided, body: Any, nodes: tuple[fx.Node, ...], live: frozenset[fx.Node], start: fx.Node,
    bounds: dict[bool, fx.Node],
) -> None:  # fmt: skip
    """Documents that are cut by computed boundaries (``cu[i] // cp``) are cut by a vector of them."""
    order = steps(nodes)
    chosen = {order[position] for position, _ in decided.found}
    for node in nodes:
        cut = body.cuts.get(node)
        if cut is None or node not in live or node in chosen:
            continue
        build = Builder(graph, node, cut.source.node)
        args = (cut.source.node, bounds[cut.source.sharded], start, cut.source.dim)
        if cut.written:
            rest = tuple(cut.rest) if any(e != slice(None) for e in cut.rest) else Ellipsis
            segment = build.call(markers.SEGMENT, *args)
            build.call(operator.setitem, segment, rest, node.args[2], fake=NO_VALUE)
            graph.erase_node(node)
            continue
        whole = not cut.rest or all(e == slice(None) for e in cut.rest)
        out = build.call(markers.SEGMENT, *args, fake=example(node) if whole else None)
        if not whole:
            out = build.call(operator.getitem, out, tuple(cut.rest), fake=example(node))
        share_memory(example(node), example(args[0]))
        put_instead(node, out)


def _sweep(graph: fx.Graph, body: Any, nodes: tuple[fx.Node, ...]) -> None:
    """Erase what nobody needs any more, with the assertions about its sizes and the checks that the op makes."""
    gone: set[fx.Node] = set()
    present = set(graph.nodes)
    alive = [n for n in nodes if n in present]
    moved = {n for n in alive if body.tensor(n) is not None or n in body.cuts}
    below = set(moved)
    for node in alive:
        if any(n in below for n in node.all_input_nodes) and not isinstance(example(node), torch.Tensor):
            below.add(node)
    for node in reversed(alive):
        unused = all(u in gone for u in node.users)
        check = is_size_check(node) and node in below
        proven = name_of(node) == "loop_check" and body.values.get(node.args[0]) is True  # the op checks that itself
        known = node in body.values or node in body.machine.values or node in below
        if unused and (node.op == "get_attr" or check or proven or (known and not _has_effect(node, body))):
            graph.erase_node(node)
            gone.add(node)


def _has_effect(node: fx.Node, body: Any) -> bool:
    if isinstance(body.values.get(node), Buffer):  # the copy that fills it, while others read it
        buffer = node.args[0] if node.args else None
        return isinstance(buffer, fx.Node) and fills(node, buffer) and any(reads(u, buffer) for u in buffer.users)
    if node in body.values:
        return False
    return node.is_impure() or name_of(node) in CHECKS | {"setitem", "loop_check", "loop_skip"}
