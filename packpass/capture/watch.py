"""Watching for a loop over documents: which inputs may be boundaries, and which sequences have one entry per document.

A frame starts as stock torch traces it. The first loop whose length could be the number of documents restarts its
analysis in a loop mode, with the length of the boundaries dynamic; from then on such sequences are symbolic.

Functions named after what they wrap are ``replacement(original, *args)`` for the hook table in `packpass.capture`.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import torch

from packpass._compat import free_unbacked_symbols, hint_of
from packpass.capture import code_loops
from packpass.capture.dynamo import SymNodeVariable, TensorVariable, example, size_of
from packpass.capture.frame import FrameState, Mode
from packpass.capture.given_numbers import counted_by, counts_entries, has_vectors, is_an_entry, is_made_from_one
from packpass.capture.hooks import group_is_on
from packpass.capture.origins import (
    INDEX_DTYPES,
    has_integers,
    is_integers,
    is_largest_number,
    is_size_of_a_vector,
    made_from,
    needed_for,
)
from packpass.capture.state import active, current_frame, location_of, note, restart

UNROLL_LIMIT = 65
"""Entries of a boundary vector up to which a loop with a constant number of documents is unrolled and looked at."""

MOST_COLUMNS = 8
"""Columns up to which a matrix may be one of sizes of documents: each is traced as a number of its own."""


def vectors(tx: Any, rank: int = 1) -> dict[str, Any]:
    """Every 1-D integer input so far, the only things that can be boundaries: name of its source -> length.

    ``rank=2``: every matrix of integers, the only things that can be sizes of documents -> number of rows. Where loops
    over rows are traced as they are written, a row is a vector, and a matrix has the length of that.
    """
    found = {}
    ranks = {1: 0, 2: 1} if rank == 1 and current_frame().in_rows else {rank: 0}
    for node in tx.output.root_tracer.graph.find_nodes(op="placeholder"):
        value, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        if any(has_integers(value, dims) for dims in ranks):
            size = value.shape[ranks[value.dim()]]
            if argument is not None and argument.source is not None and hint_of(size) != 0:
                found[source_name(argument.source)] = size
    given = current_frame().given.items()
    return found | {name: one.count for name, one in given if one.rank == rank}


def source_name(source: Any) -> str:
    return source.name if isinstance(source.name, str) else source.name()  # a method before torch 2.12


def batches(tx: Any, sizes: set[int] | None = None, most: int = 0, bounds: bool = True) -> dict[str, Any]:
    """Inputs with as many rows as there are lengths of documents: a padded batch, and the mask that these are sums of.

    Name of the source -> number of rows. Only where the program has made, or was given, a vector of integers with an
    entry for each row, or a mask of them; of one row torch makes a constant. ``most``: dimensions that what tells
    lengths has at most. ``bounds``: boundaries, of which there is one more, tell them as well.
    """
    graph = tx.output.root_tracer.graph
    values = [node.meta.get("example_value") for node in graph.nodes]
    most = most or (2 if current_frame().masks or current_frame().row_sizes else 1)
    lengths = {hint_of(v.shape[0]) for v in values if _may_tell_lengths(v) and 1 <= v.dim() <= most}
    found = {}
    for node in graph.find_nodes(op="placeholder"):
        value, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter) or not value.dim():
            continue
        rows = hint_of(value.shape[0])
        if rows is None or rows < 2 or (sizes is not None and rows not in sizes):
            continue
        if rows not in lengths and not (bounds and rows + 1 in lengths):
            continue
        if argument is not None and argument.source is not None:
            found[source_name(argument.source)] = value.shape[0]
    return found


def watch_row(tx: Any, tensor: Any, first: Any) -> None:
    """``x[i]`` by the number of the open loop's document: where x has one row for each now, it is a padded batch."""
    frame, value = current_frame(), example(tensor)
    if not active.regions or not isinstance(first, SymNodeVariable) or not isinstance(value, torch.Tensor):
        return
    region = active.regions[-1]
    rows = value.shape[0] if value.dim() > 1 else None
    if not isinstance(rows, int) or first.sym_num.node.expr != region.index.sym_num.node.expr:
        return
    length = region.length.sym_num if isinstance(region.length, SymNodeVariable) else rows
    new = set(batches(tx, {rows}, bounds=False)) - frame.batches if hint_of(length) == rows else set()
    if new:
        frame.batches |= new
        frame.dynamic_sources |= new
        raise restart(f"{', '.join(sorted(new))} has one row for each document")


def _may_tell_lengths(value: Any) -> bool:
    if current_frame().parts and isinstance(value, torch.Tensor) and value.dim() == 1:
        return value.dtype.is_floating_point or is_integers(value)
    return is_integers(value) or (isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.dim() == 2)


