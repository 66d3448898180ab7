"""What packpass does on a torch that its hooks do not fit: ``python -m tests.capture.hook_probe CASE...`` prints JSON.

Each case runs in a forked child, so that torch is imported once and nothing survives from case to case.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import output_graph, side_effects
from torch._dynamo.utils import counters


def loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].flip(1)
    return out


def _missing() -> None:
    del side_effects.SideEffects.load_cell  # only closures need it


def _signature() -> None:
    stock = output_graph.OutputGraph.compile_subgraph

    def other(self: Any, translator: Any, *args: Any, **kwargs: Any) -> Any:
        return stock(self, translator, *args, **kwargs)

    output_graph.OutputGraph.compile_subgraph = other


def _gate() -> None:
    stock = output_graph.OutputGraph.__init__

    def other(self: Any, code: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, code, fn, *args, **kwargs)

    output_graph.OutputGraph.__init__ = other


def _off(groups: str) -> Callable[[], None]:
    return lambda: os.environ.__setitem__("PACKPASS_DISABLE_HOOKS", groups)


CASES: dict[str, Callable[[], None]] = {
    "fits": lambda: None,
    "missing": _missing,
    "signature": _signature,
    "gate": _gate,
    "symbolic-loops off": _off("symbolic-loops"),
    "gate off": _off("gate, symbolic-loops, late-reads, boundary-inputs, list-inputs"),
}


def _stats(backend: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    counters.clear()
    options = None if backend == "eager" else {"packpass.inner_backend": "eager"}
    call = torch.compile(loop, backend=backend, options=options)
    same = []
    for docs in (3, 5, 1):
        x, cu = torch.arange(40.0).reshape(2, 20), torch.arange(docs + 1) * 3
        same.append(torch.equal(call(x, cu), loop(x, cu)))
    return {"same": same, "graphs": counters["stats"]["unique_graphs"], "breaks": sorted(counters["graph_break"])}


def probe(case: str) -> dict[str, Any]:
    """Hook states and what compiling a loop does, with packpass and (before it is imported) without."""
    CASES[case]()
    stock = _stats("eager")
    import packpass
    from packpass.engine.backend import capture

    states = {s.name: [s.state, s.reason] for s in capture.hook_states()}
    return {"states": states, "stock": stock, "packpass": _stats(packpass.backend), "stock again": _stats("eager")}


def _in_a_child(case: str) -> Any:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            text = json.dumps(probe(case))
        except BaseException as error:
            text = json.dumps({"error": repr(error)})
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print("PROBE" + json.dumps({case: _in_a_child(case) for case in sys.argv[1:]}))
