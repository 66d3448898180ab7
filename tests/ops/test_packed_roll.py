"""``packed_roll`` in eager mode against the loop over slots: every dtype, dimension, shift, fill and layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from packpass.ops import packed_roll
from packpass.ops._packed_roll_eager import cpu_kernel, gather_kernel
from packpass.ops._packed_roll_inductor import decomposition, patch_form, rows_form, select_form
from tests.ops import reference

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
SHIFTS = [-1, 1, -2, 3, -8, 9, -40, 1000, -(10**12), 0]
LAYOUTS = {
    "tails at both ends": [2, 7, 7, 8, 19, 27],
    "no tail": [0, 9, 10, 30],
    "one token each": list(range(31)),
    "one document": [0, 30],
    "first and last empty": [4, 4, 11, 20, 20],
    "first empty at 0, last empty at T": [0, 0, 0, 13, 30, 30],
    "all empty": [5, 5, 5],
    "all empty at T": [30, 30],
    "no document": [3],
}


def as_loop(x: Tensor, cu: Tensor, shift: int, dim: int, fill: complex | None, padded: Tensor | None = None) -> Tensor:
    return reference.roll(x, cu, shift, dim, fill, padded)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fill", [0, -5, None])
@pytest.mark.parametrize("shift", SHIFTS)
def test_layouts(layout: str, shift: int, fill: int | None) -> None:
    cu = torch.tensor(LAYOUTS[layout], dtype=torch.int32)
    x = reference.sample(torch.int64, 30)
    expected = as_loop(x, cu, shift, 0, fill)
    assert torch.equal(packed_roll(x, cu, shift, fill=fill), expected)
    assert torch.equal(gather_kernel(x, cu, shift, 0, fill), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fill", [0, None])
@pytest.mark.parametrize("shift", [-1, 1, -3, 8])
def test_forms_of_the_compiler(layout: str, shift: int, fill: int | None) -> None:
    """The decompositions' bodies are plain torch code, so they can be run as they are."""
    cu = torch.tensor(LAYOUTS[layout])
    x = reference.sample(torch.float32, 30, 3)
    assert torch.equal(patch_form(x, cu, shift, 0, fill), as_loop(x, cu, shift, 0, fill))
    assert torch.equal(rows_form(x, cu, shift, 0, fill, None), as_loop(x, cu, shift, 0, fill))
    if fill is not None:
        assert torch.equal(select_form(x, cu, shift, 0, fill), as_loop(x, cu, shift, 0, fill))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shift", [-1, 2])
@pytest.mark.parametrize("fill", [0, None])
@pytest.mark.parametrize(
    "ends",
    [[0, 300], [3, 250], [64, 128, 192], [63, 129], [70, 70, 71], [299, 300], [0, 1], [1, 299], [150, 150], [193, 195]],
)
def test_block_edges(ends: list[int], dim: int, shift: int, fill: int | None) -> None:
    """Rows longer than two blocks of the C++ form, with tails that begin and end in, at and beside block borders."""
    cu = torch.tensor(ends)
    x = reference.sample(torch.int64, 2, 300) if dim == 1 else reference.sample(torch.int64, 300)
    dim = x.dim() - 1
    assert torch.equal(patch_form(x, cu, shift, dim, fill), as_loop(x, cu, shift, dim, fill))