def watch_mask(tx: Any, made: Any) -> None:
    """A row is picked by a mask, or is counted: how much that is, is data, which ends the graph. In a loop over rows it
    is known."""
    frame = current_frame()
    node, rows = made.as_proxy().node, 0
    while node.op != "placeholder" and len(node.all_input_nodes) == 1:
        source = node.all_input_nodes[0]
        rows += node.target in ROWS and getattr(source.meta.get("example_value"), "ndim", 0) == 2
        node = source
    value = node.meta.get("example_value")
    if not frame.seeks or frame.masks or not loops_are_sought() or not rows:
        return
    if not isinstance(value, torch.Tensor) or value.dim() != 2 or value.dtype.is_floating_point:
        return
    if type(value.shape[0]) is int and value.shape[0] == 1:
        watch_one_row(tx)
    frame.masks = frame.only_numbers = True
    enter_loop_mode(tx, (hint_of(value.shape[0]) or 0,), rank=2)


def watch_one_row(tx: Any) -> None:
    """A number, or a size, is made from the one row of a batch, in what may be a loop over its rows."""
    frame, line = current_frame(), code_loops.line_of_loop(tx)
    if line:
        frame.lone_at.add(line)
    if line and frame.lone is False:
        frame.lone, frame.mode = True, Mode.SYMBOLIC
        raise restart("a loop over one row")


ROWS = (operator.getitem, torch.select, "select")
"""What takes one row of a matrix."""


def enter_loop_mode(tx: Any, sizes: tuple[int, ...], rank: int = 1, padded: bool = False) -> None:
    """A loop that may run over documents: trace the frame again, ready for it, unless it already is.

    ``rank=2``: it runs over the rows of a matrix. ``padded``: it goes over the rows of a padded batch, not only by
    numbers of which there are as many as some tensor happens to have rows.
    """
    frame = current_frame()
    fitting = {name for name, size in vectors(tx, rank).items() if hint_of(size) in sizes}
    rows = {sizes[0], sizes[0] - 1} if rank == 1 else set(sizes)
    if padded or frame.masks or rank == 2 or not fitting:
        frame.batches |= set(batches(tx, rows, most=max(rank, 2 if frame.masks else 1)))
    symbolic = frame.options.symbolic_loops and group_is_on("symbolic-loops")
    if rank == 1 and frame.mode is Mode.SYMBOLIC and fitting <= frame.dynamic_sources:
        # Lengths of vectors are no constants any more, so that this one is how many rows a batch has.
        frame.batches |= set(batches(tx, {sizes[0]}))
    fitting |= frame.batches
    new = fitting - frame.dynamic_sources
    if not symbolic:
        if frame.mode is Mode.PROBE and fitting:
            frame.mode = Mode.UNROLLED
            raise restart("capture scalars for an unrolled loop over documents")
        return
    if new:
        make_dynamic(new)


def make_dynamic(names: set[str]) -> NoReturn:
    """Trace the frame again, ready for loops, with inputs that may have any length."""
    frame = current_frame()
    frame.dynamic_sources |= names
    frame.mode = Mode.SYMBOLIC
    raise restart(f"the length of {', '.join(sorted(names))} is dynamic")


def loop_mode_for_symint(tx: Any, expr: Any) -> bool:
    """True if ``expr`` (a loop's length) comes from a 1-D integer input; enters symbolic mode if that is new.

    Beside a loop over rows of sizes it may be the number of rows as well, or as long as values say: one document or
    more per image, say.
    """
    frame = current_frame()
    if free_unbacked_symbols(expr):
        known = frame.row_sizes or (frame.data_sizes and is_size_of_a_vector(tx, expr)) or is_largest_number(tx, expr)
        return frame.mode is Mode.SYMBOLIC and (known or counts_entries(tx, expr))
    names = {*vectors(tx), *(vectors(tx, rank=2) if frame.row_sizes else ()), *batches(tx), *frame.batches}
    along = vectors(tx, rank=2) if frame.in_rows else {}
    env = tx.output.shape_env
    for symbol in getattr(expr, "free_symbols", ()):
        for source in env.var_to_sources.get(symbol, ()):
            base = getattr(source, "base", None)
            # Of a matrix, how many rows there are, and not how wide they are; but for those that are traced one by one.
            rows = (getattr(source, "idx", 0) or 0) == int(base is not None and source_name(base) in along)
            if base is not None and rows and source_name(base) in names:
                if frame.mode is Mode.PROBE:
                    symbolic = frame.options.symbolic_loops and group_is_on("symbolic-loops")
                    frame.mode = Mode.SYMBOLIC if symbolic else Mode.UNROLLED
                    raise restart("a loop whose length is the number of documents")
                return frame.mode is Mode.SYMBOLIC
    if counts_entries(tx, expr) and loops_are_sought():
        if frame.mode is Mode.PROBE:
            frame.mode = Mode.SYMBOLIC
            raise restart("a loop runs as often as a number says that is given to the model")
        return frame.mode is Mode.SYMBOLIC
    return False


