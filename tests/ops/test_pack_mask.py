"""Which tokens are real, read off 4-D masks by their meaning; and what has no such meaning is refused by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from packpass.ops import _pack_mask, pack, unpack
from tests.ops import packing
from tests.ops.test_packed_roll import NoHostSync

REAL_TOKENS = torch.ops.packpass.real_tokens

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "padding": lambda keep: packing.attention(keep, False),
    "causal": lambda keep: packing.attention(keep, True),
    "hidden queries": lambda keep: packing.attention(keep, False, hidden_queries=True),
    "causal, hidden queries": lambda keep: packing.attention(keep, True, hidden_queries=True),
    "causal, freed": lambda keep: packing.attention(keep, True, freed=True),
    "one query": lambda keep: packing.attention(keep, False)[:, :, :1],
    "three heads": lambda keep: packing.attention(keep, True).expand(-1, 3, -1, -1),
    "int": lambda keep: packing.attention(keep, True).long() * 3,
    "additive, lowest": lambda keep: packing.additive(
        packing.attention(keep, True), torch.float32, torch.finfo(torch.float32).min
    ),
    "additive, infinite": lambda keep: packing.additive(packing.attention(keep, False), torch.float64, -torch.inf),
    "additive, -10000 in bfloat16": lambda keep: packing.additive(
        packing.attention(keep, True), torch.bfloat16, -10000.0
    ),
    "additive, -10000 in float16": lambda keep: packing.additive(
        packing.attention(keep, False)[:, :, :1], torch.float16, -10000.0
    ),
    "additive, two masks added": lambda keep: (
        packing.additive(packing.attention(keep, False), torch.float32, -1e9)
        + packing.additive(packing.attention(torch.ones_like(keep), True), torch.float32, -torch.inf)
    ),
}


@pytest.mark.parametrize("name", packing.MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_meaning(kind: str, name: str) -> None:
    keep = packing.mask_of(name)
    mask = KINDS[kind](keep)
    if kind == "causal, freed" and name in ("nothing real", "empty rows"):
        return  # test_rows_that_see_everything
    for found, faulty in (REAL_TOKENS(mask, True), _pack_mask._kernel(mask, True)):
        assert torch.equal(found, keep != 0)
        assert faulty == -1
    x = torch.randn(*keep.shape, 2)
    packed, batch = pack(x, mask)
    assert torch.equal(packed, packing.expected(x, keep).packed)
    assert torch.equal(unpack(packed, batch), torch.where((keep != 0).unsqueeze(2), x, 0.0))


def test_the_first_column_is_not_the_length() -> None:
    keep = packing.mask_of("left")
    mask = packing.attention(keep, True)
    assert mask[:, 0, :, 0].sum(1).tolist() == [0, 0, 5]
    assert pack(torch.zeros(3, 5), mask)[1].cu_seqlens.tolist() == [0, 3, 4, 9]


def test_rows_that_see_everything() -> None:
    """Full ones in a batch that is not causal; beside causal ones they may be empty as well, and are refused."""
    nothing = packing.attention(packing.mask_of("nothing real"), True, freed=True)
    assert bool(REAL_TOKENS(nothing, True)[0].all())
    with pytest.raises(ValueError, match="row 0 .* it is padding alone, but row 1 is not"):
        REAL_TOKENS(packing.attention(packing.mask_of("empty rows"), True, freed=True), True)


def readings(attended: Tensor) -> dict[bool, list[tuple[int, ...]]]:
    """All sets of keys by which one mask ``[S, S]`` is key padding, causal or not: the definition, by trying."""
    length = attended.shape[0]
    rows = [{k for k in range(length) if attended[q, k]} for q in range(length)]
    everything = set(range(length))
    found: dict[bool, list[tuple[int, ...]]] = {False: [], True: []}
    for causal, count in itertools.product((False, True), range(length + 1)):
        for keys in itertools.combinations(range(length), count):
            wanted = [{k for k in keys if k <= q or not causal} for q in range(length)]
            real = all(rows[q] == wanted[q] for q in keys)

            padding = [q for q in range(length) if q not in keys]
            free = [q for q in padding if causal and keys and q < keys[0]]
            if real and all(rows[q] in (wanted[q], set()) or (q in free and rows[q] == everything) for q in padding):
                found[causal].append(keys)
    return found


@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_small_mask(length: int) -> None:
    """Refused exactly where there is no reading; otherwise the reading, of which there is never more than one."""
    for bits in itertools.product((False, True), repeat=length * length):
        attended = torch.tensor(bits).view(length, length)
        possible = {keys for kind in readings(attended).values() for keys in kind}
        keys, faulty = _pack_mask._generic(attended.view(1, 1, length, length))
        assert len(possible) <= 1
        assert (int(faulty) == -1) == bool(possible), attended
        if possible:
            assert tuple(keys[0].nonzero().flatten().tolist()) in possible, (attended, possible)


BASE = packing.attention(packing.mask_of("right"), True)


def changed(row: int, query: int, key: int, value: bool, base: Tensor = BASE) -> Tensor:
    out = base.clone()
    out[row, :, query, key] = value
    return out


def blocks(*ends: int, causal: bool = False) -> Tensor:
    segment = torch.bucketize(torch.arange(ends[-1]), torch.tensor(ends), right=True)
    same = segment[:, None] == segment
    return (same.tril() if causal else same)[None, None]


NEAR = torch.arange(6)
READ = "of the attention mask cannot be read as key padding: "
FULL = packing.mask_of("no padding")
REFUSED: dict[str, tuple[Tensor, str]] = {
    "one key less": (changed(1, 2, 0, False, packing.attention(FULL, True)), "row 1 "),
    "a key of padding": (
        changed(0, 1, 4, True), f"row 0 {READ}query 1 attends to 3 keys where padding and causality leaves 2"
    ),
    "padding attends to padding": (changed(0, 3, 4, True), "row 0 "),
    "padding attends to itself": (changed(0, 3, 3, True), "row 0 "),
    "blocks": (blocks(2, 5), f"row 0 {READ}query 0 attends to 2 keys"),
    "causal blocks": (blocks(2, 5, causal=True), "row 0 "),
    "tokens and a block of padding": (blocks(4, 6), "row 0 "),
    "window": (((NEAR[:, None] - NEAR).abs() < 2)[None, None], "row 0 "),
    "causal window": ((((NEAR[:, None] - NEAR) < 2) & (NEAR[:, None] >= NEAR))[None, None], "row 0 "),
    "prefix": (((NEAR[:, None] >= NEAR) | (NEAR < 3))[None, None], "row 0 "),
    "anti-causal": ((NEAR[:, None] <= NEAR)[None, None], "row 0 "),
    "True means hidden": (~packing.attention(FULL, True), "row 0 "),
    "strictly causal": ((NEAR[:, None] > NEAR)[None, None], "row 0 "),
    "heads": (
        torch.cat([BASE, changed(2, 4, 0, False)], 1), f"row 2 {READ}heads 0 and 1 disagree about query 4 and key 0"
    ),
    "causal and not": (
        torch.cat([packing.attention(FULL, causal) for causal in (True, False)]),
        f"row 2 {READ}it is padding alone, but row 0 is not",
    ),
    "not causal and causal": (
        torch.cat([packing.attention(FULL, causal) for causal in (False, True)]),
        f"row 0 {READ}it is padding alone, but row 2 is not",
    ),
    "padding that sees everything": (
        packing.attention(packing.mask_of("both sides"), True, freed=True) | (NEAR[:5, None] == 4), "row 0 "
    ),
    "bias": (
        packing.additive(BASE, torch.float32, -torch.inf) - 0.5 * (NEAR[:5, None] - NEAR[:5]).abs(),
        f"row 0 {READ}the value of head 0, query 1, key 0 is -0.5",
    ),
    "soft": (
        packing.additive(BASE, torch.float32, -100.0),
        "key 1 is -100.0, and an additive mask holds 0 (attend) or -9000 and lower",
    ),
    "not a number": (packing.additive(BASE, torch.float32, torch.nan), "is nan"),
    "ones and zeros": (BASE.float(), "is 1.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    mask, message = REFUSED[case]
    x = torch.zeros(mask.shape[0], mask.shape[3])
    for total in (None, 100):
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            pack(x, mask, total=total)
    found, faulty = _pack_mask._kernel(mask, False)
    assert f"row {int(faulty)} " in str(error.value)
    assert found.shape == x.shape
    with pytest.raises(RuntimeError, match="packpass: the 4-D attention mask must be key padding"):
        _pack_mask._kernel(mask, True)


def test_no_host_sync() -> None:
    with NoHostSync():
        for kind in KINDS.values():
            _pack_mask._kernel(kind(packing.mask_of("holes")), True)


def test_no_gradient_into_a_mask() -> None:
    mask = packing.additive(BASE, torch.float32, -torch.inf).requires_grad_()
    packed, _ = pack(torch.ones(3, 5, requires_grad=True), mask)
    packed.sum().backward()
    assert mask.grad is None


# === [B, S] in floating point ===================================================================================


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_ones_and_zeros(dtype: torch.dtype) -> None:
    for form in packing.MASKS:
        mask = packing.mask_of(form)
        x = torch.arange(mask.numel()).view(mask.shape)
        for total in (None, mask.numel()):
            wanted, batch = pack(x, mask, total=total)
            packed, of_floats = pack(x, mask.to(dtype), total=total)
            assert torch.equal(packed, wanted)
            assert torch.equal(of_floats.cu_seqlens, batch.cu_seqlens)


ODD = {
    "between": (0.5, "holds 0.5 in row 1, token 3"),
    "additive": (-torch.inf, "holds -inf in row 1, token 3"),
    "twice": (2.0, "holds 2.0 in row 1, token 3"),
    "not a number": (torch.nan, "holds nan in row 1, token 3"),
}


@pytest.mark.parametrize("case", ODD)
def test_other_numbers(case: str) -> None:
    number, message = ODD[case]
    mask = torch.ones(3, 5)
    mask[1, 3] = mask[2, 0] = number
    for total in (None, 15):
        with pytest.raises(ValueError, match=re.escape(message)):
            pack(torch.zeros(3, 5), mask, total=total)
    with pytest.raises(RuntimeError, match="packpass: a mask .B, S. in floating point must hold 1"):
        _pack_mask._kernel(mask, True)


def test_floats_compiled() -> None:
    """One graph for good masks and others, and the error of eager in the call with a bad one."""

    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return pack(x, mask, total=15)[0] * 2

    compiled = torch.compile(program, backend="inductor", fullgraph=True)
    x, mask = torch.randn(3, 5), packing.mask_of("right").float()
    assert torch.equal(compiled(x, mask), program(x, mask))
    mask[0, 4] = 0.25
    with pytest.raises(ValueError, match=re.escape("holds 0.25 in row 0, token 4")):
        compiled(x, mask)


def test_floats_without_host_sync() -> None:
    with NoHostSync():
        _pack_mask._kernel(packing.mask_of("holes").float(), True)
