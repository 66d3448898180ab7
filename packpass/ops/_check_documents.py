"""``check_documents`` (internal): a condition that every document must fulfil, without a host sync on a GPU.

    assert holds.all(), message

Eager on the CPU, conditions are host memory: the kernel raises a ValueError that names the first document for which it
does not hold, and the numbers it was about. On a GPU it is an asynchronous device assertion with the message.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass._compat import assert_async
from packpass.ops._library import define


def _kernel(holds: Tensor, numbers: list[Tensor], message: str) -> None:
    assert_async(holds.all(), f"packpass: {message}")


def _cpu_kernel(holds: Tensor, numbers: list[Tensor], message: str) -> None:
    if not holds.all():
        d = int(holds.logical_not().nonzero()[0])
        said = ", ".join(str(int(n[d])) for n in numbers)
        raise ValueError(f"packpass: document {d}: {message} ({said})")


def _fake(holds: Tensor, numbers: list[Tensor], message: str) -> None:
    return None


check_documents_op = define(
    "check_documents(Tensor holds, Tensor[] numbers, str message) -> ()",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
)
# Without an output it would be dead code to every pass over a graph.
torch.fx.has_side_effect(check_documents_op)
