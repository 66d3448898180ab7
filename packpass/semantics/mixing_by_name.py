"""How an operation can let slots of one axis see each other, by its name alone: for advice, and for what mixes on
purpose. What really happens to the axes of a call is its `Meaning`; here a call need not be understood.
"""

from __future__ import annotations

from typing import Literal

from packpass.semantics import joins, products, reductions
from packpass.semantics.call import Call
from packpass.semantics.names import base_name
from packpass.semantics.pointwise import COPIES
from packpass.semantics.registry import family_of_name

MixingKind = Literal[
    "convolution",
    "attention",
    "recurrence",
    "cumulative",
    "shift",
    "order",
    "pooling",
    "statistics",
    "product",
    "pointwise",
    "unknown",
]

_KINDS: dict[str, MixingKind] = {
    **dict.fromkeys(("im2col", "unfold", "unfold_copy", "stft", "convolution"), "convolution"),
    **dict.fromkeys(
        ("scaled_dot_product_attention", "multi_head_attention_forward", "softmax", "log_softmax", "_safe_softmax"),
        "attention",
    ),
    **dict.fromkeys(("higher_order::flex_attention", "_native_multi_head_attention"), "attention"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "rnn", "higher_order::associative_scan"), "recurrence"),
    **dict.fromkeys(("higher_order::scan", "higher_order::while_loop"), "recurrence"),
    **dict.fromkeys(("roll", "flip", "fliplr", "flipud", "rot90", "pad", "diff"), "shift"),
    **dict.fromkeys(("sort", "argsort", "topk", "msort", "kthvalue"), "order"),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit"), "statistics"),
    **dict.fromkeys(("gather", "index_select", "take_along_dim", "getitem", "narrow", "slice", "select"), "shift"),
}
_FORM = frozenset(
    {"dim", "size", "stride", "numel", "is_floating_point", "is_complex", "is_contiguous", "element_size", "data_ptr"}
    | {"get_device", "storage_offset", "__len__", "ndimension", "nelement", "type", "is_inference", "register_hook"}
    | {"untyped_storage", "backward"}
)
_BY_FAMILY: dict[str, MixingKind] = {
    reductions.FAMILY: "pooling",
    products.FAMILY: "product",
    joins.FAMILY: "shift",
    "views": "shift",
    "indexing": "shift",
    "writes": "shift",
    "pointwise": "pointwise",
}
_MOVING = frozenset({"views", "indexing", joins.FAMILY})


def mixing_kind(op: str) -> MixingKind:
    """What kind of mixing an operation of this name does where it mixes slots."""
    op = base_name(op)
    if op in _KINDS:
        return _KINDS[op]
    if op in reductions.SCANS:
        return "cumulative"
    if "attention" in op or "attn" in op:
        return "attention"
    if op.startswith(("conv", "conv_transpose", "_conv_depthwise")):
        return "convolution"
    if "_pool" in op:
        return "pooling"
    return _BY_FAMILY.get(family_of_name(op), "unknown")


def moves_slots(op: str) -> bool:
    """Does an operation of this name put slots elsewhere, and nothing else? (``pad`` puts new ones beside them.)"""
    return family_of_name(base_name(op)) in _MOVING or copies(op)


def copies(op: str) -> bool:
    """Does an operation of this name hand on its operand slot by slot, perhaps in another type or place in memory?"""
    return base_name(op) in COPIES


def pads(op: str) -> bool:
    """Does an operation of this name put new slots beside those that there are?"""
    return op == "pad"


def joins_operands(op: str) -> bool:
    """Does an operation of this name put operands side by side?"""
    return family_of_name(base_name(op)) == joins.FAMILY and not pads(op)


def writes_an_item(op: str) -> bool:
    """Is this ``x[...] = y``, which gives no result?"""
    return base_name(op) == "setitem"


def looks_at_form(op: str) -> bool:
    """Does a method of this name look at the form of a tensor, not at what it holds?"""
    return op in _FORM


def is_slot_by_slot(op: str) -> bool:
    """Does an operation of this name compute every slot from the slots of its operands at the same place?"""
    return family_of_name(base_name(op)) == "pointwise"


def has_mask(call: Call) -> bool:
    """Is attention told by a mask which slots see which?"""
    return call.get("attn_mask", "mask", "key_padding_mask") is not None


def mixes_on_purpose(op: str) -> bool:
    """Statistics over a batch: that all tokens share them is what they are for."""
    return mixing_kind(op) == "statistics"


def addresses(op: str) -> bool:
    """Can operands of an operation of this name say which slot of another operand is read or written?"""
    op = base_name(op)
    return op in ("getitem", "setitem") or family_of_name(op) in ("lookups", "writes")


def makes_garbage(op: str) -> bool:
    """Does an operation of this name make memory that holds anything?"""
    return op in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
