"""Random loop programs as source text.

A program reads documents of one to three fields, works on them with one to six operations, and writes documents into
accumulators. With low probability it also does something that forbids a rewrite (a *poison*): carries state, uses
the index as a number, leaks a local, writes through a view, shifts a window by one. Choices come from any object
with ``choice`` and ``chance``, so that hypothesis can shrink them and ``random.Random`` can run for hours.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Chooser(Protocol):
    """Where random decisions come from."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""

    def chance(self, percent: int) -> bool:
        """True in about ``percent`` of 100 cases; False is the simpler answer."""


class RandomChooser:
    """Decisions of a seeded ``random.Random``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def chance(self, percent: int) -> bool:
        return self._random.randrange(100) < percent


@dataclasses.dataclass(frozen=True)
class Generated:
    """Source of a function ``program`` and the description of its arguments (see :mod:`harness`)."""

    source: str
    args: str
    mutates: bool
    tail: bool  # defined when the documents do not cover the row
    poisons: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    dims: tuple[str, ...]
    dtype: str

    @property
    def packed(self) -> int:
        return self.dims.index("T")

    def slice(self, lo: str, hi: str) -> str:
        after = len(self.dims) - 1 - self.packed
        head = [":"] * self.packed
        return f"{self.name}[{', '.join([*head, f'{lo}:{hi}', *[':'] * after])}]"


@dataclasses.dataclass
class _Value:
    name: str
    field: _Field  # for the layout
    dtype: str
    fresh: bool  # owns its memory: may be written in place without touching a field


_LAYOUTS: tuple[tuple[str, ...], ...] = (("2", "T"), ("T",), ("T", "3"), ("2", "T", "3"), ("1", "T"))

_FORMS: dict[str, tuple[list[str], bool]] = {
    # header lines (the last one opens the loop), and whether `i` is the index
    "range": (["for i in range(len(cu) - 1):", "    s, e = cu[i], cu[i + 1]"], True),
    "range_item": (["for i in range(cu.shape[0] - 1):", "    s = cu[i].item()", "    e = cu[i + 1].item()"], True),
    "range_int": (["n = cu.numel() - 1", "for i in range(n):", "    s, e = int(cu[i]), int(cu[i + 1])"], True),
    "zip": (["for s, e in zip(cu[:-1], cu[1:]):"], False),
    "zip_tolist": (["for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):"], False),
    "list": (["c = cu.tolist()", "for i in range(len(c) - 1):", "    s, e = c[i], c[i + 1]"], True),
    "enumerate": (["for i, (s, e) in enumerate(zip(cu[:-1], cu[1:])):"], True),
    "from_one": (["for i in range(1, len(cu)):", "    s, e = cu[i - 1], cu[i]"], True),
    "enumerate_starts": (["for i, s in enumerate(cu[:-1]):", "    e = cu[i + 1]"], True),
    "long": (["b = cu.long()", "for i in range(len(b) - 1):", "    s, e = b[i], b[i + 1]"], True),
}

_ODD_FORMS: dict[str, tuple[list[str], bool]] = {
    "partial": (["for i in range(len(cu) - 2):", "    s, e = cu[i], cu[i + 1]"], True),
    "skips_first": (["for i in range(1, len(cu) - 1):", "    s, e = cu[i], cu[i + 1]"], True),
    "every_second": (["for i in range(0, len(cu) - 1, 2):", "    s, e = cu[i], cu[i + 1]"], True),
    "reversed": (["for i in reversed(range(len(cu) - 1)):", "    s, e = cu[i], cu[i + 1]"], True),
    "late_start": (["for i in range(len(cu) - 1):", "    s, e = cu[i] + 1, cu[i + 1]"], True),
    "early_end": (["for i in range(len(cu) - 1):", "    s, e = cu[i], (cu[i + 1] - 1).clamp(min=0)"], True),
    "overlap": (["for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):", "    s = max(s - 1, 0)"], False),
    "prefix": (["s = 0", "for e in cu[1:].tolist():"], False),
    "chained": (["e = 0", "for b in cu[1:].tolist():", "    s, e = e, b"], False),
    "zip_short": (["for s, e in zip(cu[:-2], cu[1:]):"], False),
    "halved": (["for s, e in zip(cu[:-1] // 2, cu[1:] // 2):"], False),
    "skip_empty": (["for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):", "    if s == e: continue"], False),
    "stop_empty": (["for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):", "    if s == e: break"], False),
}


class _Writer:
    """Builds one program."""

    def __init__(self, choose: Chooser, poison: int) -> None:
        self.choose, self.poison = choose, poison
        self.lines: list[str] = []
        self.fields: list[_Field] = []
        self.results: list[str] = []
        self.poisons: list[str] = []
        self.args: list[str] = []
        self.mutates = False
        self.tail = True
        self.count = 0
        self.real = choose.choice(("f", "d"))

    # ------------------------------------------------------------ pieces

    def bad(self, name: str, percent: int | None = None) -> bool:
        """Whether to add the poison ``name`` here."""
        if self.choose.chance(self.poison if percent is None else percent * (self.poison > 0)):
            self.poisons.append(name)
            return True
        return False

    def fresh_name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def number(self, dtype: str) -> str:
        if dtype == "m":
            return self.choose.choice(("False", "True"))
        return self.choose.choice(("0", "1", "-100", "3") if dtype in "ij" else ("0", "0.5", "-2.0", "4"))

    def same_layout(self, values: list[_Value], like: _Value) -> list[_Value]:
        return [v for v in values if v.field.dims == like.field.dims and v.dtype == like.dtype and v is not like]

    # ------------------------------------------------------------ the body

    def operation(self, values: list[_Value], index: bool) -> list[str]:
        """Statements that add one value (or change one in place)."""
        choose = self.choose
        v = values[-1] if choose.chance(70) else choose.choice(values)
        d = choose.choice((v.field.packed, v.field.packed - len(v.field.dims)))
        new = self.fresh_name("v")
        dtype, real = v.dtype, v.dtype in "fd"
        kinds = ["roll", "fill", "flip", "shift"]
        kinds += ["scalar", "where", "arange"] if dtype != "m" else []
        kinds += ["row"] if dtype != "m" and len(v.field.dims) > 1 else []
        kinds += ["cast"] if dtype in "ij" else []
        kinds += ["other", "other"] if self.same_layout(values, v) else []
        exact = dtype == "i" or (dtype == "d" and self.real == "d")  # sums in any order
        kinds += ["features", "features"] if exact and len(v.field.dims) > 1 else []
        kinds += ["lookup"] if dtype == "i" and self.real == "d" else []
        kinds += ["table"] if exact else []
        kind = choose.choice(kinds)
        if kind == "roll":
            k = choose.choice((-1, 1, -2, 3, 9, -9))
            text = choose.choice((f"torch.roll({v.name}, {k}, {d})", f"{v.name}.roll({k}, dims={d})",
                                  f"torch.roll({v.name}, shifts=({k},), dims=({d},))"))  # fmt: skip
        elif kind == "flip":
            text = choose.choice((f"{v.name}.flip({d})", f"torch.flip({v.name}, [{d}])"))
        elif kind == "fill":
            return self.fill(v, values, new)
        elif kind == "scalar":
            text = choose.choice((f"{v.name} * 2", f"{v.name} + 1", f"-{v.name}", f"{v.name}.clamp(min=0)",
                                  f"{v.name}.abs()", f"3 - {v.name}", f"torch.relu({v.name})"))  # fmt: skip
            if index and self.bad("index", 5):
                text = f"{v.name} + i"
        elif kind == "where":
            text = f"torch.where({v.name} > 1, {v.name}, {self.number(dtype)})"
        elif kind == "other":
            w = choose.choice(self.same_layout(values, v))
            text = f"{v.name} & {w.name}" if dtype == "m" else f"{v.name} {choose.choice('+-')} {w.name}"
            if real and self.real == "d" and choose.chance(30):
                text = f"{v.name} * {w.name}"
        elif kind == "features":
            text = self.features(v)
        elif kind == "lookup":
            text, dtype = self.lookup(v), "d"
        elif kind == "table":
            column = "[:, None]" if v.field.packed < len(v.field.dims) - 1 else ""
            text = f"{v.name} + {self.argument(v.dtype, '200')}[:e - s]{column}"
        elif kind == "arange":
            column = "[:, None]" if v.field.packed < len(v.field.dims) - 1 else ""
            text = f"{v.name} + torch.arange(e - s){column}"
        elif kind == "row":
            text = f"{v.name} + {self.row(v)}"
        elif kind == "cast":
            text, dtype = f"{v.name}.to({'torch.float32' if self.real == 'f' else 'torch.float64'})", self.real
        else:
            p = [":"] * v.field.packed
            rest, first = f"{v.name}[{', '.join([*p, '1:'])}]", f"{v.name}[{', '.join([*p, ':1'])}]"
            text = f"torch.cat(({rest}, torch.zeros_like({first})), {d})"
        if real and dtype in "fd" and self.bad("detach", 3):
            text = f"({text}).detach()"
        values.append(_Value(new, v.field, dtype, True))
        return [f"{new} = {text}"]

    def row(self, v: _Value) -> str:
        """A whole tensor without the packed dim, declared once as an argument."""
        return self.argument(v.dtype, *("1" if d == "T" else d for d in v.field.dims))

    def argument(self, dtype: str, *dims: str) -> str:
        """A new argument that is no packed row."""
        name = self.fresh_name("w")
        self.args.append(f"{dtype}[{','.join(dims)}]")
        self.fields.append(_Field(name, dims, dtype))
        return name

    def features(self, v: _Value) -> str:
        """An op along another dimension than the packed one, or a product with a weight."""
        others = [k for k in range(len(v.field.dims)) if k != v.field.packed]
        o, x = self.choose.choice(others), v.name
        options = [
            f"{x}.sum({o}, keepdim=True).expand_as({x})", f"{x} - {x}.amax({o}, keepdim=True)", f"{x}.cumsum({o})",
            f"torch.sort({x}, {o}, descending=True).values", f"torch.cat({x}.split(1, {o})[::-1], {o})",
            f"torch.stack({x}.unbind({o})[::-1], {o})", f"{x}.gather({o}, {x}.sort({o})[1])",
            f"torch.where({x}.argmax({o}, keepdim=True) == 0, {x}, {x} * 2)", f"{x}.max({o}, keepdim=True)[0] + {x}",
            f"torch.cat(({x}, {x}), {o}).narrow({o}, 0, {v.field.dims[o]})",
        ]  # fmt: skip
        if v.dtype == "d" and v.field.dims[-1] == "3":
            weight = self.argument("d", "3", "3")
            options += [f"{x} @ {weight}", f"torch.nn.functional.linear({x}, {weight})", f"{x}.matmul({weight})"]
        if v.dtype == "d" and v.field.dims == ("2", "T"):
            options += [f"{self.argument('d', '2', '2')} @ {x}"]
        return self.choose.choice(options)

    def lookup(self, v: _Value) -> str:
        """Ids as rows of a table."""
        table = self.argument("d", "7")
        ids = f"{v.name} % 7"
        return self.choose.choice((f"{table}[{ids}]", f"torch.nn.functional.embedding({ids}, {table}[:, None])[..., 0]",
                                   f"torch.nn.functional.one_hot({ids}, 7).to({table}.dtype) @ {table}"))  # fmt: skip

    def fill(self, v: _Value, values: list[_Value], new: str) -> list[str]:
        """A constant into the first or last tokens, on an own copy (or, as a poison, through a view of the row)."""
        lines, target = [], v
        if not v.fresh and not self.bad("writes_through_a_view", 15):
            target = _Value(new, v.field, v.dtype, True)
            lines.append(f"{new} = {v.name}.clone()")
            values.append(target)
        elif not v.fresh:
            self.mutates = True
        where = self.choose.choice(("-1:", ":1", "-2:", ":3"))
        head = [":"] * v.field.packed
        spot = f"{target.name}[{', '.join([*head, where])}]"
        value = self.number(v.dtype)
        lines.append(self.choose.choice((f"{spot} = {value}", f"{spot}.fill_({value})")))
        return lines

    def loop(self, sources: list[_Field]) -> list[_Field]:
        """One loop over the documents; returns the accumulators it wrote."""
        choose = self.choose
        odd = self.bad("odd_form", 12)
        forms = _ODD_FORMS if odd else _FORMS
        header, index = forms[choose.choice(tuple(forms))]
        before: list[str] = []
        body: list[str] = []
        values: list[_Value] = []
        used = sources[: choose.choice((1, 2, 3))]
        for field in used:
            name = self.fresh_name("v")
            values.append(_Value(name, field, field.dtype, False))
            body.append(f"{name} = {field.slice('s', 'e')}")
        if self.bad("carried", 6):
            before.append("carry = 1")
            target = next((v for v in values if v.dtype != "m"), None)
            if target:
                name = self.fresh_name("v")
                body.append(f"{name} = {target.name} * carry")
                body.append("carry = carry + 1" if choose.chance(50) else "carry = -carry")
                values.append(_Value(name, target.field, target.dtype, True))
        if index and self.bad("index_branch", 4):
            body.insert(0, f"if i == {choose.choice((1, 2, 5))}: continue")
        for _ in range(choose.choice((1, 2, 3, 4, 5, 6))):
            body += self.operation(values, index)
        outs: list[_Field] = []
        after: list[str] = []
        for _ in range(choose.choice((1, 1, 2))):
            v = values[-1] if choose.chance(60) else choose.choice(values)
            self.write_back(v, sources, odd, (before, body, after), outs)
        indent = "    "
        opening = [k for k, line in enumerate(header) if line.startswith("for")][0]
        self.lines += [*before, *header[:opening], header[opening], *header[opening + 1 :], *(indent + b for b in body)]
        self.lines += after
        if self.bad("leak", 4):
            self.lines.append("leaked = e")
            self.results.append("leaked")
        return outs

    def write_back(
        self, v: _Value, sources: list[_Field], odd: bool, code: tuple[list[str], ...], outs: list[_Field]
    ) -> None:
        """One result of a loop: ``code`` is (lines in front of it, of its body, behind it), ``outs`` what it fills."""
        choose, (before, body, after) = self.choose, code
        name = self.fresh_name("out")
        like = v.field.name
        kind = choose.choice(("clone", "zeros", "full", "list", "self"))
        if kind == "list" and not odd and choose.chance(60):
            self.tail = False
            before.append(f"{name} = []")
            body.append(f"{name}.append({v.name})")
            after.append(f"{name} = torch.cat({name}, {v.field.packed})")
            outs.append(_Field(name, v.field.dims, v.dtype))
            return
        if kind == "self" and v.dtype == v.field.dtype and v.field in sources and self.bad("in_place", 25):
            self.mutates = True
            acc = v.field
        else:
            dtype = {"f": "torch.float32", "d": "torch.float64", "i": "torch.int64", "m": "torch.bool"}[v.dtype]
            make = {"zeros": f"torch.zeros_like({like}, dtype={dtype})",
                    "full": f"torch.full_like({like}, {self.number(v.dtype)}, dtype={dtype})"}  # fmt: skip
            acc = _Field(name, v.field.dims, v.dtype)
            before.append(f"{name} = {make.get(kind, f'{like}.clone().to({dtype})')}")
            outs.append(acc)
        spot = acc.slice("s", "e")
        if self.bad("window_off_by_one", 3):
            spot = acc.slice("s + 1", "e + 1")
        forms_of_write = [f"{spot} = {v.name}", f"{spot}.copy_({v.name})"]
        if v.dtype != "m":
            forms_of_write += [f"{spot} += {v.name}"]
        body.append(choose.choice(forms_of_write))
        if acc in outs and self.bad("read_back", 8):
            name = self.fresh_name("v")
            body += [f"{name} = {spot}", f"{spot} = {name}.flip({acc.packed})"]

    def write(self) -> Generated:
        choose = self.choose
        names = ("x", "y", "z")
        for k in range(choose.choice((1, 2, 3))):
            dtype = choose.choice((self.real, "i", "m") if k else (self.real, "i"))
            field = _Field(names[k], choose.choice(_LAYOUTS), dtype)
            self.fields.append(field)
            self.args.append(f"{dtype}[{','.join(field.dims)}]")
        rows = [f for f in self.fields if "T" in f.dims]
        outs = self.loop(rows)
        if choose.chance(30):
            outs += self.loop([*outs, *rows] if self.tail else rows)
        self.results += [f.name for f in outs]
        if not self.results or choose.chance(20):
            self.results.append(f"{rows[0].name}.sum()")
        signature = ", ".join([*(f.name for f in self.fields), "cu"])
        body = "\n".join("    " + line for line in self.lines)
        source = f"def program({signature}):\n{body}\n    return {', '.join(self.results)},\n"
        cu = choose.choice(("cu", "cu64"))
        return Generated(source, " ".join([*self.args, cu]), self.mutates, self.tail, tuple(self.poisons))


def generate(choose: Chooser, poison: int = 6) -> Generated:
    """One program; ``poison`` is the percentage for features that may forbid a rewrite (0: none of them)."""
    return _Writer(choose, poison).write()


def random_program(seed: int, poison: int = 6) -> Generated:
    """The program of one seed."""
    return generate(RandomChooser(seed), poison)


def _main() -> Any:
    for seed in range(3):
        print(random_program(seed).source)


if __name__ == "__main__":
    _main()