def static_sizes(n: int) -> tuple[int, ...]:
    """Lengths of an input that a loop over ``n`` things may follow: boundaries (n + 1), lengths (n), parts of them."""
    return (n, n + 1, n + 2, n - 1)


def is_jagged(v: Any) -> bool:
    """Tensors of several lengths in one, as ``torch.nested.nested_tensor_from_jagged`` makes it: documents of the row
    that its ``values()`` are."""
    value = example(v)
    return isinstance(value, torch.Tensor) and value.layout is torch.jagged and value.is_contiguous()


def is_scalar(v: Any) -> bool:
    value = example(v)
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in INDEX_DTYPES


def is_vector(v: Any) -> bool:
    value = example(v)
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in INDEX_DTYPES


def is_matrix(v: Any) -> bool:
    """A row of a few numbers per document: the sizes of an image, say."""
    value = example(v)
    if not has_integers(value, 2):
        return False
    columns = hint_of(value.shape[1])
    return columns is not None and 1 <= columns <= MOST_COLUMNS


def is_batch(v: Any) -> bool:
    """May this be rows of documents that are padded to one length, or other values with one for each document, such as
    rewards?"""
    value = example(v)
    if not isinstance(value, torch.Tensor) or not value.dim() or is_unknown(value.shape[0]):
        return False
    return value.dim() > 1 or value.dtype not in INDEX_DTYPES


def settle(one: Any, other: Any) -> None:
    """Two numbers of documents, of which torch knows no more than what they are now: lengths and padded rows that are
    given to the model, say. Whether they go together is settled by a guard, as where their tensors are added."""
    difference = size_of(one) - size_of(other)
    if isinstance(difference, torch.SymInt) and not is_unknown(difference) and hint_of(difference) in (-1, 0, 1):
        bool(difference == hint_of(difference))


def is_unknown(size: Any) -> bool:
    return isinstance(size, (torch.SymInt, torch.SymBool)) and bool(free_unbacked_symbols(size))


def watch_items(tx: Any, values: list[Any]) -> None:
    """Values of which some may be 0-d tensors that are read as numbers."""
    for value in values:
        value = value.realize()
        if isinstance(value, TensorVariable) and is_scalar(value):
            watch_item(tx, value)


def watch_item(tx: Any, scalar: Any) -> None:
    """A number is read from boundaries: before a loop, or one by one.

    ``int(cu.diff().max())`` would end the graph in front of the loop over documents, and what the loop needs to know of
    the numbers with it: capture the scalars. ``cu[3].item()`` of a small vector may be a loop with a constant number of
    documents: let the passes look. Above the limit, unrolling would cost more than it can gain.
    """
    frame = current_frame()
    symbolic = loops_are_sought()
    vector = made_from(scalar.as_proxy().node)
    if vector is None:
        watch_mask(tx, scalar)
    watch_count(tx, scalar.as_proxy().node)
    if (names := counted_by(tx, scalar.as_proxy().node)) and symbolic:
        make_dynamic(names)
    if frame.mode is not Mode.PROBE:
        _watch_entry(tx, scalar.as_proxy().node)
        return
    if vector is None and symbolic and _is_of_one_row(scalar.as_proxy().node):
        watch_one_row(tx)
    mask = made_from(scalar.as_proxy().node, 2, (*INDEX_DTYPES, torch.bool))
    if vector is mask is None and not (symbolic and is_of_a_batch(tx, scalar.as_proxy().node)):
        return
    size = None if vector is None else vector.meta["example_value"].shape[0]
    if symbolic and is_an_entry(scalar.as_proxy().node):
        code_loops.note_unseen(tx)
    documents = None if size is None else hint_of(size)
    if documents is not None and symbolic and (isinstance(size, int) or code_loops.line_of_loop(tx)):
        if batches(tx, {documents, documents - 1}):
            enter_loop_mode(tx, (documents,), padded=True)
        if documents in (1, 2) and frame.lone is False and (line := code_loops.line_of_loop(tx)):
            frame.lone = True
            frame.lone_at.add(line)
    if isinstance(size, int) and size <= UNROLL_LIMIT:
        frame.mode = Mode.SYMBOLIC if symbolic else Mode.UNROLLED
        raise restart("boundaries are read one by one")
    if symbolic and code_loops.loop_ahead(tx):
        frame.mode, frame.only_numbers = Mode.SYMBOLIC, True
        raise restart("a number made from boundaries is read in front of a loop")


