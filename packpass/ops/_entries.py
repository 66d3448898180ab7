"""``entries`` and ``ends`` (internal): numbers of documents, as generated code is to read and to add them up.

    entries(numbers, places) == numbers[places]      # int64 places, all within the vector
    ends(lengths) == pad(cumsum(lengths), (1, 0))    # int64

For an index of whose range it knows nothing, Inductor writes code that wraps negative numbers and looks whether they
lie within the tensor, a dozen lines for every read. The numbers of documents are worked out from boundaries that have
been checked. And a running sum with a zero in front is a call and a kernel; of the few numbers that there are documents
a call does both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass._compat import register_inductor_entries
from packpass.ops._library import define


def _entries(numbers: Tensor, places: Tensor) -> Tensor:
    return numbers.index_select(0, places)


entries_op = define(
    "entries(Tensor numbers, Tensor places) -> Tensor",
    fake=lambda numbers, places: numbers.new_empty(places.shape),
    kernel=_entries,
)
register_inductor_entries(entries_op)


def _ends(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _ends_cpu(lengths: Tensor) -> Tensor:
    out = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=out[1:])
    return out


ends_op = define(
    "ends(Tensor lengths) -> Tensor",
    fake=lambda lengths: lengths.new_empty((lengths.shape[0] + 1,), dtype=torch.int64),
    kernel=_ends,
    cpu_kernel=_ends_cpu,
)
