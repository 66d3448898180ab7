"""Kernels on images and signals, and views of diagonals: formulas of letters, one for every rank that they take."""

from __future__ import annotations

import functools

from packpass.semantics.call import Call
from packpass.semantics.meaning import Entry, Meaning, Traits, axis_index, meaning
from packpass.semantics.products import formula

FAMILY = "kernels"
_KINDS = (
    "linear1d",
    "bilinear2d",
    "trilinear3d",
    "bicubic2d",
    "nearest1d",
    "nearest2d",
    "nearest3d",
    "nearest_exact2d",
)
_LETTERS = "abcdefghijkl"


def _grid(call: Call) -> Meaning | None:
    """Samples and channels stay; where in the image is read is data, but never beyond it."""
    if len(call.operands) != 2:
        return None
    space = call.operands[0].rank - 2
    if space not in (2, 3):
        return None
    before, after = "xyz"[:space], "uvw"[:space]
    words = [f"nc{before}", f"n{after}i"]
    return formula(call, words, f"nc{after}", mixed=before + after + "i", family=FAMILY)


def _unpooled(call: Call) -> Meaning | None:
    """``max_unpool2d(x, indices)``: every sample and channel by itself; indices must lie in the result."""
    space = next((int(c) for c in call.op if c in "123"), 0)
    lead = call.operands[0].rank - space
    if len(call.operands) != 2 or lead not in (1, 2):
        return None
    word = "nc"[2 - lead :] + "xyz"[:space]
    out = "nc"[2 - lead :] + "uvw"[:space]
    traits = Traits(raises=frozenset({"indices"}))
    return formula(call, [word, word], out, mixed="xyzuvw", family=FAMILY, traits=traits)


def _patches(call: Call) -> Meaning | None:
    """``F.unfold`` and ``F.fold``: samples stay."""
    if len(call.operands) != 1:
        return None
    words = ("ncxy", "nkl") if call.op == "im2col" else ("nkl", "ncxy")
    return formula(call, [words[0]], words[1], mixed="cxykl", family=FAMILY)


def _shuffled(call: Call) -> Meaning | None:
    """``pixel_shuffle`` and its inverse, and ``channel_shuffle``: what is in front stays."""
    if call.op == "channel_shuffle":
        rest = "uvw"[: call.operands[0].rank - 2]
        return formula(call, [f"nc{rest}"], f"nd{rest}", mixed="cd", family=FAMILY)
    return formula(call, ["...cxy"], "...duv", mixed="cxyduv", family=FAMILY)


def _windows(call: Call) -> Meaning | None:
    """``x.unfold(dim, size, step)``: windows along one axis, as a last axis."""
    x = call.operands[0]
    dim = axis_index(call.get("dimension", "dim"), x.rank)
    if len(call.operands) != 1 or dim is None or x.rank > len(_LETTERS):
        return None
    letters = list(_LETTERS[: x.rank])
    out = [*letters[:dim], "u", *letters[dim + 1 :], "v"]
    return formula(call, ["".join(letters)], "".join(out), mixed=letters[dim] + "uv", family=FAMILY)


def _two_axes(call: Call) -> tuple[int, int] | None:
    rank = max(call.operands[0].rank, call.results[0].dim())
    default = (-2, -1) if call.op in ("diag_embed", "linalg_diagonal") else (0, 1)
    dims = [axis_index(call.get(name, default=d), rank) for name, d in zip(("dim1", "dim2"), default, strict=True)]
    if dims[0] is None or dims[1] is None or dims[0] == dims[1]:
        return None
    return dims[0], dims[1]


def _diagonal(call: Call) -> Meaning | None:
    """The diagonal of two axes, as a last axis; or (``diagonal_scatter``) the operand with another one."""
    dims, x = _two_axes(call), call.operands[0]
    if dims is None or x.rank > len(_LETTERS):
        return None
    letters = _LETTERS[: x.rank]
    rest = "".join(c for d, c in enumerate(letters) if d not in dims)
    pair = "".join(letters[d] for d in dims)
    if call.op == "diagonal_scatter":
        return formula(call, [letters, f"{rest}z"], letters, mixed=pair + "z", family=FAMILY)
    return formula(call, [letters], f"{rest}z", mixed=pair + "z", family=FAMILY)


