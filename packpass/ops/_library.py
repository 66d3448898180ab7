"""The torch library ``packpass``: where every op of this package is defined, once.

``Library(..., "DEF")`` may exist once per process: importing this file a second time (a reload, a second copy of the
package on ``sys.path``) raises instead of silently making a second set of overloads that no pass would recognise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from packpass._compat import register_inductor_decomposition

NAMESPACE = "packpass"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")

# An OpOverload; its class lives in a private module of torch.
Op = Callable[..., Any]


def define(
    schema: str,
    *,
    fake: Callable[..., Any],
    kernel: Callable[..., Any],
    cpu_kernel: Callable[..., Any] | None = None,
    decomposition: Callable[..., Any] | None = None,
) -> Op:
    """Define ``packpass::<schema>`` and register what belongs to it.

    Args:
        schema: torch operator schema, without the namespace.
        fake: shapes and dtypes only; must not guard on data or specialise sizes.
        kernel: eager kernel for every device; must not synchronise with the device.
        cpu_kernel: eager kernel for the CPU, where boundaries are host memory and may be read.
        decomposition: used by Inductor; may return ``NotImplemented`` to keep the op as it is.

    Returns:
        The one overload, ``torch.ops.packpass.<name>.default``.
    """
    name = schema.split("(", 1)[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    if cpu_kernel is not None:
        LIBRARY.impl(name, cpu_kernel, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _on_one_device(name, fake), lib=LIBRARY)
    op: Op = getattr(getattr(torch.ops, NAMESPACE), name).default
    if decomposition is not None:
        register_inductor_decomposition(op, decomposition)
    return op


def _on_one_device(name: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """``fake``, which refuses tensors of several devices: no kernel takes them, and torch checks its own ops only."""

    @functools.wraps(fake)
    def checked(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = sorted({str(x.device) for x in tensors})
        if len(devices) > 1:
            raise RuntimeError(f"packpass::{name}: expected all tensors on one device, got {' and '.join(devices)}")
        return fake(*args, **kwargs)

    return checked


def differentiable(op_name: str, backward: Callable[..., Any], setup_context: Callable[..., Any]) -> None:
    """Register the backward of ``packpass::<op_name>``; it must itself be built from differentiable ops."""
    torch.library.register_autograd(f"{NAMESPACE}::{op_name}", backward, setup_context=setup_context, lib=LIBRARY)
