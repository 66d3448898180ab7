"""``real_tokens`` (internal): which tokens of a padded batch are real, read off an attention mask by its meaning.

    for row in range(B):                          # mask [B, H, S, S]: may query q attend to key k?
        keys = {k: some query in keys may attend to k}
        for q in keys:                            # the same of every head and every row of the batch:
            assert attended(row, q) == keys                            # padding alone, or
            assert attended(row, q) == {k for k in keys if k <= q}     # padding and causality
        out[row] = keys

What the queries of padding attend to has no meaning. Masks that people make let them see what a real query in their
place would, no key, or (under causality in front of the first real key, where a query would have none: transformers
does so) every key. Everything else is refused: blocks, windows, prefixes, padding that attends to padding. So is a row
whose queries all see everything beside causal rows: it may be empty as well as full.

That leaves one reading: only real queries attend to themselves, but for those in front of the first real key, so the
last query that does is the last real one, and it attends to all real keys.

A mask [B, S] in floating point (tokenizers and loss masks come so) holds 1 for a real token and 0 for padding; any
other number, such as the -inf of an additive mask, is an error.

On the CPU the op raises a ValueError that names row, query and numbers. On a GPU it computes the first faulty row (-1:
none) for whoever waits for the device anyway, or asserts asynchronously that there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass._compat import assert_async
from packpass.ops._arguments import check_tensor
from packpass.ops._library import define

# An additive mask hides a key by this value or a lower one: what rounding to bfloat16 makes of the -10000 of old models
# is the highest in use. Values in between (biases by distance) are more than padding.
HIDDEN = -9000.0
MESSAGE = (
    "packpass: the 4-D attention mask must be key padding, causal or not: the same for every head and in every row "
    "(additive: 0 or -9000 and lower); on the CPU the error names row and numbers"
)
MESSAGE_2D = (
    "packpass: a mask [B, S] in floating point must hold 1 (a real token) and 0 (padding) only; on the CPU the error "
    "names row and value"
)


def _attended(mask: Tensor) -> Tensor:
    """May this query attend to this key?"""
    return mask == 0 if mask.dtype.is_floating_point else mask != 0


def _odd(mask: Tensor) -> Tensor:
    """Values of an additive mask that neither show nor hide a key; bool, the shape of mask."""
    return (mask != 0) & ~(mask <= HIDDEN)


def _last(queries: Tensor) -> Tensor:
    """The last True of every row ``[B, S]``, -1 where there is none; int64 ``[B]``."""
    return torch.where(queries, torch.arange(queries.shape[1], device=queries.device), -1).amax(1)


def _real_keys(attended: Tensor) -> Tensor:
    """What the last query that attends to itself attends to, in masks ``[B, S, S]``: ``[B, S]``."""
    query = _last(attended.diagonal(dim1=1, dim2=2))
    index = query.clamp(min=0).view(-1, 1, 1).expand(-1, 1, attended.shape[2])
    return attended.gather(1, index).squeeze(1) & (query >= 0).unsqueeze(1)


def _expected(keys: Tensor, causal: bool) -> Tensor:
    length = keys.shape[1]
    shown = keys.unsqueeze(1).expand(-1, length, -1)
    return shown.tril() if causal else shown


def _fits(attended: Tensor, keys: Tensor, causal: bool) -> Tensor:
    """The queries that see what they would with these real keys; bool ``[B, S]``."""
    fits = (attended == _expected(keys, causal)).all(2) | (~keys & ~attended.any(2))
    if not causal:
        return fits
    length = keys.shape[1]
    here = torch.arange(length, device=keys.device)
    first = torch.where(keys, here, length).amin(1, keepdim=True)
    return fits | (attended.all(2) & (here < first) & keys.any(1, keepdim=True))


def _generic(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Device independent, no host read."""
    if mask.dim() == 2:
        return mask == 1, _first_faulty(~_neither(mask).any(1))
    length = mask.shape[3]
    attended = _attended(mask)
    right = (attended == attended.narrow(1, 0, 1)).flatten(1).all(1)
    if mask.dtype.is_floating_point:
        right = right & ~_odd(mask).flatten(1).any(1)
    attended = attended.select(1, 0)
    if length == 0:
        keys = attended.new_zeros((mask.shape[0], length))
    elif mask.shape[2] == 1:
        keys = attended.select(1, 0)
    else:
        keys = _real_keys(attended)
        padding, causal = (_fits(attended, keys, kind).all(1) for kind in (False, True))
        right = right & torch.where(padding.all(), padding, causal)
    return keys.contiguous(), _first_faulty(right)


def _neither(mask: Tensor) -> Tensor:
    """Entries ``[B, S]`` that are neither 0 nor 1."""
    return (mask != 0) & (mask != 1)


