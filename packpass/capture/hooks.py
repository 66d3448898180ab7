"""The hook table: which Dynamo functions packpass wraps, why, and whether that worked on this torch.

Every hook is installed once and stays (Dynamo caches bound handlers across compiles, so swapping hooks in and out
leaks them into other backends) and is *gated*: outside a frame that packpass compiles it calls the original, nothing
else. A hook whose target is missing or has another signature on this torch marks its group broken; a broken or
switched-off group degrades to what stock ``torch.compile`` does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

from packpass.capture.state import active

Replacement = Callable[..., Any]
"""Called as ``replacement(original, *args, **kwargs)``."""


@dataclasses.dataclass(frozen=True)
class HookState:
    """What `doctor` prints for one group of hooks."""

    name: str
    purpose: str
    state: str
    """"on", "off" (switched off by the user) or "broken" (this torch is not supported)."""
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Hook:
    """One wrapped function: ``owner.attribute`` must take ``parameters`` (a prefix check) on this torch."""

    owner: Callable[[], Any]
    attribute: str
    parameters: tuple[str, ...]
    replacement: Replacement
    gated: bool = True


@dataclasses.dataclass
class Group:
    """Hooks that only make sense together, with one switch."""

    name: str
    purpose: str
    hooks: tuple[Hook, ...]
    extra: Callable[[], None] | None = None
    """Installs what is not a plain attribute of something."""
    check: Callable[[], str | None] | None = None
    """Why this torch does not fit, where that is more than one missing attribute; None if it does."""
    state: str = "off"
    reason: str = "not installed yet"


GROUPS: list[Group] = []
"""The table, once it is installed."""


def group_is_on(name: str) -> bool:
    """Is this hook group installed?"""
    return any(group.name == name and group.state == "on" for group in GROUPS)


def hook_states() -> list[HookState]:
    """One entry per hook group; empty before the backend is imported."""
    return [HookState(g.name, g.purpose, g.state, g.reason) for g in GROUPS]


def switched_off(environ: Iterable[tuple[str, str]] | None = None) -> frozenset[str]:
    """Names of hook groups that ``PACKPASS_DISABLE_HOOKS`` (comma-separated) switches off."""
    text = dict(environ if environ is not None else os.environ.items()).get("PACKPASS_DISABLE_HOOKS", "")
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def problem(hook: Hook) -> str | None:
    """Why this hook cannot be installed on this torch, or None."""
    try:
        owner = hook.owner()
    except (ImportError, AttributeError) as error:
        return f"{hook.attribute}: {error}"
    target = inspect.getattr_static(owner, hook.attribute, None)
    if target is None:
        return f"{getattr(owner, '__name__', owner)}.{hook.attribute} is missing"
    try:
        found = tuple(inspect.signature(getattr(owner, hook.attribute)).parameters)
    except (TypeError, ValueError) as error:
        return f"{hook.attribute}: {error}"
    if found[: len(hook.parameters)] != hook.parameters:
        return f"{getattr(owner, '__name__', owner)}.{hook.attribute} takes {found}, expected {hook.parameters} first"
    return None


def install_group(group: Group, off: frozenset[str]) -> None:
    """Check every target first, then wrap all of them: a group is installed whole or not at all."""
    if group.name in off:
        group.state, group.reason = "off", "switched off by PACKPASS_DISABLE_HOOKS"
        return
    problems = [p for hook in group.hooks if (p := problem(hook))]
    if group.check is not None and (found := group.check()) is not None:
        problems.append(found)
    if problems:
        group.state, group.reason = "broken", "; ".join(problems)
        return
    for hook in group.hooks:
        wrap(hook.owner(), hook.attribute, hook.replacement, gated=hook.gated)
    if group.extra is not None:
        group.extra()
    group.state, group.reason = "on", ""


def wrap(owner: Any, attribute: str, replacement: Replacement, *, gated: bool = True) -> None:
    """Replace ``owner.attribute``; while no packpass frame is traced on this thread the original runs unseen."""
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        if gated and active.frame is None:
            return original(*args, **kwargs)
        active.trace.alive.add(attribute)
        return replacement(original, *args, **kwargs)

    hooked.__packpass_original__ = original  # type: ignore[attr-defined]
    setattr(owner, attribute, hooked)
