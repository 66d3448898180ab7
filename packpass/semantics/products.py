"""Sums of products: each is a formula of letters, as for einsum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from packpass.semantics.call import Call
from packpass.semantics.meaning import (
    ONE,
    UNKNOWN,
    Addressed,
    Axis,
    Contracted,
    Entry,
    Meaning,
    Mixed,
    Relating,
    Role,
    Traits,
    is_one,
    meaning,
    same_size,
)

FAMILY = "products"
_REORDERS = Traits(reorders=True)
MATMULS = frozenset({"matmul", "mm", "bmm", "mv", "dot"})
"""``a @ b``, for operands of any number of axes or of a certain one."""


def formula(
    call: Call,
    inputs: Sequence[str],
    output: str,
    *,
    mixed: str = "",
    family: str = FAMILY,
    traits: Traits = _REORDERS,
    item: int = 0,
) -> Meaning | None:
    """The meaning of ``inputs -> output`` in letters, one word for every operand of the call.

    ``...`` stands for axes that line up from the right. Letters that the output lacks are contracted, those in
    ``mixed`` mixed. An axis of one slot meets all of a longer one.
    """
    relating = Relating(call, item)
    relation = related(relating, inputs, output, mixed)
    return meaning(family, relating.done(), traits) if relation else None


def related(relating: Relating, inputs: Sequence[str], output: str, mixed: str) -> bool:
    """Sets the axes of a relation by a formula; False if it does not fit the operands."""
    call = relating.call
    if len(inputs) != len(call.operands) or not isinstance(call.results[relating.item], torch.Tensor):
        return False
    words = [letters_of(word, operand.rank) for word, operand in zip(inputs, call.operands, strict=True)]
    out = letters_of(output, call.results[relating.item].dim())
    if out is None or any(word is None for word in words):
        return False
    loops: dict[str, tuple[int, ...]] = {}
    for letter, size in zip(out, call.results[relating.item].shape, strict=True):
        if letter in loops:
            return False
        loops[letter] = () if is_one(size) else (relating.loop(size, Mixed(call.op) if letter in mixed else None),)
    for k, (word, operand) in enumerate(zip(words, call.operands, strict=True)):
        axes = []
        for letter, size in zip(word or (), operand.value.shape, strict=True):
            axes.append(_axis(relating, loops, letter, size, mixed))
        # The diagonal of an operand: each of its axes sees the same letter, and none of them is that letter alone.
        twice = {letter for letter in word or () if (word or ()).count(letter) > 1}
        axes = [Axis((), UNKNOWN) if letter in twice else a for letter, a in zip(word or (), axes, strict=True)]
        relating.axes[k] = tuple(axes)
    relating.result = [loops[letter] for letter in out]
    return True


def _axis(relating: Relating, loops: dict[str, tuple[int, ...]], letter: str, size: object, mixed: str) -> Axis:
    """An axis by its letter; one that no output has makes a loop when the first longer axis comes."""
    if is_one(size):
        return ONE
    if letter not in loops:
        role: Role = Mixed(relating.call.op) if letter in mixed else Contracted(relating.call.op)
        loops[letter] = (relating.loop(size, role),)
    known = loops[letter]
    if known and same_size(size, relating.sizes[known[0]]):
        return Axis(known)
    return Axis((), UNKNOWN)


def letters_of(word: str, rank: int) -> list[str] | None:
    """One letter for every axis; those of ``...`` are counted from the right."""
    left, dots, right = word.partition("...")
    named = len(left) + len(right)
    if not dots:
        return list(word) if len(word) == rank else None
    return [*left, *(f".{i}" for i in range(rank - named, 0, -1)), *right] if rank >= named else None


# === The operations ==========================================================================================


def _matmul(call: Call) -> Meaning | None:
    """...ik, ...kj -> ...ij; vectors lack an axis."""
    if len(call.operands) != 2:
        return None
    a, b = (operand.rank for operand in call.operands)
    if a == 1 or b == 1:
        left = "k" if a == 1 else "...ik"
        right = "k" if b == 1 else ("...kj" if a == 1 else "k")
        both = {(True, True): "", (True, False): "...j", (False, True): "...i"}[(a == 1, b == 1)]
        return formula(call, (left, right), both)
    return formula(call, ("...ik", "...kj"), "...ij")


def _added(*words: str) -> Entry:
    """``addmm`` and its like: something that lines up with the product is added."""

    def entry(call: Call) -> Meaning | None:
        if len(call.operands) != 3 or call.operands[0].argument != "input":
            return None
        out = words[-1]
        rank = call.operands[0].rank
        return formula(call, (out[len(out) - rank :] if rank else "", *words[:-1]), out)

    entry.__doc__ = f"{words[-1]} + {', '.join(words[:-1])} -> {words[-1]}"
    return entry


def _linear(call: Call) -> Meaning | None:
    """...i, oi, o -> ...o"""
    weight = call.operands[1].rank if len(call.operands) > 1 else 0
    words = ["...i", "oi" if weight == 2 else "i"] + (
        ["o" if call.operands[2].rank else ""] if len(call.operands) > 2 else []
    )
    return formula(call, words, "...o" if weight == 2 else "...")


def words_of(call: Call) -> list[str] | None:
    """The formula of an einsum, a word for every operand and one for the result."""
    equation = call.get("equation")
    if not isinstance(equation, str):
        return None
    left, arrow, out = equation.replace(" ", "").partition("->")
    if not arrow:
        used = left.replace("...", "").replace(",", "")
        out = ("..." if "..." in left else "") + "".join(sorted(c for c in set(used) if used.count(c) == 1))
    return [*left.split(","), out]


def product_of(call: Call) -> tuple[list[list[str]], list[str]] | None:
    """A product of two operands in letters: one for every axis of each operand and of the result; None for any other
    call. Letters that the result lacks are summed over; an axis of one slot meets all of a longer one."""
    if len(call.operands) != 2 or len(call.results) != 1 or call.in_place:
        return None
    if call.op == "einsum":
        words = words_of(call)
    elif call.op in MATMULS:
        a, b = (operand.rank for operand in call.operands)
        left, right = "k" if a == 1 else "...ik", "k" if b == 1 else ("kj" if b == 2 else "...kj")
        left = "ik" if a == 2 else left
        dots = "..." if max(a, b) > 2 else ""
        words = [left, right, dots + ("i" if a > 1 else "") + ("j" if b > 1 else "")]
    else:
        return None
    if words is None or len(words) != 3:
        return None
    ranks = (*(operand.rank for operand in call.operands), call.results[0].dim())
    found = [letters_of(word, rank) for word, rank in zip(words, ranks, strict=True)]
    if any(word is None or len(set(word)) != len(word) for word in found):
        return None
    left_letters, right_letters, out = (word or [] for word in found)
    return [left_letters, right_letters], out


def _einsum(call: Call) -> Meaning | None:
    """``einsum``: its own formula."""
    words = words_of(call)
    return None if words is None else formula(call, words[:-1], words[-1])


def _fixed(words: Sequence[str], out: str) -> Entry:
    def entry(call: Call) -> Meaning | None:
        return formula(call, words, out) if len(call.operands) == len(words) else None

    entry.__doc__ = f"{', '.join(words)} -> {out}"
    return entry


def _bilinear(call: Call) -> Meaning | None:
    """...i, ...j, oij, o -> ...o"""
    bias = ["o"] if len(call.operands) == 4 else []
    return formula(call, ["...i", "...j", "oij", *bias], "...o")


def _inner(call: Call) -> Meaning | None:
    """ak, bk -> ab, with any number of a and b."""
    a, b = (operand.rank for operand in call.operands)
    if not a or not b:
        return None
    first, second = "abcdefg"[: a - 1], "uvwxyz"[: b - 1]
    return formula(call, (f"{first}k", f"{second}k"), first + second)


def _tensordot(call: Call) -> Meaning | None:
    """The axes that it is given are contracted."""
    a, b = (operand.rank for operand in call.operands)
    dims = call.get("dims")
    if isinstance(dims, int):
        dims = (list(range(a - dims, a)), list(range(dims)))
    if not isinstance(dims, (tuple, list)) or len(dims) != 2 or a + b > 20:
        return None
    first, second = list("abcdefghij"[:a]), list("klmnopqrst"[:b])
    pairs = [(d,) if isinstance(d, int) else tuple(d) for d in dims]
    for i, j in zip(*pairs, strict=True):
        second[j] = first[i]
    gone = {first[i] for i in pairs[0]}
    out = [letter for letter in first + second if letter not in gone]
    return formula(call, ("".join(first), "".join(second)), "".join(out))


def _attention(call: Call) -> Meaning | None:
    """Slot l of the result belongs to query l; keys go with values."""
    names = [o.argument for o in call.operands]
    if names[:3] != ["query", "key", "value"] or len(call.operands) > 4:
        return None
    # In groups of heads, which heads of the query go with one of the keys is told by their numbers.
    heads, kv = ("...h", "...g") if call.get("enable_gqa") else ("...", "...")
    mask = ["...ls"] if len(names) == 4 else []
    relating = Relating(call)
    if not related(relating, [f"{heads}ld", f"{kv}sd", f"{kv}sv", *mask], f"{heads}lv", "sg"):
        return None
    for back in ([-2] if call.get("is_causal") else []) + ([-3] if call.get("enable_gqa") else []):
        for loop in relating.result[back]:
            relating.roles[loop] = Addressed(call.op)
    for loop in relating.axes[1][-2].loops:
        relating.roles[loop] = Mixed(call.op, together=True)
    dropout = call.get("dropout_p") or 0
    random = not isinstance(dropout, (int, float)) or dropout > 0  # a number that is dynamic may be anything
    return meaning(FAMILY, relating.done(), dataclasses.replace(_REORDERS, random=random))


def _convolved(call: Call) -> Meaning | None:
    """``conv1d`` and its like: samples stay apart, channels are contracted, neighbours of the other axes mixed."""
    names = [o.argument for o in call.operands]
    if names[:2] != ["input", "weight"]:
        return None
    space = call.operands[1].rank - 2
    x, n = call.operands[0].rank, "n" if call.operands[0].rank == space + 2 else ""
    if x not in (space + 1, space + 2) or space > 3:
        return None
    before, kernel, after = "xyz"[:space], "abc"[:space], "uvw"[:space]
    bias = ["o"] if len(names) == 3 else []
    grouped = call.get("groups", default=1) != 1
    out = f"{n}o{after}"
    if call.op.startswith("conv_transpose"):
        weight = f"c{'q' if grouped else 'o'}{kernel}"
    else:
        weight = f"o{'q' if grouped else 'c'}{kernel}"
    return formula(call, [f"{n}c{before}", weight, *bias], out, mixed=before + kernel + ("coq" if grouped else ""))


def _pooled(call: Call) -> Meaning | None:
    """Pooling and resizing: samples and channels stay, neighbours of the other axes are mixed."""
    if len(call.operands) != 1 or (call.op.startswith("interpolate") and call.operands[0].rank < 3):
        return None
    rank = call.operands[0].rank
    digits = [c for c in call.op if c in "123"]
    space = int(digits[0]) if digits else rank - 2
    lead = "nc"[: rank - space] if rank - space in (1, 2) else None
    if lead is None:
        return None
    if rank - space == 1:
        lead = "c"
    before, after = "xyz"[:space], "uvw"[:space]
    found = []
    for item in range(len(call.results)):
        one = formula(call, [lead + before], lead + after, mixed=before, family=FAMILY, item=item)
        found.append(one.relations[0] if one else None)
    return meaning(FAMILY, found, Traits(reorders=True))


_POOLS = [f"{kind}_pool{n}d" for kind in ("avg", "max", "lp", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)]
ENTRIES: dict[str, Entry] = {
    "matmul": _matmul,
    "mm": _fixed(("ik", "kj"), "ij"),
    "bmm": _fixed(("bik", "bkj"), "bij"),
    "mv": _fixed(("ik", "k"), "i"),
    **dict.fromkeys(("dot", "vdot"), _fixed(("k", "k"), "")),
    "outer": _fixed(("i", "j"), "ij"),
    "addmm": _added("ik", "kj", "ij"),
    "addmv": _added("ik", "k", "i"),
    "addr": _added("i", "j", "ij"),
    "baddbmm": _added("bik", "bkj", "bij"),
    "addbmm": _added("bik", "bkj", "ij"),
    "linear": _linear,
    "bilinear": _bilinear,
    "inner": _inner,
    "tensordot": _tensordot,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys([f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)], _convolved),
    **dict.fromkeys([*_POOLS, *(f"max_pool{n}d_with_indices" for n in (1, 2, 3)), "interpolate"], _pooled),
}


def equation_of(words: Sequence[Sequence[str]], out: Sequence[str]) -> str:
    """What ``torch.einsum`` calls a product of operands whose axes have these names, which may be of any length."""
    names = {axis: chr(ord("a") + i) for i, axis in enumerate(dict.fromkeys(axis for word in words for axis in word))}
    sides = ["".join(names[axis] for axis in word) for word in (*words, out)]
    return f"{','.join(sides[:-1])}->{sides[-1]}"