def watch_check(tx: Any, value: Any, only_raises: bool) -> None:
    """What boundaries hold is checked in front of a loop, which ends the graph in stock torch: ``assert cu_seqlens[-1]
    % 8 == 0, f"{cu_seqlens[-1]}"``. In a frame that is ready for loops it is an assertion in the graph."""
    frame = current_frame()
    known = only_raises and made_from(value.as_proxy().node) is not None
    if known and frame.mode is Mode.PROBE and loops_are_sought() and code_loops.loop_ahead(tx):
        frame.mode, frame.only_numbers = Mode.SYMBOLIC, True
        raise restart("what boundaries hold is checked in front of a loop")


def watch_count(tx: Any, node: Any) -> None:
    """A number that is given to the model is read in front of a loop: how many of the boundaries are no padding, say.
    What is cut by it has a size that is data."""
    frame = current_frame()
    if frame.counts is None or frame.data_sizes is not False or frame.mode is Mode.STOCK or not is_made_from_one(node):
        return
    if loops_are_sought() and code_loops.loop_ahead(tx) and has_vectors(tx):
        frame.only_numbers = frame.only_numbers or frame.mode is Mode.PROBE
        frame.mode, frame.data_sizes = Mode.SYMBOLIC, True
        raise restart("a number that is given to the model is read in front of a loop")


def _watch_entry(tx: Any, node: Any) -> None:
    """The boundaries of one document are read in a loop over a constant number of them, in a frame that is ready for
    loops: the batch has a constant number of rows because another input of as many, which was met later, has."""
    frame = current_frame()
    if frame.mode is not Mode.SYMBOLIC or not is_an_entry(node) or not code_loops.line_of_loop(tx):
        return
    documents = hint_of(node.args[0].meta["example_value"].shape[0])
    if documents is not None and not set(batches(tx, {documents, documents - 1})) <= frame.dynamic_sources:
        enter_loop_mode(tx, (documents,), padded=True)


def _is_of_one_row(node: Any) -> bool:
    """Is a number made from lengths of which there is one?"""
    values: list[Any] = [here.meta.get("example_value") for here in needed_for([node])]
    return any(is_integers(v) and v.dim() == 1 and type(v.shape[0]) is int and v.shape[0] == 1 for v in values)


def loops_are_sought(frame: FrameState | None = None) -> bool:
    """Would a loop be captured if its numbers were known? Else what is switched off is the reason that it stays."""
    return (frame or current_frame()).options.symbolic_loops and group_is_on("symbolic-loops")


def watch_list(tx: Any, tensor: Any) -> None:
    """``tensor.tolist()`` ends the graph, and no entry of the list will be known to come from it: where a loop is
    ahead, it goes by numbers that nobody can tell from constants."""
    value = example(tensor)
    if not isinstance(value, torch.Tensor) or not value.dim() or value.dtype not in INDEX_DTYPES:
        return
    node = tensor.as_proxy().node
    known = value.dim() == 1 and (made_from(node) is not None or is_of_a_batch(tx, node, value.shape[0]))
    if not known and loops_are_sought() and code_loops.loop_ahead(tx):
        note("lengths-unknown", LISTED, location_of(tx))


LISTED = (
    "a list of numbers is read from a tensor that is not known to hold boundaries or lengths of documents, which are "
    "1-D vectors of integers given to the model or made from one; loops by these numbers run as in stock torch"
)

READ = (
    "a loop reads numbers from a tensor ({}), and these are not known to be boundaries or lengths of documents, which "
    "are 1-D vectors of integers given to the model or made from one; the loop runs as in stock torch"
)
"""Why a loop is not captured that may well be one over documents."""


def is_of_a_batch(tx: Any, node: Any, entries: Any = None) -> bool:
    """Is a number, one of so many ``entries``, made from lengths of a padded batch? Counts of classes are others."""
    rows = {size for rows in batches(tx).values() if (size := hint_of(rows)) is not None}
    rows |= {size + 1 for size in rows}
    if entries is not None and (number := hint_of(entries)) is not None and not rows & {number, number + 1}:
        return False
    values: list[Any] = [here.meta.get("example_value") for here in needed_for([node])]
    return any(is_integers(v) and v.dim() == 1 and hint_of(v.shape[0]) in rows for v in values)


def watch_data_size(tx: Any, inside: bool = False) -> None:
    """The size of a result is data, which ends the graph in stock torch. With a loop ahead, and boundaries made from
    such a result (the frames of every image, say), what the loop needs to know would end with it: capture the size.
    ``inside``: also in the body of a loop, of a result that all documents may have together."""
    frame = current_frame()
    symbolic = frame.options.symbolic_loops and group_is_on("symbolic-loops")
    wanted = frame.data_sizes is False and frame.mode is not Mode.STOCK
    if symbolic and wanted and (code_loops.loop_ahead(tx) or (inside and active.regions)):
        frame.only_numbers = frame.only_numbers or frame.mode is Mode.PROBE
        frame.mode, frame.data_sizes = Mode.SYMBOLIC, True
        raise restart("a result of a size that is data stands in front of a loop")
