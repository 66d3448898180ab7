"""Symbolic sizes, the environments that know about them, and fake tensors."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import keyword
import logging
import math
import tokenize
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packpass._compat.operations import python_dispatcher


def current_shape_env() -> Any:
    """The ShapeEnv of the fake mode that is being traced with."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode()
    if mode is None or mode.shape_env is None:
        raise RuntimeError("packpass: a capture marker was called outside tracing")
    return mode.shape_env


def fake_mode_of(value: Any) -> Any:
    """The FakeTensorMode of a fake tensor, or None for a real one."""
    from torch._subclasses.fake_tensor import FakeTensor

    return value.fake_mode if isinstance(value, FakeTensor) else None


@contextlib.contextmanager
def without_fake_cache(mode: Any) -> Iterator[None]:
    """Fake values are not looked up by the sizes of what they are made of, nor remembered, in a FakeTensorMode that
    does so; None is no mode.

    Where sizes are new each time, remembering a value takes as long as working it out, and nobody meets it again.
    """
    if not getattr(mode, "cache_enabled", False):
        yield
        return
    mode.cache_enabled = False
    try:
        yield
    finally:
        mode.cache_enabled = True


def free_unbacked_symbols(value: Any) -> Any:
    """The data-dependent symbols in a SymInt, a tensor's shape, or anything else that holds some."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols as implementation

    return implementation(value)


def size_as_traced(size: Any) -> Any:
    """A size as an expression of the symbols that it was made with, before torch took other sizes to be equal to it; a
    number as it is."""
    node = getattr(size, "node", None)
    return size if node is None else node._expr


def statically_known_true(condition: Any) -> bool:
    """Is a symbolic condition true without a new guard?"""
    from torch.fx.experimental.symbolic_shapes import statically_known_true as implementation

    return bool(implementation(condition))


def guard_or_false(condition: Any) -> bool:
    """Is a symbolic condition true, by what is known or by a guard on sizes at hand? False where only data knows."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false as implementation

    return bool(implementation(condition))


def nothing_is_known(number: Any) -> bool:
    """Is it a number of its own that only data knows, of which no sign and no relation to anything is known? Then no
    question about it has an answer. False where that takes more than a look."""
    node = getattr(number, "node", None)
    symbol, env = getattr(node, "expr", None), getattr(node, "shape_env", None)
    range_of, axioms = getattr(env, "var_to_range", None), getattr(env, "axioms", None)
    if env is None or range_of is None or axioms is None or not getattr(symbol, "is_Symbol", False):
        return False
    known = range_of.get(symbol)
    if known is None or not free_unbacked_symbols(number) or not known.lower < 0 <= known.upper:
        return False
    seen, names = _related.get(env, (0, set()))
    # Only ever added to, while anything new is asked.
    for axiom in itertools.islice(axioms, seen if seen <= len(axioms) else 0, None):
        names |= axiom.free_symbols
    _related[env] = len(axioms), names
    return symbol not in names


# Of each ShapeEnv: how many of the facts it knows have been looked at, and the symbols in them.
_related: weakref.WeakKeyDictionary[Any, tuple[int, set[Any]]] = weakref.WeakKeyDictionary()


def either(one: Any, other: Any) -> Any:
    """``one or other`` of symbolic conditions, without deciding them."""
    from torch.fx.experimental.symbolic_shapes import sym_or

    return sym_or(one, other)


def size_oblivious(on: bool = True) -> Any:
    """Context in which (if ``on``) symbolic sizes are neither 0 nor 1 where only a layout question depends on it."""
    from torch.fx.experimental import _config

    config: Any = _config
    return config.patch(backed_size_oblivious=on)


def is_size_oblivious() -> bool:
    """Whether that context, or the user's own setting, is on."""
    from torch.fx.experimental import _config

    return bool(_config.backed_size_oblivious)


def ignore_fresh_symbols(mode: Any) -> Any:
    """Context in which data-dependent sizes created by fake runs are not expected to be bound by a graph node."""
    import contextlib

    env = getattr(mode, "shape_env", None)
    return contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()


def suppress_guards(mode: Any) -> Any:
    """Context in which fake runs decide by the sizes at hand and leave no guard, for what is known to hold anyway."""
    env = getattr(mode, "shape_env", None)
    return contextlib.nullcontext() if env is None else env.suppress_guards()


def least_of(condition: Any, number: Any) -> Any:
    """The least value that an expression of sizes of a symbolic condition may have, by what is known of these."""
    return condition.node.shape_env.bound_sympy(number).lower


