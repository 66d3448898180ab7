"""Options of packpass: validated once, frozen, handed to every pass.

Options come from three places, later ones win: the defaults below, ``PACKPASS_<NAME>`` in the environment, and
``"packpass.<name>"`` keys of the dict given to ``torch.compile(..., options=...)``. Every other key of that dict
belongs to Inductor and is returned untouched.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from packpass import _passes

FixShifts = Literal["auto", "declared", "off"]
OnRefusal = Literal["ignore", "warn", "raise"]
InnerBackend = Literal["inductor", "aot_eager", "eager"]

PREFIX = "packpass."
ENV_PREFIX = "PACKPASS_"

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})


@dataclasses.dataclass(frozen=True)
class Options:
    """What packpass may do to a graph. Immutable and hashable, so that it can be part of a cache key."""

    fix_shifts: FixShifts = "auto"
    """Make boundary-blind shifts respect documents: where one reading is possible, only where declared, or never."""
    eliminate_padding: bool = False
    """Turn padded attention into packed attention (changes numerics within tolerance)."""
    isolate: bool = False
    """Make every operation that mixes slots of a packed row stop at documents, or refuse the graph with the list."""
    symbolic_loops: bool = True
    """Trace a loop over documents once for every number of documents instead of unrolling it."""
    disable: tuple[str, ...] = ()
    """Passes that must not run."""
    on_refusal: OnRefusal = "ignore"
    """What to do when a pass finds its pattern and may not rewrite it."""
    verify: bool = False
    """Run the original graph beside the rewritten one and raise on any difference."""
    inner_backend: InnerBackend = "inductor"
    """Who compiles the rewritten graph; the other two are for debugging and quick tests."""
    agreement: bool = True
    """Before a graph with collectives of packpass runs for the first time, compare them between the ranks."""
    agreement_timeout: float = 60.0
    """Seconds that a rank waits for the others in that comparison, while none of them compiles; at most ten times as
    long in all."""
    bucket_bytes: int = 256 * 2**20
    """Most bytes per rank that are put into one all-to-all after autograd, symbolic sizes not counted; 0: none is."""
    collective_latency_us: float | None = None
    """What starting one collective costs, in microseconds; None: as measured (`packpass.measure_group`), or typical."""
    collective_bandwidth_gbs: float | None = None
    """What a rank sends per second, in GB; None as above."""
    copy_bandwidth_gbs: float | None = None
    """What a device copies from memory to memory per second, in GB; None as above."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _checked(field.name, getattr(self, field.name), f"{PREFIX}{field.name}")
            object.__setattr__(self, field.name, value)

    @classmethod
    def from_dict(
        cls, options: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[Options, dict[str, Any]]:
        """Split the ``options=`` of torch.compile into ours and Inductor's.

        Returns ``(options, inductor_options)``; the mapping given is never changed. Raises ``ValueError`` for an
        unknown ``packpass.*`` key or a value that is not allowed, ``TypeError`` for a value of the wrong type; the
        message names the key (or the environment variable), the value and what is allowed.
        """
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"options must be a dict or None, got {type(options).__name__}: {options!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        ours: dict[str, Any] = {}
        inductor: dict[str, Any] = {}
        for key, value in (options or {}).items():
            if not (isinstance(key, str) and key.startswith(PREFIX)):
                inductor[key] = value
                continue
            name = key[len(PREFIX) :]
            if name not in known:
                raise ValueError(_unknown_option(key, sorted(known)))
            ours[name] = _checked(name, value, key)
        return cls(**{**from_environment(environ), **ours}), inductor

    def runs(self, name: str) -> bool:
        """May the pass of this name run, as far as the options say?"""
        options = {p.option for p in _passes.PASSES if p.name == name and p.option}
        return name not in self.disable and all(getattr(self, option) for option in options)

    def without(self, *names: str) -> Options:
        """The same, with these passes off."""
        return dataclasses.replace(self, disable=tuple(dict.fromkeys((*self.disable, *names))))

    def to_dict(self) -> dict[str, Any]:
        """The options as the ``packpass.*`` dict that would produce them."""
        return {f"{PREFIX}{field.name}": getattr(self, field.name) for field in dataclasses.fields(self)}


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The option values that ``PACKPASS_<NAME>`` variables set, checked; empty variables count as unset."""
    environ = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        variable = ENV_PREFIX + field.name.upper()
        text = environ.get(variable, "").strip()
        if text:
            found[field.name] = parse(field.name, text, variable)
    return found


def parse(name: str, text: str, source: str) -> Any:
    """The value of option ``name`` written as text (environment, command line); ``source`` is named in errors."""
    if name not in _ALLOWED:
        raise ValueError(_unknown_option(source, sorted(_ALLOWED)))
    if _ALLOWED[name] is bool:
        lowered = text.strip().lower()
        if lowered in _TRUE | _FALSE:
            return lowered in _TRUE
        raise ValueError(f"{source} = {text!r}: allowed are 1/true/on and 0/false/off")
    if isinstance(_ALLOWED[name], _Number):
        return _checked(name, _number(text, _ALLOWED[name], source), source)
    return _checked(name, text.strip(), source)


def _literal(alias: Any) -> tuple[str, ...]:
    return get_args(alias)


@dataclasses.dataclass(frozen=True)
class _Number:
    """A finite number of at least (``exclusive``: above) 0; ``optional``: or None."""

    whole: bool = False
    optional: bool = False
    exclusive: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} {'above' if self.exclusive else 'of at least'} 0{' or None' if self.optional else ''}"


# option -> bool, the allowed strings, `tuple` for a list of pass names, or what numbers are allowed
_ALLOWED: dict[str, Any] = {
    "fix_shifts": _literal(FixShifts),
    "eliminate_padding": bool,
    "isolate": bool,
    "symbolic_loops": bool,
    "disable": tuple,
    "on_refusal": _literal(OnRefusal),
    "verify": bool,
    "inner_backend": _literal(InnerBackend),
    "agreement": bool,
    "agreement_timeout": _Number(exclusive=True),
    "bucket_bytes": _Number(whole=True),
    "collective_latency_us": _Number(optional=True),
    "collective_bandwidth_gbs": _Number(optional=True, exclusive=True),
    "copy_bandwidth_gbs": _Number(optional=True, exclusive=True),
}


def _checked(name: str, value: Any, source: str) -> Any:
    allowed = _ALLOWED[name]
    if allowed is bool:
        if not isinstance(value, bool):
            raise TypeError(f"{source} = {value!r}: must be True or False, got {type(value).__name__}")
        return value
    if allowed is tuple:
        return _checked_passes(value, source)
    if isinstance(allowed, _Number):
        return _checked_number(value, allowed, source)
    if not isinstance(value, str):
        raise TypeError(
            f"{source} = {value!r}: must be a string, got {type(value).__name__}; allowed are {_list(allowed)}"
        )
    if value not in allowed:
        raise ValueError(f"{source} = {value!r}: allowed are {_list(allowed)}{_did_you_mean(value, allowed)}")
    return value


def _checked_passes(value: Any, source: str) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple, set, frozenset)):
        raise TypeError(f"{source} = {value!r}: must be a list of pass names, got {type(value).__name__}")
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"{source} = {value!r}: pass names are strings, got {wrong[0]!r}")
    stripped = [name.strip() for name in names if name.strip()]
    known = _passes.names()
    for name in stripped:
        if name not in known:
            raise ValueError(
                f"{source} = {value!r}: no pass is called {name!r}{_did_you_mean(name, known)}; "
                f"the passes are {', '.join(known)}"
            )
    return tuple(name for name in known if name in stripped)  # one order, so that equal options compare equal


def _number(text: str, allowed: _Number, source: str) -> int | float:
    try:
        return int(text) if allowed.whole else float(text)
    except ValueError:
        raise ValueError(f"{source} = {text!r}: must be {allowed}") from None


def _checked_number(value: Any, allowed: _Number, source: str) -> int | float | None:
    if value is None and allowed.optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int if allowed.whole else (int, float)):
        raise TypeError(f"{source} = {value!r}: must be {allowed}, got {type(value).__name__}")
    number: int | float = value if allowed.whole else float(value)
    if not math.isfinite(number) or number < 0 or (allowed.exclusive and not number):
        raise ValueError(f"{source} = {value!r}: must be {allowed}")
    return number


def _unknown_option(key: str, known: list[str]) -> str:
    # Compared without the prefix, which would make everything look alike.
    hint = _did_you_mean(key.removeprefix(PREFIX), known, PREFIX)
    return f"unknown option {key!r}{hint}; the packpass options are {', '.join(PREFIX + name for name in known)}"


def _did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""


def _list(allowed: Iterable[str]) -> str:
    return ", ".join(repr(item) for item in allowed)
