"""Programs that shift a declared row and loop over its documents, in random order.

Whether a shift stops at documents is packpass' to decide, except where slots have lost their documents: such a shift
must stay as it is. So every program has a text per choice, ``packed_roll`` in place of the shifts that are chosen, and
the compiled one has to be equal to one of these texts in eager.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import packpass
from tests.loops import fuzz as loops
from tests.loops.generate import _LAYOUTS, Generated, RandomChooser, _Field, _Writer
from tests.loops.harness import Outcome, Program, Shape, build, compare, outcome

from .families import POISON, collected
from .found import UNDEFINED, Found

MOST_SHIFTS = 4
SIZES = (
    (Shape(3, 24, "plain"), Shape(7, 61, "plain"), Shape(6, 33, "inner_empty")),
    (Shape(1, 9, "plain"), Shape(7, 40, "plain"), Shape(5, 5, "ones")),
    (Shape(6, 33, "inner_empty"), Shape(4, 24, "plain")),
)
MISPLACED = {"window_off_by_one"}
"""What loops may do after which the slots of a result are not those of its document."""


@dataclasses.dataclass(frozen=True)
class Shift:
    """The lines of one shift, and the line that stops it at documents."""

    naive: tuple[str, ...]
    packed: str
    apart: bool
    """May it stop at documents?"""


class Mixture(_Writer):
    """Builds one program; ``lines`` holds text and shifts."""

    lines: list[Any]

    def __init__(self, seed: int) -> None:
        super().__init__(RandomChooser(seed), POISON)
        self.lost: set[str] = set()
        """Rows whose slots have lost their documents. What a loop makes of them is not followed: it may be either."""

    def shift(self, row: _Field) -> _Field:
        """One spelling of a shift along the row."""
        choose, d = self.choose, row.packed
        new, k, right = self.fresh_name("s"), choose.choice((1, 1, 2, 3)), choose.chance(35)
        fill = self.number(row.dtype)
        x, by = row.name, k if right else -k

        def at(name: str, cut: str) -> str:
            return f"{name}[{', '.join([*[':'] * d, cut, *[':'] * choose.choice((0, len(row.dims) - 1 - d))])}]"

        keep, take, end = (f"{k}:", f":-{k}", f":{k}") if right else (f":-{k}", f"{k}:", f"-{k}:")
        kind = choose.choice(("roll", "roll", "cat", "written", "clone", "wraps", "pad"))
        if kind == "pad" and row.dtype == "m":
            kind = "roll"
        if kind == "wraps":
            lines = [f"{new} = torch.roll({x}, {by}, {d})"]
            fill = "None"
        elif kind == "roll":
            rolled = choose.choice((f"torch.roll({x}, {by}, {d})", f"{x}.roll({by}, dims={d - len(row.dims)})"))
            lines = [f"{new} = {rolled}", choose.choice((f"{at(new, end)} = {fill}", f"{at(new, end)}.fill_({fill})"))]
        elif kind == "cat":
            filled = f"torch.full_like({at(x, f':{k}')}, {fill})"
            parts = [filled, at(x, take)] if right else [at(x, take), filled]
            lines = [f"{new} = torch.cat(({', '.join(parts)}), {d})"]
        elif kind == "pad":
            pad = [0] * (2 * (len(row.dims) - d))
            pad[-2:] = [k, -k] if right else [-k, k]
            lines = [f"{new} = F.pad({x}, {tuple(pad)}, value={fill})"]
        else:
            made = f"torch.full_like({x}, {fill})" if kind == "written" else f"{x}.clone()"
            lines = [f"{new} = {made}", f"{at(new, keep)} = {at(x, take)}", f"{at(new, end)} = {fill}"]
        packed = f"{new} = packed_roll({x}, cu, {by}, {d}, {fill})"
        self.lines.append(Shift(tuple(lines), packed, x not in self.lost))
        return self.took(row, _Field(new, row.dims, row.dtype))

    def took(self, row: _Field, new: _Field, lost: bool = False) -> _Field:
        """Note that a row was made of another one."""
        if lost or row.name in self.lost:
            self.lost.add(new.name)
        return new

    def tokenwise(self, row: _Field) -> _Field:
        """The same for every slot; as a poison, something after which slots have lost their documents."""
        new, x, choose = self.fresh_name("t"), row.name, self.choose
        lost = self.bad("loses_documents", 8)
        if lost:
            text = choose.choice((f"{x}.flip({row.packed})", f"{x}.sort({row.packed}).values"))
        elif row.dtype == "m":
            text = choose.choice((f"~{x}", f"{x} & {x}.clone()", f"{x}.contiguous()"))
        else:
            text = choose.choice((f"{x} * 2", f"{x}.abs()", f"torch.where({x} > 1, {x}, 3)", f"{x}.clone()",
                                  f"{x}.transpose(0, -1).contiguous().transpose(0, -1)", f"torch.relu({x}) - {x}",
                                  f"{x}.unsqueeze(0).squeeze(0)", f"{x}.flatten().view({x}.shape)"))  # fmt: skip
        self.lines.append(f"{new} = {text}")
        return self.took(row, _Field(new, row.dims, row.dtype), lost)

    def loops(self, rows: list[_Field]) -> list[_Field]:
        """A loop over documents."""
        before = len(self.poisons)
        outs = self.loop(rows)
        if MISPLACED & set(self.poisons[before:]):
            self.lost |= {row.name for row in outs}  # what the loop only reads keeps them; what it writes may be either
        return outs

    def write_mixture(self) -> Mixture:
        """Fields, declarations, two to five stages."""
        choose = self.choose
        for k in range(choose.choice((1, 2))):
            dtype = choose.choice((self.real, "i", "m") if k else (self.real, "i"))
            field = _Field("xy"[k], choose.choice(_LAYOUTS), dtype)
            self.fields.append(field)
            self.args.append(f"{dtype}[{','.join(field.dims)}]")
        rows = list(self.fields)
        for row in rows:
            if choose.chance(85):
                self.lines.append(f"{row.name} = packed({row.name}, cu, {row.packed})")
        made: list[_Field] = []
        for _ in range(choose.choice((2, 3, 4, 5))):
            pool = [*rows, *made]
            row = made[-1] if made and choose.chance(60) else choose.choice(pool)
            kind = choose.choice(("loop", "loop", "shift", "shift", "shift", "tokenwise"))
            if kind == "shift" and sum(isinstance(line, Shift) for line in self.lines) < MOST_SHIFTS:
                made.append(self.shift(row))
            elif kind == "loop":
                others = [r for r in pool if r is not row]
                made += self.loops([row, *others])
            else:
                made.append(self.tokenwise(row))
        shown = [f.name for f in made if choose.chance(60)] or [f.name for f in made[-1:]] or [rows[0].name]
        self.results += shown
        return self

    def text(self, chosen: tuple[bool, ...]) -> str:
        """The source, with the shifts that are chosen stopped at documents."""
        choice = iter(chosen)
        lines: list[str] = []
        for line in self.lines:
            if isinstance(line, Shift):
                lines += [line.packed] if next(choice) else line.naive
            else:
                lines.append(line)
        signature = ", ".join([*(f.name for f in self.fields), "cu"])
        body = "\n".join("    " + line for line in lines)
        return f"def program({signature}):\n{body}\n    return {', '.join(self.results)},\n"

    def choices(self) -> Iterator[tuple[bool, ...]]:
        """Every choice that is allowed, most shifts first."""
        apart = [line.apart for line in self.lines if isinstance(line, Shift)]
        yield from itertools.product(*((True, False) if a else (False,) for a in apart))

    def program(self, chosen: tuple[bool, ...]) -> Program:
        """That text as a program with arguments."""
        case = Generated(self.text(chosen), " ".join([*self.args, "cu"]), self.mutates, False, tuple(self.poisons))
        prog = loops.as_program(case, f"mixture-{id(self)}-{''.join('np'[c] for c in chosen)}")
        prog.target.__globals__.update(packed=packpass.packed, packed_roll=packpass.ops.packed_roll, F=F)
        return dataclasses.replace(prog, exact=False)


def judge(seed: int) -> Found:
    """The program of one seed."""
    mixture = Mixture(seed).write_mixture()
    naive = mixture.program((False,) * sum(isinstance(line, Shift) for line in mixture.lines))
    meant = [mixture.program(chosen) for chosen in mixture.choices()]
    compiled = torch.compile(naive.target, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    with collected() as report:
        for shape in SIZES[seed % len(SIZES)]:
            try:
                wants = _Outcomes(meant, shape)
                wants(len(meant) - 1)
            except (RuntimeError, IndexError, ValueError, TypeError, NameError):
                return UNDEFINED
            try:
                got = _with_gradients(outcome(compiled, build(naive, shape)))
            except pytest.skip.Exception:
                return UNDEFINED
            except Exception as error:
                return Found("wrong", True, f"{shape}: raised {type(error).__name__}: {error}\n{_shown(mixture)}")
            if problem := _none_of(wants, len(meant), got):
                return Found("wrong", True, f"{shape}: {problem}\n{_shown(mixture)}")
    return Found("right", bool(report.rewrites))


class _Outcomes:
    """What every text gives at one size, made when it is asked for."""

    def __init__(self, meant: list[Program], shape: Shape) -> None:
        self._meant, self._shape, self._known = meant, shape, dict[int, Outcome]()

    def __call__(self, k: int) -> Outcome:
        if k not in self._known:
            self._known[k] = _with_gradients(outcome(self._meant[k].target, build(self._meant[k], self._shape)))
        return self._known[k]


def _with_gradients(seen: Outcome) -> Outcome:
    """Eager has zeros where what an argument went into is overwritten before it is read, and no gradient where it went
    nowhere: a text may have one, the compiled program the other."""
    zeros = [torch.zeros(()) if grad is None else grad for grad in seen.grads]
    return dataclasses.replace(seen, grads=[grad if grad.any() else torch.zeros(()) for grad in zeros])


def _none_of(wants: Callable[[int], Outcome], count: int, got: Outcome) -> str:
    """Why no text gives this outcome, or an empty string."""
    problems = []
    for k in range(count):
        try:
            compare(wants(k), got, False)
        except (AssertionError, ValueError) as error:  # a row that a loop made shorter fits no boundaries
            problems.append(str(error)[:400])
        else:
            return ""
    return f"equal to none of {count} texts; the last one: {problems[-1]}"


def _shown(mixture: Mixture) -> str:
    first = mixture.text((False,) * sum(isinstance(line, Shift) for line in mixture.lines))
    return f"{first}{[line.packed for line in mixture.lines if isinstance(line, Shift)]}\n{' '.join(mixture.args)}"
