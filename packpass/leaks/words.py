"""What people read about a leak: how far it reaches, and what to do."""

from __future__ import annotations

import torch

from packpass.probing.documents import PADDING, Documents, Hit

ADVICE: dict[str, str] = {
    "convolution": "give the convolution the boundaries (a causal convolution that takes seq_idx or cu_seqlens), or "
    "run it document by document; padding k - 1 slots between documents is enough for a causal kernel of k",
    "attention": "hand the boundaries to attention: varlen attention with cu_seqlens, a block-diagonal mask, or "
    "position_ids that restart, if the model derives its mask from them",
    "recurrence": "reset the state at every document's first slot: a kernel that takes cu_seqlens or seq_idx, or one "
    "call per document",
    "cumulative": "take the running value per document: subtract what it was before the document, or restart it",
    "shift": "shift inside documents: packpass.ops.packed_roll(x, cu_seqlens, shift, dim), or compile with "
    "packpass.backend, which rewrites such shifts; a token across a boundary needs the fill, not its neighbour",
    "order": "sort or select inside each document, for example with the document's number as the first key",
    "pooling": "reduce per document instead of along the row (segment_reduce, or a loop over documents)",
    "statistics": "statistics of a batch are shared by all tokens on purpose; use a norm per token to avoid them",
    "product": "this product sums over slots of all documents: mask it to one document, or batch by document",
    "pointwise": "it combines values of different slots: look at what was shifted, cut or carried over before it",
    "unknown": "make the operation stop at documents, or call it document by document",
}
PADDING_ADVICE = "mask padding in this operation, so that real tokens never read slots without one: "
BACKWARD_ADVICE = (
    "outputs are kept apart and gradients are not: the backward of this operation, or of the autograd.Function that it "
    "is in, must stop at documents as its forward does"
)
NOT_LOCATED = (
    "an output differs, but no call that was followed mixes documents: look for what cannot be followed (values that "
    "Python reads and goes on with, torch.vmap, numpy, a compiled kernel)"
)


def advice(kind: str, source: int) -> str:
    """What to do about an operation of this kind."""
    told = ADVICE.get(kind, ADVICE["unknown"])
    return PADDING_ADVICE + told if source == PADDING else told


def distance(documents: Documents, source: int, hit: Hit) -> str:
    """Where a document was seen from: in slots, counted from its edges."""
    if not len(hit.slots):
        return "inside the other document"
    if len(documents.grid) == 2:
        return _between_rows(documents, source, hit)
    if source == PADDING:
        return f"{_slots(len(hit.slots))} of documents"
    own = documents.slots(source)
    start, end = int(own.min()), int(own.max()) + 1
    real = (documents.flat != PADDING).nonzero()[:, 0]
    later, earlier = hit.slots[hit.slots >= end], hit.slots[hit.slots < start]
    if len(later) and not len(earlier):
        return _reach(later - end + 1, int((real >= end).sum()), "next", "later")
    if len(earlier) and not len(later):
        wrapped = end > int(real.max()) and len(earlier) <= 64 and int(earlier.max()) - int(real.min()) < len(earlier)
        if wrapped and start - int(earlier.max()) > len(earlier):
            return f"the first {_slots(len(earlier))} of the row (it wraps around)"
        return _reach(start - earlier, int((real < start).sum()), "previous", "earlier")
    return f"{_slots(len(earlier))} before and {_slots(len(later))} behind"


def _reach(distances: torch.Tensor, there: int, near: str, far: str) -> str:
    farthest = int(distances.max())
    if farthest == 1:
        return f"the {near} slot"
    if len(distances) >= 0.9 * there and there > 8:
        return f"all {far} slots"
    if farthest == len(distances):
        return f"the {near} {_slots(farthest)}"
    return f"{_slots(len(distances))}, up to {_slots(farthest)} {far}"


def _between_rows(documents: Documents, source: int, hit: Hit) -> str:
    width = documents.grid[1]
    if source == PADDING:
        return f"{_slots(len(hit.slots))} of real tokens"
    rows = {int(r) for r in (documents.slots(source) // width).unique().tolist()}
    other = {int(r) for r in (hit.slots // width).unique().tolist()} - rows
    return "slots of other rows" if other else "slots of the same row"


def _slots(number: int) -> str:
    return f"{number} slot" + ("" if number == 1 else "s")
