"""For test suites: ``packpass.testing.assert_isolated``. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packpass.leaks.records import Audit


class NotIsolatedError(AssertionError):
    """One document sees another; the message is the audit, which is ``audit``."""

    audit: Audit


def assert_isolated(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    cu_seqlens: Any = None,
    **audit_kwargs: Any,
) -> Audit:
    """Assert that no output and no gradient at one document depends on another document; returns the audit.

    Args:
        model, args, kwargs: the call ``model(*args, **kwargs)``; nothing of it is changed.
        cu_seqlens: boundaries ``[N + 1]`` in tokens; by default as :func:`packpass.audit` finds them.
        audit_kwargs: keywords of :func:`packpass.audit`, such as ``documents=`` or ``backend=``.

    Raises:
        AssertionError: with the operations, their lines and what to do.
        ValueError: nothing would be compared (see :func:`packpass.audit`).
    """
    from packpass.leaks.audit import audit

    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a list or tuple of the model's arguments, got {type(args).__name__}")
    found = audit(model, cu_seqlens, **audit_kwargs)(*args, **dict(kwargs or {}))
    if not found.clean:
        error = NotIsolatedError(f"documents are not kept apart\n{found}")
        error.audit = found
        raise error
    return found