def hint_of(size: Any) -> int | None:
    """The value of a symbolic size while compiling, without a guard; None if it is data-dependent, or stands for the
    several lengths of a jagged tensor."""
    import torch

    if not isinstance(size, torch.SymInt):
        return int(size)
    known = getattr(size.node, "has_hint", None)
    hint = size.node.hint if known is not None and known() else None
    return None if hint is None or isinstance(hint, torch.SymInt) else int(hint)


class Decision(NamedTuple):
    """What Python code has decided by a size: ``if T > 32:``, ``range(T // 64)``.

    ``holds(number)``: would it have for this number, too? ``taken``: the number that it has made of the size, if any.
    ``period``: if all that it asks is a remainder, numbers that differ by this are alike. ``text``: the line as the
    user wrote it, and where.
    """

    holds: Callable[[int], bool]
    taken: int | None
    period: int
    text: str


class Assumed(NamedTuple):
    """What has been guarded of a symbolic size so far.

    ``holds(number)``: does a number satisfy the same? (Code that asked whether a row is a multiple of its chunk is good
    for multiples only.) Guards that relate the size to other ones are left out. ``value_of(other)``: another size as a
    function of this one; None if it depends on more. ``divisors``: by which numbers it is divided in guards.
    ``guards``: each by itself, False where it cannot be computed. ``decisions``: those of Python code.
    """

    holds: Callable[[int], bool] = lambda value: True
    guards: tuple[Callable[[int], bool], ...] = ()
    value_of: Callable[[Any], Callable[[int], int] | None] = lambda other: None
    divisors: frozenset[int] = frozenset()
    decisions: tuple[Decision, ...] = ()


def _decided_by_python(guard: Any) -> bool:
    """Was it a line of the user's Python that asked, and no operation of torch for a shape of its own?

    Dynamo names the innermost line that is not torch's, as far as it knows torch's. Where that line only calls
    something, it was torch's own Python in there that asked (`associative_scan` cuts a row in halves).
    """
    import torch

    where = getattr(guard, "sloc", None)
    frame = getattr(where, "framework_loc", None)
    if "_dynamo/variables/" not in str(getattr(frame, "filename", frame)).replace("\\", "/"):
        return False
    line, _, place = str(getattr(where, "maybe_user_loc", None) or "").rpartition("# ")
    if (Path(torch.__file__).parent / place.partition(":")[0]).is_file():
        return False
    words: set[str] = set()
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # a line may be a part of a statement
        words.update(token.string for token in tokenize.generate_tokens(io.StringIO(line).readline))
    return not line or bool(words & _DECIDING)


_DECIDING = {*keyword.kwlist, "range", "<", ">", "<=", ">=", "==", "!="}


def assumed_of(size: Any) -> Assumed:
    """See `Assumed`."""
    import sympy
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP
    from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
    from torch.utils._sympy.printers import PythonPrinter

    symbol, env = size.node.expr, size.node.shape_env
    number = sympy.Symbol("number", integer=True)

    def function(expression: Any) -> Callable[[int], Any]:
        # As Python: a chunked scan has hundreds of guards, and sympy takes milliseconds for each.
        code = compile(PythonPrinter().doprint(expression.xreplace({symbol: number})), "<size>", "eval")
        return lambda value: eval(code, dict(SYMPY_INTERP), {"number": value})

    def satisfied(condition: Callable[[int], Any]) -> Callable[[int], bool]:
        def ask(value: int) -> bool:
            try:
                return bool(condition(value))
            except ZeroDivisionError:
                return False

        return ask

    def value_of(other: Any) -> Callable[[int], int] | None:
        expression = env.replace(other.node.expr)
        return function(expression) if expression.free_symbols == {symbol} else None

    if not isinstance(symbol, sympy.Symbol):
        return Assumed()
    guards = dict.fromkeys(env.replace(guard.expr) for guard in env.guards)
    mine = [guard for guard in guards if guard.free_symbols == {symbol}]
    conditions = tuple(satisfied(function(guard)) for guard in mine)
    divided = {atom for guard in mine for atom in guard.atoms(Mod, PythonMod, FloorDiv) if atom.args[0] == symbol}
    divisors = frozenset(int(atom.args[1]) for atom in divided if atom.args[1].is_Integer)

    @functools.cache
    def holds(value: int) -> bool:
        return all(condition(value) for condition in conditions)

    def taken(guard: Any) -> int | None:
        return (
            next((int(side) for side in guard.args if side.is_Integer), None) if isinstance(guard, sympy.Eq) else None
        )

    def period(guard: Any) -> int:
        atoms = guard.atoms(Mod, PythonMod, FloorDiv)
        return math.lcm(*(int(atom.args[1]) for atom in atoms if atom.args[1].is_Integer and atom.args[1]))

    asked = {env.replace(guard.expr): guard for guard in reversed(env.guards) if _decided_by_python(guard)}
    decisions = tuple(
        Decision(condition, taken(guard), period(guard), str(getattr(asked[guard].sloc, "maybe_user_loc", None) or ""))
        for guard, condition in zip(mine, conditions, strict=True)
        if guard in asked
    )
    return Assumed(holds, conditions, value_of, divisors, decisions)


