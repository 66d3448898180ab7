"""Auditing what a compiler made of a model: its graphs are run call by call, each at the user's line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import fx

from packpass import _compat
from packpass.decisions.location import location_of_node
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.engine.explain import new_graph_breaks


class Follower(Protocol):
    """A mode that sees the calls inside it, and is told where they stand."""

    location: Callable[[], str]

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> Any: ...


class Following:
    """A model compiled with a backend, and once more with its graphs run by an interpreter."""

    def __init__(self, model: Any, backend: Any, kwargs: Mapping[str, Any]) -> None:
        self.model, self.backend, self.kwargs = model, backend, dict(kwargs)
        self._ours = backend == "packpass" or isinstance(backend, Backend)
        self._before = dict(_compat.dynamo_counters("graph_break"))
        self._step: Follower | None = None
        self._followed: Callable[..., Any] | None = None

    def compiled(self) -> Callable[..., Any]:
        """What the user would run."""
        made: Callable[..., Any] = compile_afresh(self.model, Backend() if self._ours else self.backend, self.kwargs)
        return made

    def run(self, step: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the graphs with every call followed. Python between graphs is not."""
        if self._followed is None:
            options = self.kwargs.get("options")
            if self._ours:
                keywords = {k: v for k, v in self.kwargs.items() if k != "mode"}
                self._followed = compile_afresh(self.model, _Interpreting(self), {**keywords, "options": options})
            else:
                keywords = {k: v for k, v in self.kwargs.items() if k not in ("mode", "options")}
                self._followed = compile_afresh(self.model, self.interpret, keywords)
        self._step = step
        try:
            return self._followed(*args, **kwargs)
        finally:
            self._step = None

    def interpret(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """A backend that runs graphs by an interpreter, in lockstep where that is wanted."""
        runner = _Runner(gm)

        def run(*inputs: Any) -> Any:
            step = self._step
            if step is None:
                return runner.run(*inputs)
            step.location = runner.location
            with step:
                return runner.run(*inputs)

        return run

    def breaks(self) -> list[str]:
        """What Dynamo could not put into a graph."""
        reasons = dict.fromkeys(new_graph_breaks(self._before))
        return [f"Python at a graph break is not followed: {reason.strip().splitlines()[0]}" for reason in reasons]


class _Runner(fx.Interpreter):
    """Knows which node runs."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self._node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self._node = n
        return super().run_node(n)

    def location(self) -> str:
        return location_of_node(self._node) or "<unknown>"


class _Interpreting(Backend):
    """packpass, with an interpreter behind it."""

    def __init__(self, following: Following) -> None:
        self._following = following

    def compile_graph(self, gm: fx.GraphModule, example_inputs: Sequence[Any], *_: Any) -> Callable[..., Any]:
        return self._following.interpret(gm, example_inputs)
