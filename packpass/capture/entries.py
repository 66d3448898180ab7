"""A list of numbers that a loop has made, one per document, as one tensor.

::

    bounds = [int(b) for b in cu_seqlens]
    lengths = [e - s for s, e in zip(bounds[:-1], bounds[1:])]

Each number is made from entries of tensors at the document's index; the list is made from the tensors in the same way:
``cu_seqlens[1:] - cu_seqlens[:-1]``. Both traced iterations must say so.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols, hint_of
from packpass.capture import row_numbers
from packpass.capture.dynamo import SymNodeVariable, call, constant, emit, size_of
from packpass.capture.origins import expression_of
from packpass.capture.state import current_frame
from packpass.markers.entries import is_vector, place_of, read_from
from packpass.markers.lengths import Steps, length_of
from packpass.semantics import example as example_of
from packpass.semantics import storage
from packpass.semantics.effects import written_inputs
from packpass.semantics.integers import ROW_BITS, SIDE_BITS, SMALL

if TYPE_CHECKING:
    from packpass.capture.dynamo import InstructionTranslatorBase
    from packpass.capture.region import Region

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
EXTREMES = {torch.sym_max: torch.maximum, torch.sym_min: torch.minimum}
"""The larger and the smaller of two numbers, and the same of vectors."""
_OF_TENSORS = (operator.add, operator.sub)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_OF_TWO = (*ARITHMETIC, *COMPARISONS, *EXTREMES)


def list_of(region: Region, values: list[Any]) -> Any:
    """The tensor variable that holds such a list; None if ``values``, one of each traced iteration, are no such
    numbers."""
    if not all(isinstance(value, SymNodeVariable) for value in values):
        return None
    nodes = [value.as_proxy().node for value in values]
    made = [made_of(node, index, region.indices[0]) for node, index in zip(nodes, region.indices, strict=True)]
    if any(expression is None or expression != made[0] for expression in made):
        return None
    vector = numbers_made(region.tx, made[0], region.length)
    return None if vector is None else emit(region.tx, "clone", vector, method=True)


def numbers_made(tx: InstructionTranslatorBase, made: Any, length: Any) -> Any:
    """The proxy of the numbers of ``length`` documents, made in that way; None if they are not found, or all the
    same."""
    vector = _emit(tx, made, length) if _bits(made) < 64 else None
    return vector if vector is not None and _is_tensor(vector) else None


def divides(made: Any) -> bool:
    """Is a number of the document what another one is divided by? Where a branch leaves out that it is 0, that must not
    be worked out for all documents."""
    if not isinstance(made, tuple) or isinstance(made[0], str):
        return False
    what, *parts = made
    return (what in (operator.floordiv, operator.mod) and isinstance(parts[1], tuple)) or any(map(divides, parts))


def made_of(node: Any, index: fx.Node, begin: fx.Node) -> Any:
    """How a number is made in the iteration with that index; None if in another way than these. ``begin``: the index of
    the first iteration. Tensors are named by their nodes, whose names are the same when the frame is traced again.

    An int; ``("size", expression, None)``, a size of the graph's inputs, which all documents share;
    ``("lengths", name, steps)``; ``("entry", tensor, ahead)``, the tensor's entry at the index plus ``ahead``;
    ``("column", matrix, column)``, an entry of the matrix' row at the index; ``(function, first, second)`` of such.
    """
    if not isinstance(node, fx.Node):
        return node if type(node) is int else None
    size = node.meta.get("example_value")
    if isinstance(size, torch.SymFloat):
        return None
    if isinstance(size, torch.SymInt) and not free_unbacked_symbols(size):
        return ("size", str(size.node.expr), None)
    if node.target is torch.sym_int:
        return made_of(node.args[0], index, begin)
    lengths = length_of(node, index)
    if lengths is not None:
        return ("lengths", *lengths)
    if node.target in _OF_TWO and node.op == "call_function" and len(node.args) == 2:
        parts = [made_of(arg, index, begin) for arg in node.args]
        return None if any(part is None for part in parts) else (node.target, *parts)
    if _is_size(node):
        return made_of(_asked_for(node, index), index, begin)
    read = read_from(node)
    column = _column(read, index, begin)
    if column is not None:
        return ("column", *column)
    return None if read is None else made_of_tensor(read, index, begin)


def _is_size(node: fx.Node) -> bool:
    """Is a tensor asked for a size?"""
    made = node.args[0] if node.target is operator.getitem else None
    of_all = isinstance(made, fx.Node) and made.target == "size"
    return of_all or node.target == "size" or node.target is torch.ops.aten.sym_size.int


def _asked_for(size: fx.Node, index: fx.Node) -> fx.Node | None:
    """The number that a tensor of the body was made as large as: ``h * w`` for ``arange(h * w).shape[0]``."""
    expression, node = str(size.meta["example_value"]), size.prev
    while node is not index and node.op != "root":
        value = node.meta.get("example_value")
        number = isinstance(value, torch.SymInt) and not _is_size(node)
        if number and str(value) == expression:
            return node
        node = node.prev
    return None


def made_of_tensor(read: Any, index: fx.Node, begin: fx.Node) -> Any:
    """The same of a tensor of one integer: an entry, or the sum or the difference of such."""
    fake = example_of(read)
    if isinstance(fake, torch.Tensor) and fake.is_floating_point():
        return None
    wide = isinstance(fake, torch.Tensor) and fake.dtype is torch.int64  # as Python's numbers
    known = ARITHMETIC if wide else _OF_TENSORS
    if isinstance(read, fx.Node) and read.op == "call_function" and read.target in known:
        parts = [arg if type(arg) is int else made_of_tensor(arg, index, begin) for arg in read.args]
        return None if any(part is None for part in parts) else (read.target, *parts)
    column = _column(read, index, begin)
    if column is not None:
        return ("column", *column)
    entry = entry_of(read, index, begin)
    return None if entry is None else ("entry", *entry)


def entry_of(read: Any, index: fx.Node, begin: fx.Node) -> tuple[str, int] | None:
    """``(name, ahead)`` of the vector, the same for all documents, of which ``read`` is the entry at the index plus
    ``ahead``."""
    found = place_of(read)
    ahead = None if found is None else _ahead(found[1], index)
    if found is None or ahead is None or not is_constant(found[0], begin):
        return None
    return row_numbers.name_of(found[0]), ahead


def _column(read: Any, index: fx.Node, begin: fx.Node) -> tuple[str, int] | None:
    """The matrix and the column of which ``read`` is the entry at the index."""
    if not isinstance(read, fx.Node) or read.target is not operator.getitem or type(read.args[1]) is not int:
        return None
    row: Any = read.args[0]
    if not isinstance(row, fx.Node) or row.target is not torch.select or row.args[1:] != (0, index) or row.kwargs:
        return None
    matrix: Any = row.args[0]
    column: Any = read.args[1]
    known = isinstance(matrix, fx.Node) and is_vector(matrix, rank=2) and is_constant(matrix, begin)
    return (matrix.name, column) if known else None


def _ahead(at: Any, index: fx.Node) -> int | None:
    """k if a position is ``index + k``."""
    if at is index:
        return 0
    if not isinstance(at, fx.Node) or at.target is not operator.add or len(at.args) != 2:
        return None
    first, second = at.args
    number = second if first is index else first if second is index else None
    return number if type(number) is int else None


def is_constant(tensor: fx.Node, begin: fx.Node) -> bool:
    """Was a tensor there before the loop, and does the body leave its memory alone?"""
    memory = storage(tensor)
    node: Any = begin
    while node.op != "root":
        if any(storage(written) in (memory, None) for written in written_inputs(node)):
            return False
        node = node.next
    return bool(tensor < begin)


def vector_of(tx: InstructionTranslatorBase, made: Any, length: Any) -> Any:
    """The proxy of the numbers of ``length`` documents, made in that way; None if they are not found, or all the
    same."""
    vector = (
        None if isinstance(made, int) or _bits(made) > 63 else _emit(tx, made, length if holds_entries(made) else None)
    )
    return vector if vector is not None and _is_tensor(vector) else None


def holds_entries(made: Any) -> bool:
    """Is a number made from entries of a tensor, of which there may be more than documents?"""
    return isinstance(made, tuple) and (made[:1] == ("entry",) or any(holds_entries(part) for part in made[1:]))


def stand_in(tx: InstructionTranslatorBase, name: str | None, length: Any) -> Any:
    """``length + 1`` numbers in the place of those that a vector of another length makes, which a loop in front goes by
    that is the same in the code; None if there is no such vector."""
    other = None if name is None else node_called(tx, name)
    if other is None:
        return None
    size = call(tx, operator.add, length, constant(1)).as_proxy()
    return emit(tx, "new_zeros", emit(tx, "long", other, method=True).as_proxy(), size, method=True)


def tensor_in(made: Any) -> str | None:
    """The name of a tensor of whose entries a number is made."""
    if not isinstance(made, tuple):
        return None
    return made[1] if made[:1] == ("entry",) else next(filter(None, map(tensor_in, made[1:])), None)


def _emit(tx: InstructionTranslatorBase, made: Any, length: Any) -> Any:
    """The proxy of all documents' numbers, or the int that they all are; None if a tensor has no such entries."""
    if isinstance(made, int):
        return made
    what, first, second = made
    if what == "size":
        return _size(tx, first)
    if what == "lengths":
        vector = stepped(tx, first, second)
        return vector if vector is None or length is None else _cut(tx, vector.node, 0, length)  # or of boundaries
    if what in ("column", "entry"):
        found = node_called(tx, first)
        if found is None:
            return None
        return _column_of(tx, found.node, second) if what == "column" else _cut(tx, found.node, second, length)
    uncut = _entry_by_number(first, second)
    if uncut is not None:
        found = node_called(tx, uncut[0])
        return None if found is None else _cut(tx, found.node, uncut[1], length, (what, second))
    parts = [_emit(tx, part, length) for part in (first, second)]
    if any(part is None for part in parts) or not any(_is_tensor(part) for part in parts):
        return None
    return _computed(tx, what, *parts)


