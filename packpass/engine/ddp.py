"""Under ``DistributedDataParallel``: the passes run on the whole graph, then DDP's optimizer splits what they made.

While a DDP module runs, Dynamo compiles with ``DDPOptimizer.compile_fn`` in place of the backend: it cuts the graph
where DDP's gradient buckets end and hands each piece to the backend. A captured loop must not be cut and its markers
must not reach a bucket, so the order is turned around: the backend gets the whole graph, and with it the optimizer that
will split the rewritten one into buckets for the inner backend.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from packpass._compat import ddp_optimizer_class, free_unbacked_symbols

log = logging.getLogger("packpass.capture")

Inner = Callable[..., Callable[..., Any]]

_OPTIMIZER = "packpass_ddp_optimizer"
"""Key of the optimizer in the meta of a graph module."""


class RewriteThenSplit:
    """In the place of ``DDPOptimizer.compile_fn``: the backend behind the optimizer, which gets the whole graph."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._torchdynamo_orig_backend = optimizer.backend_compile_fn  # where Dynamo looks for what is wrapped
        self.__name__ = getattr(optimizer.backend_compile_fn, "__name__", "packpass")

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        gm.meta[_OPTIMIZER] = self.optimizer
        compiled: Callable[..., Any] = self.optimizer.backend_compile_fn(gm, example_inputs, **kwargs)
        return compiled


def rewriting_first(compiler_fn: Any, is_ours: Callable[[Any], bool]) -> Any:
    """``compiler_fn``, or if it is DDP's optimizer in front of packpass, the same in the other order."""
    optimizer = getattr(compiler_fn, "__self__", None)
    if optimizer is not None and isinstance(optimizer, ddp_optimizer_class()) and is_ours(optimizer.backend_compile_fn):
        return RewriteThenSplit(optimizer)
    return compiler_fn


def take_optimizer(gm: fx.GraphModule) -> Any | None:
    """DDP's optimizer, if this graph is to be split for it; the graph forgets it, and so do its copies and pieces."""
    return gm.meta.pop(_OPTIMIZER, None)


def _has_unknown_sizes(gm: fx.GraphModule) -> bool:
    """Does any value have a size that no input has?"""
    values = (leaf for node in gm.graph.nodes for leaf in tree_leaves(node.meta.get("example_value")))
    return any(bool(free_unbacked_symbols(v)) for v in values if isinstance(v, (torch.Tensor, torch.SymInt)))


def splitting(optimizer: Any | None, whole: fx.GraphModule, inner: Inner) -> Inner:
    """``inner``, which compiles the ``whole`` graph in the pieces that ``optimizer`` makes; what else is compiled for
    it (the parts around a replayed loop, the packed form of a padded graph) is cut no further. Nor is a graph with
    sizes that depend on data: torch's splitter cannot hand those from piece to piece. Gradients of what is not split
    are exchanged when its whole backward is done, as with ``optimize_ddp = False``."""
    if optimizer is None:
        return inner

    def compile_pieces(part: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if part is not whole:
            return inner(part, inputs)
        if _has_unknown_sizes(part):
            log.info("a graph with sizes that are known only when it runs is not split at DDP's gradient buckets")
            return inner(part, inputs)
        splitter = copy.copy(optimizer)
        splitter.backend_compile_fn = inner
        compiled: Callable[..., Any] = splitter.compile_fn(part, list(inputs))
        return compiled

    return compile_pieces