def _first_faulty(right: Tensor) -> Tensor:
    """The first row that is not right, of bool ``[B]``; int64, -1 for none."""
    count = right.shape[0]
    rows = torch.arange(count, device=right.device)
    # One entry more, so that there is one without any rows.
    faulty = torch.cat([torch.where(right, count, rows), rows.new_full((1,), count)]).amin()
    return torch.where(faulty == count, -1, faulty)


def _kernel(mask: Tensor, check: bool) -> tuple[Tensor, Tensor]:
    keys, faulty = _generic(mask)
    if check:
        assert_async(faulty < 0, MESSAGE if mask.dim() == 4 else MESSAGE_2D)
    return keys, faulty


def _cpu_kernel(mask: Tensor, check: bool) -> tuple[Tensor, Tensor]:
    keys, faulty = _generic(mask)
    if faulty >= 0:
        raise_faulty(mask, int(faulty))
    return keys, faulty


def raise_faulty(mask: Tensor, row: int) -> None:
    """Raise the ValueError for a row that is no key padding (in a 4-D mask) or holds another number than 0 and 1 (in a
    2-D one); reads the values."""
    if mask.dim() == 2:
        token = int(_neither(mask[row]).nonzero()[0])
        raise ValueError(
            f"packpass: the mask holds {float(mask[row, token])} in row {row}, token {token}; in floating point a mask "
            "[B, S] holds 1 (a real token) or 0 (padding); compare it with the value that marks padding"
        )
    raise ValueError(
        f"packpass: row {row} of the attention mask cannot be read as key padding: {_fault(mask[row], mask, row)}; "
        "pass the mask [B, S] of real tokens instead"
    )


def _fault(of_row: Tensor, mask: Tensor, row: int) -> str:
    if of_row.dtype.is_floating_point and bool(_odd(of_row).any()):
        head, query, key = _odd(of_row).nonzero()[0].tolist()
        return (
            f"the value of head {head}, query {query}, key {key} is {float(of_row[head, query, key])}, and an additive "
            f"mask holds 0 (attend) or {HIDDEN:.0f} and lower (do not)"
        )
    attended = _attended(of_row)
    differs = attended != attended[:1]
    if bool(differs.any()):
        head, query, key = differs.nonzero()[0].tolist()
        return f"heads 0 and {head} disagree about query {query} and key {key}"
    rows = _attended(mask[:, 0])
    keys = _real_keys(rows)
    found: list[tuple[int, str]] = []
    for causal, kind in ((False, "padding alone"), (True, "padding and causality")):
        fits = _fits(rows, keys, causal)
        if bool(fits[row].all()):
            return f"it is {kind}, but row {int((~fits).any(1).nonzero()[0])} is not"
        query = int((~fits[row]).nonzero()[0])
        shown, wanted = int(rows[row, query].sum()), int(_expected(keys, causal)[row, query].sum())
        found.append((query, f"query {query} attends to {shown} keys where {kind} leaves {wanted}"))
    return max(found)[1]  # of the reading that fits longest


def _fake(mask: Tensor, check: bool) -> tuple[Tensor, Tensor]:
    return mask.new_empty((mask.shape[0], mask.shape[-1]), dtype=torch.bool), mask.new_empty((), dtype=torch.int64)


def _decomposition(mask: Tensor, check: bool) -> tuple[Tensor, Tensor]:
    keys, faulty = (host_real_tokens_op if mask.device.type == "cpu" else _kernel)(mask, check)
    return keys, faulty


real_tokens_op = define(
    "real_tokens(Tensor mask, bool check) -> (Tensor, Tensor)",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_decomposition,
)
# The eager kernel under a name that has no decomposition, because Inductor refuses to call an op that also has one.
host_real_tokens_op = define(
    "host_real_tokens(Tensor mask, bool check) -> (Tensor, Tensor)",
    fake=_fake,
    kernel=_cpu_kernel,
)


def check_mask(mask: object) -> None:
    """``mask`` is bool, int or floating point, ``[B, S]`` or ``[B, H, S or 1, S]``; no values are read."""
    check_tensor("mask", mask)
    assert isinstance(mask, Tensor)
    shape = tuple(mask.shape)
    if mask.dim() not in (2, 4):
        raise ValueError(f"mask must be [B, S] (real tokens) or [B, H, S, S] (attention), got shape {shape}")
    if mask.dtype.is_complex:
        raise TypeError(f"mask must be bool, int or floating point, got {mask.dtype}")
    if mask.dim() == 4:
        if mask.shape[1] == 0:
            raise ValueError(f"a mask [B, H, S, S] must have at least 1 head, got shape {shape}")
        if mask.shape[2] != 1 and mask.shape[2] != mask.shape[3]:
            raise ValueError(
                f"a 4-D mask must be [B, H, S, S] or [B, H, 1, S], got shape {shape} with {mask.shape[2]} queries and "
                f"{mask.shape[3]} keys"
            )
