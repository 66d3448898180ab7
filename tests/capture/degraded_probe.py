"""What packpass says where its hooks are off, dead or do not fit: ``python -m tests.capture.degraded_probe``.

Each case runs in a forked child, so that torch is imported once and nothing survives from case to case.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.convert_frame
import torch.distributed
import torch.testing._internal.distributed.fake_pg
from torch import Tensor
from torch._dynamo.output_graph import OutputGraph

import packpass.capture.hooks  # not the backend, which installs the hooks
import passes  # noqa: F401

# Canaries that a case runs: all where nothing is captured, which is quick; else those of its group and another one.
SHIFT, LATE, MESSAGES = "shift, unread boundaries", "late read in a backward", "messages in a loop"
LISTS = "documents in lists"
SOME = {"late-reads": (LATE, SHIFT), "boundary-inputs": (SHIFT, LATE), "p2p": (MESSAGES, LATE)}
SOME |= {"list-inputs": (LISTS, SHIFT)}


def loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        out[s:e] = x[s:e].flip(0)
    return out


def listed(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds, bounds[1:])])


def helper(x: Tensor, cu: Tensor) -> Tensor:
    return loop(x, cu) + 1


def shift(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    labels = torch.roll(input_ids, -1, dims=-1)
    labels[..., -1] = -100
    return labels


def layers(x: Tensor, cu: Tensor) -> Tensor:
    """No documents: a loop that needs nobody's help."""
    for weight in (1.0, 2.0, 3.0):
        x = torch.tanh(x * weight)
    return x


def off(groups: str) -> Callable[[], None]:
    return lambda: os.environ.__setitem__("PACKPASS_DISABLE_HOOKS", groups)


def dead(*names: str) -> Callable[[], None]:
    """Hooks that install and are never called, as where a torch kept a name and uses another one."""

    def patch() -> None:
        from packpass.capture import hooks, number_lists, p2p

        if not names or "p2p" in names:  # it has no hook of its own
            p2p.call_function = lambda *args: None
        if not names or "list-inputs" in names:
            number_lists.seen = lambda *args: None
        original = hooks.install_group

        def install(group: Any, off: Any) -> None:
            wrap, extra = hooks.wrap, group.extra
            if not names or group.name in names:
                hooks.wrap, group.extra = (lambda *args, **kwargs: None), None
            original(group, off)
            hooks.wrap, group.extra = wrap, extra

        packpass.capture.install_group = install

    return patch


def misfit() -> None:
    """A torch where one function that the loops need takes something else."""
    stock = OutputGraph.compile_subgraph

    def other(self: Any, translator: Any, *args: Any, **kwargs: Any) -> Any:
        return stock(self, translator, *args, **kwargs)

    OutputGraph.compile_subgraph = other  # type: ignore[method-assign]


CASES: dict[str, Callable[[], None]] = {
    **{f"off {g}": off(g) for g in ("gate", "symbolic-loops", "late-reads", "boundary-inputs", "list-inputs", "p2p")},
    **{f"dead {g}": dead(g) for g in ("symbolic-loops", "late-reads", "boundary-inputs", "list-inputs", "p2p")},
    "dead all": dead(),
    "misfit symbolic-loops": misfit,
}


def refusals(program: Callable[..., Any], *args: Any) -> list[Any]:
    """What a report says: refusals, the number of rewrites, and whether the result is eager's."""
    report = packpass.explain(program, options={"packpass.inner_backend": "eager"})(*args)
    same = torch.equal(report.result, program(*args))
    return [[[r.rule, r.code, r.location, r.reason] for r in report.refusals], len(report.rewrites), same]


def probe(case: str) -> dict[str, Any]:
    from packpass import capture

    CASES[case]()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        import packpass.cli.canaries as canaries

        states = {s.name: s.state for s in capture.hook_states()}
    group = case.split(" ")[1]
    names = SOME.get(group)
    run = canaries.run_all([c for c in canaries.CANARIES if names is None or c.name in names])
    x, cu, ids = torch.randn(12, 3), torch.tensor([0, 3, 7, 12]), torch.arange(12)[None]
    programs: dict[str, Any] = {"shift": (shift, ids, cu), "layers": (layers, x, cu)}
    if names is None:
        programs |= {"loop": (loop, x, cu), "listed": (listed, x, cu), "helper": (helper, x, cu)}
    return {
        "states": states,
        "warnings": [str(w.message) for w in said if w.category.__name__ == "CompatibilityWarning"],
        "canaries": {outcome.name: dataclasses.asdict(outcome) for outcome in run},
        **{name: refusals(*call) for name, call in programs.items()},
    }


def _in_a_child(case: str) -> Any:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            text = json.dumps(probe(case))
        except BaseException as error:
            text = json.dumps({"error": repr(error)})
        with os.fdopen(write, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print("PROBE" + json.dumps({case: _in_a_child(case) for case in CASES}))