def _bits(made: Any) -> int:
    """How many bits hold such a number: those of Python have no end."""
    if isinstance(made, int):
        return made.bit_length()
    what, first, second = made
    if what == "lengths":
        return ROW_BITS + sum(by.bit_length() for op, by in second if op is operator.mul)
    if isinstance(what, str):
        return SIDE_BITS if what == "column" else ROW_BITS
    if what in COMPARISONS:
        return 1
    one, other = _bits(first), _bits(second)
    return one + other if what is operator.mul else max(one, other) + (what in _OF_TENSORS)


def _computed(tx: InstructionTranslatorBase, function: Any, *parts: Any) -> Any:
    """The proxy of what a function makes of numbers of all documents, in 64 bits where 32 may be too few for what
    Python's numbers hold."""
    vectors = [part for part in parts if _is_tensor(part)]
    if function in EXTREMES and len(vectors) == 1:
        (limit,) = (part for part in parts if not _is_tensor(part))
        limits = (limit,) if function is torch.sym_max else (None, limit)
        return emit(tx, torch.clamp, *vectors, *limits).as_proxy()
    function = EXTREMES.get(function, function)
    numbers = [part for part in parts if isinstance(part, int)]
    product = function is operator.mul and not numbers
    if product or any(abs(number) > SMALL for number in numbers):
        parts = tuple(emit(tx, "long", p, method=True).as_proxy() if _is_tensor(p) else p for p in parts)
    return emit(tx, function, *parts).as_proxy()


