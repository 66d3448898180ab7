"""Marker ops: how a captured document loop is written down in a Dynamo graph.

A symbolic loop over ``n`` documents appears in the graph as two traced iterations::

    i0 = loop_begin(n, id=1, it=0)       # an unbacked index, 0 <= i0 < n
    ...body of one iteration...
    loop_end(i0, id=1, it=0)
    i1 = loop_begin(n, id=1, it=1)
    ...the same body again, must be isomorphic...
    loop_end(i1, id=1, it=1)
    parts = list_collect(y0, y1, id=1)   # one per Python list the body appends to; y2, ... where branches make more
                                         # than two ways through the body, each of which is traced
    z = ragged_cat(parts, dim)           # torch.cat of that list (not ``alone``: of more, of which there is some even
                                         # where no document appends; ``empty``: of one that may have no entries, as it
                                         # leaves the graph, say); list_join where every part has the same size,
                                         # list_stack for torch.stack (``some``: used only where some document leaves
                                         # more than nothing), list_pad for pad_sequence,
                                         # list_diagonal for torch.block_diag, list_boundaries for the offsets of a
                                         # jagged tensor

``if cond: continue`` on data becomes ``loop_skip`` (``listed``: behind an append), ``assert cond`` on data
``loop_check``; ``loop_branch`` stands where the first iteration has followed any other branch one way and the second
the other. The markers never execute: ``passes/`` replaces them, or the loop is replayed, or the frame is traced again
as stock torch would. ``roll``, ``logsumexp``, ``cummax``, ``cummin`` and ``attention`` shadow torch's own while a loop
is traced, because the stock fakes guard on ``numel() == 0``, which no segment of unknown length can answer; ``chunk``
and ``reshape`` do because they ask whether a length divides (`packpass.capture.divisible`), ``pad`` to a width because
torch does not see that all documents have it then (`packpass.capture.widths`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from packpass._compat import current_shape_env, statically_known_true
from packpass.markers.sizes import attention_like, fresh_size, kept_size, part_like, ragged_like, sharing

_lib = torch.library.Library("packpass_capture", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_lib.define("loop_begin(SymInt length, int id, int it) -> SymInt", tags=_TAGS)
_lib.define("loop_end(SymInt index, int id, int it) -> ()", tags=_TAGS)
_lib.define("loop_skip(SymBool cond, bool skip_when, int id, int it, bool listed=False) -> ()", tags=_TAGS)
_lib.define("loop_skip.Tensor(Tensor cond, bool skip_when, int id, int it, bool listed=False) -> ()", tags=_TAGS)
_lib.define("loop_check(SymBool cond, str message, int id, int it) -> ()", tags=_TAGS)
_lib.define("loop_branch(SymBool cond, bool outcome, bool implied) -> ()", tags=_TAGS)
_lib.define("loop_branch.Tensor(Tensor cond, bool outcome, bool implied) -> ()", tags=_TAGS)
_lib.define("list_collect(Tensor first, Tensor second, int id, Tensor[]? others=None) -> Tensor", tags=_TAGS)
_lib.define("list_last(SymInt index, int id, int it, int number) -> SymInt", tags=_TAGS)
_lib.define(
    "list_continue(Tensor first, Tensor second, int id, SymInt last_first, SymInt last_second, int start) -> Tensor",
    tags=_TAGS,
)
_lib.define("list_get(Tensor collected, SymInt index) -> Tensor", tags=_TAGS)
_lib.define("ragged_cat(Tensor collected, int dim, bool alone=True, bool empty=False) -> Tensor", tags=_TAGS)
_lib.define("list_stack(Tensor collected, int dim, SymInt length, bool some=False) -> Tensor", tags=_TAGS)
_lib.define("list_join(Tensor collected, int dim, SymInt length, bool some=False) -> Tensor", tags=_TAGS)
_lib.define("list_pad(Tensor collected, SymInt length, bool batch_first, float value, str side) -> Tensor", tags=_TAGS)
_lib.define("list_diagonal(Tensor collected) -> Tensor", tags=_TAGS)
_lib.define("list_boundaries(Tensor collected, SymInt length, int dim=0) -> Tensor", tags=_TAGS)
_lib.define("split_get(Tensor x, Tensor lengths, SymInt index, int dim) -> Tensor", tags=_TAGS)
_lib.define("segment(Tensor x, Tensor boundaries, SymInt index, int dim) -> Tensor", tags=_TAGS)
_lib.define("roll(Tensor x, int[] shifts, int[] dims) -> Tensor", tags=_TAGS)

_lib.define("masked(Tensor row, Tensor mask, Tensor? all, Tensor? lengths) -> Tensor", tags=_TAGS)
_lib.define(
    "masked_put(Tensor(a!) row, Tensor mask, Tensor value, Tensor? all, Tensor? lengths) -> ()",
    tags=_TAGS,
)
_lib.define("chunk(Tensor x, int chunks, int dim) -> Tensor[]", tags=_TAGS)
_lib.define("pieces(Tensor x, int chunks, int dim) -> Tensor[]", tags=_TAGS)
_lib.define("reshape(Tensor x, SymInt[] sizes) -> Tensor", tags=_TAGS)
_lib.define("pad(Tensor x, SymInt[] pad, str mode, Scalar? value, SymInt width) -> Tensor", tags=_TAGS)
_lib.define("last_slot(Tensor x, int dim) -> Tensor", tags=_TAGS)
_lib.define("as_wide(Tensor x, int dim, SymInt width) -> Tensor", tags=_TAGS)
_lib.define("boundaries(Tensor cu_seqlens) -> ()", tags=_TAGS)
_lib.define("last_boundary(Tensor cu_seqlens, SymInt size, bool outcome) -> ()", tags=_TAGS)
_lib.define("logsumexp(Tensor x, int[] dims, bool keepdim) -> Tensor", tags=_TAGS)
_lib.define("cummax(Tensor x, int dim) -> (Tensor values, Tensor indices)", tags=_TAGS)
_lib.define("cummin(Tensor x, int dim) -> (Tensor values, Tensor indices)", tags=_TAGS)
_lib.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, "
    "float? scale, bool enable_gqa) -> Tensor",
    tags=_TAGS,
)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Torch's own, with positional arguments only."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def pad(x: torch.Tensor, pad: list[int], mode: str, value: float | None, width: int) -> torch.Tensor:
    """Torch's own; ``width`` is what the one dimension that is padded is taken to be padded to."""
    return torch.nn.functional.pad(x, pad, mode, value)