def _embedded(call: Call) -> Meaning | None:
    """``diag_embed``: the last axis becomes the diagonal of two."""
    dims, rank = _two_axes(call), call.operands[0].rank
    if dims is None or rank >= len(_LETTERS):
        return None
    letters = list(_LETTERS[: rank - 1])
    rest = iter(letters)
    out = ["y" if d == dims[0] else "z" if d == dims[1] else next(rest) for d in range(rank + 1)]
    return formula(call, ["".join([*letters, "x"])], "".join(out), mixed="xyz", family=FAMILY)


def _spectrogram(call: Call) -> Meaning | None:
    """``stft``: signals stay apart."""
    if not call.operands or call.operands[0].rank != 2 or call.get("center") is None:
        return None
    window = ["w"] if len(call.operands) == 2 else []
    out = "bfu" + "r" * (call.results[0].dim() - 3)
    return formula(call, ["bt", *window], out, mixed="tfuwr", family=FAMILY, traits=Traits(reorders=True))


def _turned(call: Call) -> Meaning | None:
    """``rot90`` in the plane of two axes."""
    dims = call.get("dims", default=(0, 1))
    rank = call.operands[0].rank
    if not isinstance(dims, (tuple, list)) or len(dims) != 2 or rank > len(_LETTERS):
        return None
    plane = [axis_index(d, rank) for d in dims]
    if None in plane:
        return None
    letters = list(_LETTERS[:rank])
    out = list(letters)
    out[plane[0]], out[plane[1]] = "y", "z"  # type: ignore[index]
    mixed = "".join(letters[d] for d in plane if d is not None) + "yz"
    return formula(call, ["".join(letters)], "".join(out), mixed=mixed, family=FAMILY)


def _resized(call: Call) -> Meaning | None:
    """Kernels of ``F.interpolate`` under their own names: samples and channels stay."""
    space = next((int(c) for c in call.op if c in "123"), 0)
    if len(call.operands) != 1 or call.operands[0].rank != space + 2:
        return None
    before, after = "xyz"[:space], "uvw"[:space]
    return formula(
        call, [f"nc{before}"], f"nc{after}", mixed=before + after, family=FAMILY, traits=Traits(reorders=True)
    )


def _norm_of_matrices(call: Call) -> Meaning | None:
    """``linalg.matrix_norm`` of the last two axes."""
    dims = call.get("dim", default=(-2, -1))
    if len(call.operands) != 1 or tuple(dims) != (-2, -1) or call.get("keepdim") or call.get("ord") in ("nuc", 2, -2):
        return None
    return formula(call, ["...mn"], "...", mixed="mn", family=FAMILY)


def _only(call: Call, entry: Entry) -> Meaning | None:
    found = entry(call) if call.operands and len(call.results) == 1 else None
    return meaning(FAMILY, found.relations, found.traits) if found is not None else None


def _guarded(entry: Entry) -> Entry:
    guarded = functools.partial(_only, entry=entry)
    guarded.__doc__ = entry.__doc__
    return guarded


_OF: dict[str, Entry] = {
    **dict.fromkeys(("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _grid),
    **dict.fromkeys([f"max_unpool{n}d" for n in (1, 2, 3)], _unpooled),
    **dict.fromkeys(("im2col", "col2im"), _patches),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle"), _shuffled),
    **dict.fromkeys(("unfold", "unfold_copy"), _windows),
    **dict.fromkeys(("diagonal", "diagonal_copy", "diagonal_scatter", "linalg_diagonal"), _diagonal),
    "diag_embed": _embedded,
    "stft": _spectrogram,
    "rot90": _turned,
    **dict.fromkeys([f"{u}upsample_{kind}{aa}" for u in ("", "_") for kind in _KINDS for aa in ("", "_aa")], _resized),
    "linalg_matrix_norm": _norm_of_matrices,
}
ENTRIES: dict[str, Entry] = {op: _guarded(entry) for op, entry in _OF.items()}