def _is_tensor(part: Any) -> bool:
    return not isinstance(part, int) and isinstance(part.node.meta.get("example_value"), torch.Tensor)


def _size(tx: InstructionTranslatorBase, expression: str) -> Any:
    """The proxy of a size that is known without a document's numbers; None if there is none."""
    tracer = tx.output.current_tracer
    for node in tracer.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt) and str(value.node.expr) == expression:
            return tracer.proxy(node)
    return None


def entries_ahead(tx: InstructionTranslatorBase, name: str, ahead: int, length: Any) -> Any:
    """The proxy of the vector of that name from entry ``ahead`` on, one entry per document; None if it has others."""
    vector = node_called(tx, name)
    return None if vector is None else _cut(tx, vector.node, ahead, length)


def node_called(tx: InstructionTranslatorBase, name: str) -> Any:
    """The proxy of the graph's node of that name; None if there is none."""
    tracer = tx.output.current_tracer
    unread = tx.output.root_tx.symbolic_locals.get(name.removeprefix("l_").removesuffix("_"))
    if unread is not None:  # an argument that only the body looks at is no node of the graph yet
        unread.realize()
    node = next((n for n in tracer.graph.nodes if n.name == name), None)
    return row_numbers.called(tx, name) if node is None else tracer.proxy(node)