def last_slot(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The last slot alone, as a dimension of size 1."""
    return x.select(dim, -1).unsqueeze(dim)


def as_wide(x: torch.Tensor, dim: int, width: int) -> torch.Tensor:
    """The tensor as it is."""
    return x


_ns = torch.ops.packpass_capture
NO_DOCUMENTS = "packpass: cu_seqlens has no document"
NO_SLOTS = "packpass: a row of documents has no slot"
"""The messages of checks on the host; what fails them runs as it is written, on every device."""
LOOP_BEGIN = _ns.loop_begin.default
LOOP_END = _ns.loop_end.default
LOOP_SKIP = (_ns.loop_skip.default, _ns.loop_skip.Tensor)
LOOP_CHECK = _ns.loop_check.default
LOOP_BRANCH = (_ns.loop_branch.default, _ns.loop_branch.Tensor)
"""The condition of a branch, and which way this iteration goes; ``implied``: because another branch goes its way, which
says so only if both ask for a document's length. Else nothing for those who do not ask."""
LIST_COLLECT = _ns.list_collect.default


def collected(values: Sequence[Any], id: int) -> tuple[Any, ...]:
    """The arguments of `LIST_COLLECT`, given what each traced iteration leaves."""
    first, second, *others = values
    return (first, second, id, others) if others else (first, second, id)


def collected_in(collect: Any, which: int) -> Any:
    """What the traced iteration with that number leaves in such a list."""
    return collect.args[which] if which < 2 else collect.args[3][which - 2]


LIST_LAST = _ns.list_last.default
"""The last entry of a list of numbers, before a document adds its own."""
LIST_CONTINUE = _ns.list_continue.default
"""`LIST_COLLECT` of such a list; ``start``: the last entry before the loop."""
LIST_GET = _ns.list_get.default
RAGGED_CAT = _ns.ragged_cat.default
LIST_STACK = _ns.list_stack.default
LIST_JOIN = _ns.list_join.default
LIST_PAD = _ns.list_pad.default
LIST_DIAGONAL = _ns.list_diagonal.default
LIST_BOUNDARIES = _ns.list_boundaries.default
"""Where each entry begins and ends in the row that the entries are together, from 0 on."""
SPLIT_GET = _ns.split_get.default
SEGMENT = _ns.segment.default
"""Put in by passes: ``x`` between two neighbouring boundaries, a view."""
MASKED, MASKED_PUT = _ns.masked.default, _ns.masked_put.default
"""``row[mask]`` and ``row[mask] = value`` of a padded row; passes add the mask of ``all`` rows and its ``lengths``."""
ROLL = _ns.roll.default
LOGSUMEXP, CUMMAX, CUMMIN = _ns.logsumexp.default, _ns.cummax.default, _ns.cummin.default
ATTENTION = _ns.attention.default
CHUNK, RESHAPE = _ns.chunk.default, _ns.reshape.default
PIECES = _ns.pieces.default
"""``chunk`` of a document, of which the program takes pieces by their numbers: these must be there, the others need
not."""
PAD = _ns.pad.default
LAST_SLOT = _ns.last_slot.default
"""``x[-1:]`` of a document behind a branch, where it is taken to have a slot."""
AS_WIDE = _ns.as_wide.default
"""A document that a branch has found to be no shorter than ``width``, where all others are as wide."""
VIEWS = (CHUNK, PIECES, RESHAPE, LAST_SLOT, AS_WIDE)
"""Those that stand for views, which an op of this kind must not return."""
SHADOWS: dict[Any, Callable[..., Any]] = {
    ATTENTION: scaled_dot_product_attention,
    ROLL: torch.roll,
    LOGSUMEXP: torch.logsumexp,
    CUMMAX: torch.cummax,
    CUMMIN: torch.cummin,
    CHUNK: torch.chunk,
    PIECES: torch.chunk,
    RESHAPE: torch.reshape,
    PAD: pad,
    LAST_SLOT: last_slot,
    AS_WIDE: as_wide,
}
"""Marker -> what it stands for; with the same positional arguments."""
BOUNDARIES = _ns.boundaries.default
"""Keeps an input that only the passes will use."""
LAST_BOUNDARY = _ns.last_boundary.default
"""``cu_seqlens[-1] == size`` is taken to have this outcome; a loop whose documents fill a row proves it."""
LIST_USES = (LIST_GET, RAGGED_CAT, LIST_STACK, LIST_JOIN, LIST_PAD, LIST_DIAGONAL, LIST_BOUNDARIES)
MARKERS = frozenset(
    {LOOP_BEGIN, LOOP_END, *LOOP_SKIP, LOOP_CHECK, LIST_COLLECT, LIST_LAST, LIST_CONTINUE, *LIST_USES}
    | {SPLIT_GET, SEGMENT, LAST_BOUNDARY, MASKED, MASKED_PUT}
)


def is_of_capture(node: Any) -> bool:
    """Is it a call of capture's own? Its fake result has memory of its own, and yet it may be a view."""
    return str(node.target).startswith("packpass_capture.")


# Dynamo removes unused nodes before the backend sees the graph; the structure of a loop must survive that.
for _op in (LOOP_BEGIN, LOOP_END, *LOOP_SKIP, LOOP_CHECK, *LOOP_BRANCH, BOUNDARIES, LAST_BOUNDARY, MASKED_PUT):
    has_side_effect(_op)


def _never(*args: object) -> None:
    raise RuntimeError(
        "packpass: a loop marker reached execution; please report this with the output of `packpass doctor`"
    )


for _name in (
    "loop_begin",
    "loop_end",
    "loop_skip",
    "loop_skip.Tensor",
    "loop_check",
    "loop_branch",
    "loop_branch.Tensor",
    "list_collect",
    "list_last",
    "list_continue",
    "list_get",
    "ragged_cat",
    "list_stack",
    "list_join",
    "list_pad",
    "list_diagonal",
    "list_boundaries",
    "split_get",
    "segment",
    "last_boundary",
    "masked",
    "masked_put",
):
    _lib.impl(_name, _never, "CompositeExplicitAutograd")
for _shadow, _original in SHADOWS.items():
    if _shadow in VIEWS:
        _lib.impl(_shadow.name().partition("::")[2], _never, "CompositeExplicitAutograd")
        continue
    _lib.impl(_shadow.name().partition("::")[2], _original, "CompositeExplicitAutograd")


@torch.library.register_fake("packpass_capture::loop_begin", lib=_lib)
def _(length: int, id: int, it: int) -> torch.SymInt:
    index = current_shape_env().create_unbacked_symint()
    torch._check(index >= 0)
    if not isinstance(length, int) or length > 1:  # of a number that can only be 0, torch makes a constant
        torch._check(index < length)
    return index


_lib.impl("boundaries", lambda cu_seqlens: None, "CompositeExplicitAutograd")
torch.library.register_fake("packpass_capture::boundaries", lambda cu_seqlens: None, lib=_lib)
torch.library.register_fake("packpass_capture::last_boundary", lambda cu_seqlens, size, outcome: None, lib=_lib)
torch.library.register_fake("packpass_capture::loop_end", lambda index, id, it: None, lib=_lib)
torch.library.register_fake("packpass_capture::loop_skip", lambda cond, skip_when, id, it, listed=False: None, lib=_lib)
torch.library.register_fake(
    "packpass_capture::loop_skip.Tensor", lambda cond, skip_when, id, it, listed=False: None, lib=_lib
)
torch.library.register_fake("packpass_capture::loop_check", lambda cond, message, id, it: None, lib=_lib)
torch.library.register_fake("packpass_capture::loop_branch", lambda cond, outcome, implied: None, lib=_lib)
torch.library.register_fake("packpass_capture::loop_branch.Tensor", lambda cond, outcome, implied: None, lib=_lib)
torch.library.register_fake(
    "packpass_capture::list_collect",
    lambda first, second, id, others=None: sharing(first, ragged_like(first, (), (second, *(others or ())))),
    lib=_lib,
)
torch.library.register_fake(
    "packpass_capture::list_last",
    lambda index, id, it, number: current_shape_env().create_unbacked_symint(),
    lib=_lib,
)
torch.library.register_fake(
    "packpass_capture::list_continue",
    lambda first, second, id, last_first, last_second, start: ragged_like(first, (), (second,)),
    lib=_lib,
)
torch.library.register_fake(
    "packpass_capture::list_get", lambda collected, index: sharing(collected, ragged_like(collected)), lib=_lib
)
torch.library.register_fake(
    "packpass_capture::ragged_cat",
    lambda collected, dim, alone=True, empty=False: ragged_like(collected, total=dim % collected.dim()),
    lib=_lib,
)


@torch.library.register_fake("packpass_capture::list_stack", lib=_lib)
def _(collected: torch.Tensor, dim: int, length: int, some: bool = False) -> torch.Tensor:
    at = dim % (collected.dim() + 1)
    return collected.new_empty([*collected.shape[:at], length, *collected.shape[at:]])


@torch.library.register_fake("packpass_capture::list_join", lib=_lib)
def _(collected: torch.Tensor, dim: int, length: int, some: bool = False) -> torch.Tensor:
    sizes = list(collected.shape)
    sizes[dim] = sizes[dim] * length
    return collected.new_empty(sizes)


@torch.library.register_fake("packpass_capture::list_pad", lib=_lib)
def _(collected: torch.Tensor, length: int, batch_first: bool, value: float, side: str) -> torch.Tensor:
    sizes = (length, fresh_size()) if batch_first else (fresh_size(), length)
    return collected.new_empty([*sizes, *collected.shape[1:]])


@torch.library.register_fake("packpass_capture::list_diagonal", lib=_lib)
def _(collected: torch.Tensor) -> torch.Tensor:
    size = fresh_size()
    return collected.new_empty((size, size))


@torch.library.register_fake("packpass_capture::list_boundaries", lib=_lib)
def _(collected: torch.Tensor, length: int, dim: int = 0) -> torch.Tensor:
    return collected.new_empty((length + 1,), dtype=torch.int64)


torch.library.register_fake(
    "packpass_capture::split_get",
    lambda x, lengths, index, dim: sharing(x, part_like(x, lengths, index, dim)),
    lib=_lib,
)
torch.library.register_fake(
    "packpass_capture::segment",
    lambda x, boundaries, index, dim: sharing(x, ragged_like(x, (dim % x.dim(),))),
    lib=_lib,
)


torch.library.register_fake(
    "packpass_capture::masked",
    lambda row, mask, all, lengths: row.new_empty([kept_size(mask), *row.shape[1:]]),
    lib=_lib,
)
torch.library.register_fake("packpass_capture::masked_put", lambda row, mask, value, all, lengths: None, lib=_lib)


def _parts(x: torch.Tensor, chunks: int, dim: int) -> list[torch.Tensor]:
    sizes: list[int | torch.SymInt] = list(x.shape)
    whole = sizes[dim]
    sizes[dim] = whole // chunks if statically_known_true(whole % chunks == 0) else fresh_size()
    # There may be hundreds of parts, and the methods of a tensor take twice as long.
    return [sharing(x, torch.empty(sizes, dtype=x.dtype, device=x.device)) for _ in range(chunks)]


for _name in ("chunk", "pieces"):
    torch.library.register_fake(f"packpass_capture::{_name}", _parts, lib=_lib)


@torch.library.register_fake("packpass_capture::reshape", lib=_lib)
def _(x: torch.Tensor, sizes: Sequence[int | torch.SymInt]) -> torch.Tensor:
    return sharing(x, x.new_empty([fresh_size() if type(size) is int and size == -1 else size for size in sizes]))


@torch.library.register_fake("packpass_capture::pad", lib=_lib)
def _(x: torch.Tensor, pad: Sequence[int], mode: str, value: float | None, width: int) -> torch.Tensor:
    sizes: list[int | torch.SymInt] = list(x.shape)
    for i in range(len(pad) // 2):
        if not all(type(amount) is int and amount == 0 for amount in pad[2 * i : 2 * i + 2]):
            sizes[-1 - i] = width
    return x.new_empty(sizes)


@torch.library.register_fake("packpass_capture::last_slot", lib=_lib)
def _(x: torch.Tensor, dim: int) -> torch.Tensor:
    return sharing(x, x.new_empty([1 if d == dim else size for d, size in enumerate(x.shape)]))


@torch.library.register_fake("packpass_capture::as_wide", lib=_lib)
def _(x: torch.Tensor, dim: int, width: int) -> torch.Tensor:
    return sharing(x, x.new_empty([width if d == dim else size for d, size in enumerate(x.shape)]))


# Strides of a roll are those of a fresh contiguous tensor, as in eager.
torch.library.register_fake("packpass_capture::roll", lambda x, shifts, dims: x.new_empty(x.shape), lib=_lib)
torch.library.register_fake(
    "packpass_capture::logsumexp",
    lambda x, dims, keepdim: torch.sum(x if x.is_floating_point() else x.float(), dims, keepdim),
    lib=_lib,
)
for _name in ("cummax", "cummin"):
    torch.library.register_fake(
        f"packpass_capture::{_name}",
        lambda x, dim: (x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int64)),
        lib=_lib,
    )
torch.library.register_fake(
    "packpass_capture::attention",
    lambda query, key, value, mask, dropout_p, is_causal, scale=None, enable_gqa=False: attention_like(
        query, *(() if enable_gqa else (key,)), value=value
    ),
    lib=_lib,
)