@pytest.mark.parametrize("total", [131, 132, 133, 193, 194, 195, 196, 257, 258, 259])
@pytest.mark.parametrize("shift", [-1, 1, -3, 3])
def test_row_lengths_around_blocks(total: int, shift: int) -> None:
    cu = reference.documents(total, 7, head=5, tail=6)
    x = reference.sample(torch.int64, total)
    assert torch.equal(patch_form(x, cu, shift, 0, 0), as_loop(x, cu, shift, 0, 0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fill", [0, 1, None])
def test_dtypes(dtype: torch.dtype, fill: int | None) -> None:
    cu = torch.tensor([1, 4, 4, 9])
    x = reference.sample(dtype, 11)
    for shift in (-1, 2):
        # torch cannot index every dtype, so the loop moves numbers of the same width instead.
        bits = x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(dtype.itemsize, dtype))
        fill_bits = None if fill is None else torch.full((1,), fill, dtype=dtype).view(bits.dtype)[0].item()
        expected = as_loop(bits, cu, shift, 0, fill_bits).view(dtype)
        for result in (packed_roll(x, cu, shift, fill=fill), gather_kernel(x, cu, shift, 0, fill)):
            assert result.dtype is dtype
            assert reference.same(result, expected)


@pytest.mark.parametrize("dim", range(-3, 3))
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_dimensions(dim: int, dtype: torch.dtype) -> None:
    shape = [2, 3, 4]
    shape[dim] = 13
    x = reference.sample(torch.float32, *shape)
    cu = torch.tensor([1, 5, 6, 12], dtype=dtype)
    for fill in (-1.5, None):
        assert torch.equal(packed_roll(x, cu, -2, dim, fill), as_loop(x, cu, -2, dim, fill))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("fill", [0, 7, None])
@pytest.mark.parametrize("seed", range(4))
def test_padded(seed: int, shift: int, fill: int | None) -> None:
    cu, padded = reference.padded_documents(40, 5 + seed)
    x = reference.sample(torch.int64, 40, 2)
    expected = as_loop(x, cu, shift, 0, fill, padded)
    assert torch.equal(packed_roll(x, cu, shift, 0, fill, padded), expected)
    assert torch.equal(gather_kernel(x, cu, shift, 0, fill, padded), expected)


def test_padded_by_hand() -> None:
    """Documents of 3 and 2 tokens in 4 slots each: the last real token and the padding both get the fill."""
    x = torch.tensor([1, 2, 3, 9, 4, 5, 9, 9])
    cu, padded = torch.tensor([0, 3, 5]), torch.tensor([0, 4, 8])
    assert packed_roll(x, cu, cu_seqlens_padded=padded).tolist() == [2, 3, 0, 0, 5, 0, 0, 0]
    assert packed_roll(x, cu, fill=None, cu_seqlens_padded=padded).tolist() == [2, 3, 1, 9, 5, 4, 9, 9]


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    dim = 0 if shape == (0,) else 1
    cu = torch.tensor([0, 0, shape[dim]])
    for fill in (0, None):
        for form in (packed_roll, cpu_kernel, gather_kernel):
            assert form(x, cu, -1, dim, fill, None).shape == x.shape


@pytest.mark.parametrize("fill", [0, None])
def test_strides(fill: int | None) -> None:
    """Transposed, expanded, sliced and channels-last inputs give what a contiguous copy gives, contiguous."""
    cu = torch.tensor([1, 3, 6])
    inputs = [
        reference.sample(torch.float32, 4, 7).t(),
        reference.sample(torch.float32, 7, 1).expand(7, 5),
        reference.sample(torch.float32, 21, 4)[::3, ::2],
        reference.sample(torch.float32, 7, 3, 2, 2).to(memory_format=torch.channels_last),
    ]
    for x in inputs:
        for form in (packed_roll, cpu_kernel, gather_kernel, patch_form):
            result = form(x, cu, -1, 0, fill)
            assert result.is_contiguous()
            assert torch.equal(result, as_loop(x, cu, -1, 0, fill))


@pytest.mark.parametrize("shift", [-4, -5, 6, 10**12, -(10**12)])
@pytest.mark.parametrize("fill", [0, None])
def test_shift_beyond_the_row(shift: int, fill: int | None) -> None:
    x, cu = torch.arange(1, 6), torch.tensor([0, 2, 5])
    assert torch.equal(packed_roll(x, cu, shift, fill=fill), as_loop(x, cu, shift, 0, fill))


def test_result_is_new() -> None:
    x = torch.arange(6)
    for shift in (0, -1):
        result = packed_roll(x, torch.tensor([0, 6]), shift)
        result.fill_(-1)
        assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_chain_is_one_longer_shift() -> None:
    x, cu = reference.sample(torch.int64, 40), reference.documents(40, 6, head=2, tail=3)
    chained = packed_roll(packed_roll(packed_roll(x, cu), cu), cu)
    assert torch.equal(chained, packed_roll(x, cu, -3))


class NoHostSync(TorchDispatchMode):
    """Fails where an op's kernel hands a value, or a size that depends on values, to the host."""

    SYNCHRONISE = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func._schema.name.split("::")[1]
        assert not name.startswith(self.SYNCHRONISE), f"{name} waits for the device"
        assert name != "repeat_interleave" or "output_size" in str(kwargs), "repeat_interleave counts on the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fill", [0, None])
def test_no_host_sync(fill: int | None) -> None:
    """The kernel of devices other than the CPU, run on CPU tensors under a mode that forbids reading values."""
    cu, padded = reference.padded_documents(40, 5)
    x = reference.sample(torch.float32, 40)
    with NoHostSync():
        rolled = gather_kernel(x, cu, -3, 0, fill, padded)
        patched = patch_form(x, padded, -3, 0, fill)
    assert torch.equal(rolled, as_loop(x, cu, -3, 0, fill, padded))
    assert torch.equal(patched, as_loop(x, padded, -3, 0, fill))


def test_the_sync_detector_detects() -> None:
    with NoHostSync(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(1).item()


@pytest.mark.parametrize(
    ("dtype", "shift", "padded", "host"),
    [
        (torch.int64, -1, False, False),
        (torch.bfloat16, 8, False, False),
        (torch.int64, -9, False, True),  # a patch of 9 slots per document costs more than knowing the boundaries
        (torch.int64, -1, True, True),
        (torch.bool, -1, False, True),  # generated code stores bools 300 times slower than a copy
        (torch.complex64, -1, False, True),
    ],
)
def test_choice_of_form_on_the_cpu(dtype: torch.dtype, shift: int, padded: bool, host: bool) -> None:
    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    cu = torch.tensor([0, 4, 20])
    x = reference.sample(dtype, 20)
    with Record():
        result = decomposition(x, cu, shift, 0, 0, cu if padded else None)
    assert ("packpass.host_packed_roll.default" in seen) is host
    assert torch.equal(result, as_loop(x, cu, shift, 0, 0))