def ranges_of_unbacked(env: Any) -> dict[Any, Any]:
    """What is known now of every data-dependent symbol: the range of its values."""
    ranges = getattr(env, "var_to_range", {})
    return {symbol: known for symbol, known in ranges.items() if free_unbacked_symbols(symbol)}


def forget_since(env: Any, ranges: dict[Any, Any]) -> None:
    """Know of these symbols what `ranges_of_unbacked` found, and nothing that was concluded since."""
    changed = {symbol: known for symbol, known in ranges.items() if env.var_to_range.get(symbol) != known}
    if changed:
        env.var_to_range.update(changed)
        env._version_counter = getattr(env, "_version_counter", 0) + 1  # what is cached was concluded from the others


@contextlib.contextmanager
def sizes_of_nobody() -> Iterator[tuple[Any, Callable[[int], Any]]]:
    """``(fake mode, size)``: fake tensors with sizes of which nothing is known but that they are not negative.

    ``size(least)`` makes one. They belong to no graph, and nothing can be decided by their values.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()

    def size(least: int) -> Any:
        with env.ignore_fresh_unbacked_symbols():
            made = env.create_unbacked_symint()
            torch._check(made >= least)
        return made

    mode = FakeTensorMode(shape_env=env)
    with mode:
        yield mode, size


@contextlib.contextmanager
def sizes_of_anybody() -> Iterator[tuple[Any, Callable[[int], Any]]]:
    """``(fake mode, size)`` away from what is being traced: fake tensors whose sizes may be asked for.

    ``size(n)`` makes one that is a symbol, and ``n`` where its value is asked for; `asked` says what was.
    """
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    made = itertools.count()

    def size(hint: int) -> Any:
        source = ConstantSource(f"__packpass_size_{next(made)}")
        symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        return env.create_symintnode(symbol, hint=hint, source=source)

    with unset_fake_temporarily(), FakeTensorMode(shape_env=env) as mode:
        yield mode, size


def asked(mode: Any) -> list[Any]:
    """The conditions on sizes that were decided, as expressions."""
    return [guard.expr for guard in mode.shape_env.guards]


def asked_of_data(error: BaseException | None) -> Any:
    """The condition on a size that only the data knows, for which something failed; None if it failed for another
    reason."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    while error is not None:
        if isinstance(error, GuardOnDataDependentSymNode):
            return error.cond
        error = error.__cause__ or error.__context__
    return None


def assumptions(mode: Any) -> list[str]:
    """What was taken for granted about the sizes of a fake mode, but for what they were made with."""
    env = mode.shape_env
    deferred = [str(check.expr) for checks in env.deferred_runtime_asserts.values() for check in checks]
    found = [str(guard.expr) for guard in env.guards] + [f"{old} is {new}" for old, new in env.replacements.items()]
    return found + [text for text in deferred if not (text[:5] in ("0 <= ", "1 <= ") and text[5:].isidentifier())]


@contextlib.contextmanager
def untold_attempts() -> Iterator[None]:
    """Torch logs an error with two tracebacks for every operation that fails on fake tensors, whether somebody catches
    the exception or not. Whoever captures loops tries operations, and says where one remains: here they are not
    logged."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    if _not_raised in log.filters:
        yield
        return
    log.addFilter(_not_raised)
    try:
        yield
    finally:
        log.removeFilter(_not_raised)


def _not_raised(record: logging.LogRecord) -> bool:
    return not record.exc_info


def with_any_batch(run: Callable[[list[Any]], Any], operands: list[Any], batched: list[bool]) -> Any:
    """What ``run`` makes of fake tensors, where those that are ``batched`` are batches of an unknown number of samples.

    Returns:
        The fake result; None if something about that number was decided on the way.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)

    def fake(operand: Any, many: bool) -> Any:
        if not isinstance(operand, torch.Tensor):
            return operand
        sizes = [*([23] if many else []), *operand.shape]
        real = torch.zeros(sizes, dtype=operand.dtype, device=operand.device)
        dims = [DimDynamic.DYNAMIC if many and d == 0 else DimDynamic.STATIC for d in range(real.dim())]
        return mode.from_tensor(real, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims))

    with unset_fake_temporarily():
        given = [fake(operand, many) for operand, many in zip(operands, batched, strict=True)]
        with mode, python_dispatcher():
            made = run(given)
    return made if not env.guards and not env.replacements else None
