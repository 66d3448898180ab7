"""pack, unpack and remap_cu_seqlens on a real GPU: the values of the CPU, without a host sync, or with the one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from packpass.ops import pack, remap_cu_seqlens, unpack
from tests.ops import packing

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@contextmanager
def host_syncs(allowed: int) -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum("synchronizing" in str(warning.message) for warning in seen) == allowed


@pytest.mark.parametrize("name", [name for name in packing.MASKS if name != "no rows"])
@pytest.mark.parametrize("total", [None, 40])
@pytest.mark.parametrize("four", [False, True])
def test_values(name: str, total: int | None, four: bool) -> None:
    keep = packing.mask_of(name)
    mask = packing.attention(keep, True) if four else keep
    x, ids = torch.randn(*keep.shape, 8), torch.arange(keep.numel()).view(keep.shape)
    (h, packed), batch = pack([x, ids], mask, multiple_of=4, fill=[0, -100], total=total)
    on_gpu, gpu_mask = [x.cuda().requires_grad_(), ids.cuda()], mask.cuda()
    with host_syncs(0 if total else 1):
        (gpu_h, gpu_packed), gpu_batch = pack(on_gpu, gpu_mask, multiple_of=4, fill=[0, -100], total=total)
    with host_syncs(0):
        back = unpack(gpu_h, gpu_batch)
        (grad,) = torch.autograd.grad(back.sum(), on_gpu[0])
    assert torch.equal(gpu_h.cpu(), h)
    assert torch.equal(gpu_packed.cpu(), packed)
    assert torch.equal(back.cpu(), unpack(h, batch))
    assert torch.equal(grad.cpu(), (keep != 0).unsqueeze(2).float().expand(x.shape))
    for field in ("cu_seqlens", "cu_seqlens_padded", "position_ids", "padding_mask", "source", "slots"):
        assert torch.equal(getattr(gpu_batch, field).cpu(), getattr(batch, field)), field
    assert gpu_batch.max_seqlen == batch.max_seqlen


def test_a_mask_that_is_refused() -> None:
    """Found out by the one read, before anything is asserted."""
    mask = packing.attention(packing.mask_of("right"), True)
    mask[1, 0, 3, 2] = True
    with pytest.raises(ValueError, match="row 1 of the attention mask"):
        pack(torch.zeros(3, 5).cuda(), mask.cuda())


def test_compiled() -> None:
    torch._dynamo.reset()

    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        packed, batch = pack(x, mask, total=64)
        return unpack(packed.sin(), batch)

    compiled = torch.compile(program, fullgraph=True, dynamic=True)
    for name in ("right", "holes", "empty rows"):
        keep = packing.mask_of(name)
        x = torch.randn(*keep.shape, 8)
        torch.testing.assert_close(compiled(x.cuda(), keep.cuda()).cpu(), program(x, keep))


def test_remap() -> None:
    cu, widths = torch.tensor([0, 3, 5, 10], dtype=torch.int32), torch.tensor([1, 4, 1, 0, 1, 1, 9, 1, 2, 1])
    gpu_cu, gpu_widths = cu.cuda(), widths.cuda()
    with host_syncs(0):
        new = remap_cu_seqlens(gpu_cu, gpu_widths)
    assert torch.equal(new.cpu(), remap_cu_seqlens(cu, widths))
