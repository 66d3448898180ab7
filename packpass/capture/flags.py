"""Flags and weights of documents that are read before any boundaries: ``if flags[i]:`` in front of
``mask[cu[i] : cu[i + 1]] = False``.

Dynamo meets an argument where the program first uses it. A loop that begins with a question about a vector of no
integers is left there, since nothing that may be boundaries has been met so far: the arguments of the frame are looked
through for them.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass._compat import hint_of
from packpass.capture import code_loops
from packpass.capture.dynamo import TensorVariable, example
from packpass.capture.frame import Mode
from packpass.capture.origins import INDEX_DTYPES, needed_for
from packpass.capture.state import current_frame
from packpass.capture.watch import enter_loop_mode, is_an_entry, loops_are_sought, static_sizes


def watch(tx: Any, value: Any) -> None:
    """An entry of a vector is about to be read on the host, which ends the graph. Restarts the analysis in a loop mode
    if an argument may be the boundaries, or the lengths, of as many documents."""
    frame = current_frame()
    if frame.mode is not Mode.PROBE or not frame.seeks or not loops_are_sought():
        return
    if not isinstance(value, TensorVariable) or example(value).dtype in INDEX_DTYPES:
        return
    entries: list[Any] = [node for node in needed_for([value.as_proxy().node]) if is_an_entry(node)]
    vectors = [entry.args[0].meta.get("example_value") for entry in entries]
    sizes = {hint_of(v.shape[0]) for v in vectors if isinstance(v, torch.Tensor) and v.dim() == 1}
    if len(sizes) != 1 or None in sizes or not code_loops.line_of_loop(tx):
        return
    documents = sizes.pop() or 0
    if _meet(tx, {documents, documents + 1}):
        enter_loop_mode(tx, static_sizes(documents), padded=True)


def _meet(tx: Any, sizes: set[int]) -> bool:
    """Make the vectors of integers of such sizes, that the frame was given and has not used so far, inputs."""
    found = []
    for local in dict(tx.output.root_tx.symbolic_locals).values():
        peek, is_met = getattr(local, "peek_value", None), getattr(local, "is_realized", None)
        if peek is None or is_met is None or is_met():
            continue
        value = peek()
        if isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in INDEX_DTYPES:
            if value.shape[0] in sizes:
                found.append(local)
    for local in found:
        local.realize()
    return bool(found)