def _column_of(tx: InstructionTranslatorBase, matrix: fx.Node, column: int) -> Any:
    """``matrix[:, column]``, as numbers of 64 bits."""
    vector = emit(tx, torch.select, tx.output.current_tracer.proxy(matrix), 1, column).as_proxy()
    return emit(tx, "long", vector, method=True).as_proxy()


def _entry_by_number(first: Any, second: Any) -> Any:
    """``(tensor, ahead)`` if a number is made of an entry of a tensor and a constant: a quotient of all entries is the
    boundaries that the passes look for; one of those without the last is another for each list that is made."""
    entry = isinstance(first, tuple) and first[0] == "entry" and isinstance(second, int)
    return first[1:] if entry else None


def _cut(
    tx: InstructionTranslatorBase, tensor: fx.Node, ahead: int, length: Any, step: tuple[Any, int] | None = None
) -> Any:
    """``tensor[ahead : ahead + number of documents]``, as numbers of 64 bits, which hold what Python's do here; after
    ``step``, a function and the number that it takes with each of them."""
    fake = tensor.meta["example_value"]
    documents = size_of(length)
    more = documents + ahead - fake.shape[0]
    if not free_unbacked_symbols(more) and hint_of(more) == 0 and bool(more == 0):
        more = 0  # settled by a guard, as adding two tensors of these sizes would
    stop = expression_of(more)
    data = bool(free_unbacked_symbols(more)) and bool(current_frame().counts or current_frame().stops)
    told = not stop.is_Integer and (data or _is_told(more))  # the rest is padding
    if ahead < 0 or (not told and (not stop.is_Integer or stop > 0)):
        return None
    vector = emit(tx, "long", tx.output.current_tracer.proxy(tensor), method=True).as_proxy()
    if step is not None:
        vector = _computed(tx, step[0], vector, step[1])
    if ahead == 0 and stop == 0:
        return vector
    if data:  # as many as there are documents: with fewer entries the program would fail, too
        return emit(tx, torch.narrow, vector, 0, ahead, length.as_proxy()).as_proxy()
    end = call(tx, operator.add, length, constant(ahead)).as_proxy() if told else int(stop) or None
    return emit(tx, operator.getitem, vector, slice(ahead or None, end)).as_proxy()


def _is_told(more: Any) -> bool:
    """Is it a number that the model is given how many documents there are, and do their entries lie in a vector, of
    which ``more`` would be needed? That is settled by a guard."""
    if not current_frame().counts or free_unbacked_symbols(more) or (hint_of(more) or 0) >= 0:
        return False
    return bool(more <= 0)


def stepped(tx: InstructionTranslatorBase, lengths: str, steps: Steps) -> Any:
    """The proxy of all lengths after the steps; None if there is no such node."""
    vector = node_called(tx, lengths)
    if vector is None or vector.node.target != "clone":
        return None
    for op, by in steps:
        vector = _computed(tx, op, vector, by)
    return vector
