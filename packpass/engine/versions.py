"""Which versions of torch packpass is tested with, in words. What works is found out by looking, never by a number:
the hooks test themselves, and ``python -m packpass doctor`` compiles canaries."""

from __future__ import annotations

import re
import threading
import warnings

TESTED: tuple[tuple[int, int], ...] = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""The releases that the tests run on, oldest first."""
OLDEST, NEWEST = TESTED[0], TESTED[-1]
PROVE = "run `python -m packpass doctor`, which compiles small programs and shows what is rewritten here"


class CompatibilityWarning(UserWarning):
    """This torch is not one that packpass is tested with, or a part of packpass does not work on it."""


_lock = threading.Lock()
_warned = False


def release(version: str) -> tuple[int, int] | None:
    """``(major, minor)`` of a version such as "2.15.0a0+git", or None if it cannot be read."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def tested_versions() -> str:
    """ "2.11 to 2.15"."""
    return f"{_text(OLDEST)} to {_text(NEWEST)}"


def torch_support(version: str) -> tuple[str, str]:
    """Whether packpass supports this version of torch ("ok", "note" or "broken"), and the sentence that says so."""
    this = release(version)
    if this is None:
        return "note", f"cannot read the version {version!r}; the tests run on {tested_versions()}"
    if this < OLDEST:
        return "broken", f"packpass needs torch >= {_text(OLDEST)}"
    if this > NEWEST:
        return "note", f"newer than the tested versions ({tested_versions()}): works as far as the canaries below do"
    if this in TESTED:
        return "ok", f"one of the tested versions ({tested_versions()})"
    return "note", f"between the tested versions ({', '.join(map(_text, TESTED))}), but none of them"


def require_torch(version: str) -> None:
    """Raise an ImportError that says what to do where torch is too old; it would fail obscurely further on."""
    this = release(version)
    if this is not None and this < OLDEST:
        raise ImportError(
            f"packpass needs torch >= {_text(OLDEST)}, and this is torch {version}. Update torch "
            f"(pip install 'torch>={_text(OLDEST)}'), or compile without packpass."
        )


def warn_if_untested(version: str) -> None:
    """Warn, once in a process, that nobody has run packpass on this version of torch."""
    global _warned
    if _warned:
        return
    with _lock:
        if _warned:
            return
        _warned = True
    this = release(version)
    if this is not None and this > NEWEST:
        warnings.warn(
            f"packpass is tested with torch {tested_versions()}, and this is torch {version}. Models run as far as "
            f"torch does, but rewrites may be missing: {PROVE}. To silence this: "
            "warnings.filterwarnings('ignore', category=packpass.CompatibilityWarning)",
            CompatibilityWarning,
            stacklevel=3,
        )


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
