"""A branch on the last boundary, in front of a loop: ``if freqs.size(0) == cu_seqlens[-1]``.

Where the documents fill a row, the last boundary is the row's length, and the branch one on sizes. Which row that is
only the loop behind it says, so the side is followed that the call at hand takes, and `markers.LAST_BOUNDARY` stands in
the graph until a pass has proven that it is a matter of sizes, which become a guard. Where none does, the frame is
traced again as stock torch would. Beside a rewritten graph the condition itself is checked, because boundaries that do
not begin with 0 end elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass import markers
from packpass._compat import hint_of
from packpass.capture.dynamo import TensorVariable, constant
from packpass.capture.frame import LOOP_MODES
from packpass.capture.state import active, current_frame
from packpass.capture.watch import is_unknown
from packpass.semantics.names import op_name

ASSUMED = "a branch on the last boundary is taken for one on the length of a row, which is not proven"
"""What speaks against a replay."""


def followed(tx: Any, value: Any) -> Any:
    """What a condition is, if it asks whether a size is the last boundary; None for any other."""
    if active.frame is None or active.frame.mode not in LOOP_MODES or active.regions:
        return None
    if not isinstance(value, TensorVariable):
        return None
    found = _parts(value.as_proxy().node)
    if found is None:
        return None
    boundaries, size = found
    number = size.meta.get("example_value") if isinstance(size, torch.fx.Node) else size
    last = None if is_unknown(number) else _last(boundaries)
    if last is None:
        return None
    outcome = hint_of(number) == last
    current_frame().not_replayable = current_frame().not_replayable or ASSUMED
    proxy = tx.output.current_tracer.proxy
    given = proxy(size) if isinstance(size, torch.fx.Node) else size
    tx.output.create_proxy("call_function", markers.LAST_BOUNDARY, (proxy(boundaries), given, outcome), {})
    return constant(outcome)


def _parts(node: torch.fx.Node) -> tuple[torch.fx.Node, Any] | None:
    """``(boundaries, size)`` of ``boundaries[-1] == size``."""
    if op_name(node) != "eq" or len(node.args) != 2 or node.kwargs:
        return None
    for last, size in (node.args, node.args[::-1]):
        if not isinstance(last, torch.fx.Node) or op_name(last) != "getitem" or last.args[1] != -1:
            continue
        boundaries = last.args[0]
        fake = boundaries.meta.get("example_value") if isinstance(boundaries, torch.fx.Node) else None
        whole = isinstance(fake, torch.Tensor) and fake.dim() == 1 and fake.dtype in (torch.int32, torch.int64)
        number = size.meta.get("example_value") if isinstance(size, torch.fx.Node) else size
        if whole and isinstance(number, (int, torch.SymInt)) and not isinstance(number, bool):
            return boundaries, size  # type: ignore[return-value]
    return None


def _last(boundaries: torch.fx.Node) -> int | None:
    """The last boundary of the call that is being compiled, which is what the pass will make a guard on sizes of."""
    real = getattr(boundaries.meta.get("grapharg"), "example", None)
    known = isinstance(real, torch.Tensor) and type(real) is torch.Tensor and real.numel()
    return int(real[-1]) if known else None  # type: ignore[index]
