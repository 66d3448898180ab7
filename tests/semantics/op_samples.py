"""Torch's own operator samples (``op_db``) as programs over documents.

A sample becomes a row of ``TOTAL`` slots: the samples of several seeds, which have the same shapes and values that the
op is defined for, are put behind each other along dimension 0, which is then the packed one. Other tensor operands
with that size are rows as well; if eager cannot run it like that, they stay whole, as weights would. ::

    def program(cu, t0, t1):
        out0 = []
        bounds = cu.tolist()
        for i in range(len(bounds) - 1):
            s, e = bounds[i], bounds[i + 1]
            r = op(t0[s:e], t1, 2)
            out0.append(r)
        return (torch.cat(out0),)

The results of the documents are put together along the dimension in which they differ, or stacked if they do not.
What eager itself cannot run document by document is left out, with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

from tests.sources import defined

from .op_outcomes import outcome

TOTAL = 24
LAYOUTS = ((0, 7, 11, 22, 24), (0, 10, 24), (0, 6, 6, 9, 24, 24))
"""Boundaries: uneven documents, another number of them, and documents without slots (if eager runs those)."""
SAMPLES = 2
"""Samples per operator, with calls of different form."""
_LOOKED_AT = 60
NOT_RUN = {
    **dict.fromkeys(
        ("as_strided", "as_strided_copy", "as_strided_scatter"),
        "addresses memory, beyond the document that it is given",
    ),
    **dict.fromkeys(("resize_", "resize_as_"), "makes its argument larger by what lies in memory"),
    "nn.functional.pdist": "crashes the interpreter, in eager, without rows",
    **dict.fromkeys(
        ("lu_unpack", "native_batch_norm", "_native_batch_norm_legit", "_segment_reduce"),
        "reads beyond its arguments, in eager, if their sizes do not fit",
    ),
}
"""Operators whose samples are not run in documents at all, and why not."""
NOT_EMPTY = frozenset({"nn.functional.multi_margin_loss", "nn.functional.multilabel_margin_loss"})
"""Operators that return whatever lies in memory, in eager, for a document without slots."""
_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A sample that is no program, and why not."""

    name: str
    reason: str


@dataclasses.dataclass
class OpProgram:
    """One call of one operator, document by document."""

    name: str
    source: str
    fn: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    rows: tuple[bool, ...]
    """Which of them are cut by boundaries."""
    layouts: tuple[tuple[int, ...], ...]

    def arguments(self, layout: tuple[int, ...], wide: bool = False) -> tuple[tuple[Any, ...], list[Tensor]]:
        """Arguments of one call (in double precision), and the leaves whose gradients count.

        Rows go on behind the last document, with what must never be looked at.
        """
        given = [
            _with_garbage(t) if row else t.detach().clone() for t, row in zip(self.tensors, self.rows, strict=True)
        ]
        copies = [
            _widened(t, wide).requires_grad_(own.requires_grad) for t, own in zip(given, self.tensors, strict=True)
        ]
        return (torch.tensor(layout), *copies), [t for t in copies if t.requires_grad]


def _with_garbage(row: Tensor) -> Tensor:
    tail = row.detach()[:2].clone()
    if row.is_floating_point() or row.is_complex():
        tail[0], tail[1] = math.nan, math.inf
    else:
        tail.fill_(True if row.dtype is torch.bool else 100)
    return torch.cat([row.detach(), tail])


def _widened(tensor: Tensor, wide: bool) -> Tensor:
    doubles = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    return tensor.to(doubles.get(tensor.dtype, tensor.dtype)) if wide else tensor


# === Samples =================================================================================================


def dtype_of(op: Any) -> torch.dtype | None:
    """What an operator's samples are made of: floats if it takes any."""
    known = op.supported_dtypes("cpu")
    return next((dtype for dtype in _DTYPES if dtype in known), None)


def _samples(op: Any, dtype: torch.dtype, seed: int) -> Iterator[Any]:
    torch.manual_seed(seed)
    grads = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    return itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grads, set_seed=False), _LOOKED_AT)


def _leaves(value: Any) -> list[Any]:
    """The leaves of a sample's arguments, containers opened."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return [leaf for v in value for leaf in _leaves(v)]
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    return [value]


def _tensors(sample: Any) -> list[Tensor]:
    return [v for v in _leaves([sample.input, sample.args, sample.kwargs]) if isinstance(v, Tensor)]


def _form(sample: Any) -> str:
    """The form of a call: ranks of tensors and kinds of other arguments."""
    parts = [
        f"T{v.dim()}" if isinstance(v, Tensor) else type(v).__name__
        for v in _leaves([sample.input, sample.args, sample.kwargs])
    ]
    return " ".join([*parts, *sorted(sample.kwargs)])


def _rows_of(seeds: list[list[Tensor]], length: int) -> tuple[list[Tensor], list[bool]]:
    """Every operand, long enough to be a row where its first size is ``length``."""
    out, is_row = [], []
    for parts in zip(*seeds, strict=True):
        first = parts[0]
        row = first.dim() > 0 and first.shape[0] == length and all(p.shape == first.shape for p in parts)
        grad = first.requires_grad
        whole = torch.cat([p.detach() for p in parts])[:TOTAL] if row else first.detach().clone()
        out.append(whole.contiguous().requires_grad_(grad))
        is_row.append(row)
    return out, is_row


Making = Callable[[str, Any, Any, list[list[Tensor]]], Any]
"""Makes a program, or a `LeftOut`, of a name, an operator, a sample and its tensors under several seeds."""


# === Programs ================================================================================================


class _Writer:
    """Arguments of a call as source code."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.constants: dict[str, Any] = {}

    def __call__(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self.names[id(value)]
        if isinstance(value, tuple) and type(value) is tuple:
            return "(" + "".join(f"{self(v)}, " for v in value) + ")"
        if isinstance(value, list):
            return "[" + ", ".join(self(v) for v in value) + "]"
        if isinstance(value, slice):
            return f"slice({self(value.start)}, {self(value.stop)}, {self(value.step)})"
        if value is None or type(value) in (bool, int, str) or (type(value) is float and abs(value) < 1e30):
            return repr(value)
        if value is Ellipsis:
            return "..."
        if isinstance(value, torch.dtype):
            return str(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def _written(sample: Any, rows: list[bool], results: int | None, join: list[str]) -> tuple[str, dict[str, Any]]:
    """Source of the program, and the constants it names."""
    names = {
        id(t): f"t{i}[s:e]" if row else f"t{i}" for i, (t, row) in enumerate(zip(_tensors(sample), rows, strict=True))
    }
    write = _Writer(names)
    call = ", ".join(
        [write(sample.input), *(write(a) for a in sample.args), *(f"{k}={write(v)}" for k, v in sample.kwargs.items())]
    )
    count = 1 if results is None else results
    lines = [f"def program(cu, {', '.join(f't{i}' for i in range(len(rows)))}):"]
    lines += [f"    out{i} = []" for i in range(count)]
    lines += ["    bounds = cu.tolist()", "    for i in range(len(bounds) - 1):"]
    lines += ["        s, e = bounds[i], bounds[i + 1]", f"        r = op({call})"]
    lines += [f"        out{i}.append(r{'' if results is None else f'[{i}]'})" for i in range(count)]
    lines += [f"    return ({''.join(f'{how.format(i)}, ' for i, how in enumerate(join))})"]
    return "\n".join(lines) + "\n", write.constants


def _function(name: str, source: str, op: Callable[..., Any], constants: dict[str, Any]) -> Callable[..., Any]:
    fn: Callable[..., Any] = defined(source, f"<op program {name}>", torch=torch, op=op, **constants)
    return fn


def _joins(results: list[list[Tensor]]) -> list[str] | str:
    """How the documents' results are put together, per result; a text says why they cannot be."""
    how = []
    for parts in results:
        shapes = {tuple(p.shape) for p in parts}
        if len({len(s) for s in shapes}) != 1:
            return "results of different ranks"
        if len(shapes) == 1:
            how.append("torch.stack(out{0})")
            continue
        differ = [d for d in range(parts[0].dim()) if len({p.shape[d] for p in parts}) > 1]
        if len(differ) != 1:
            return "results whose sizes differ in two dimensions"
        how.append(f"torch.cat(out{{0}}, {differ[0]})")
    return how


def _run(op: Any, sample: Any, tensors: list[Tensor], rows: list[bool], layout: tuple[int, ...]) -> Any:
    """The results of the documents, or the exception that eager raises."""
    source, constants = _written(sample, rows, None, ["out{0}"])
    fn = _function("trial", source, op, constants)
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    try:
        return fn(torch.tensor(layout), *copies)[0]
    except Exception as error:
        return error


def _as_program(name: str, op: Any, sample: Any, seeds: list[list[Tensor]]) -> OpProgram | LeftOut:
    length = seeds[0][0].shape[0]
    tensors, all_rows = _rows_of(seeds, length)
    originals = [t.detach().clone().requires_grad_(t.requires_grad) for t in seeds[0]]
    problem = ""
    for only_first in (True, False):
        rows = [row and (i == 0 or not only_first) for i, row in enumerate(all_rows)]
        given = [t if row else o for t, o, row in zip(tensors, originals, rows, strict=True)]
        out = _run(callable_of(op), sample, given, rows, LAYOUTS[0])
        if isinstance(out, Exception):
            problem = problem or f"eager raises {type(out).__name__}"
            continue
        several = isinstance(out[0], (tuple, list))
        if several and len({len(o) for o in out}) > 1:
            problem = "as many results as the document has slots"
            continue
        parts = [list(p) for p in zip(*out, strict=True)] if several else [out]
        if not parts or not all(isinstance(p, Tensor) for part in parts for p in part):
            problem = "the result is no tensor"
            continue
        if any(p.layout != torch.strided for part in parts for p in part):
            problem = "not strided"
            continue
        join = _joins(parts)
        if isinstance(join, str):
            problem = join
            continue
        return _checked(name, op, sample, given, rows, len(parts) if several else None, join)
    return LeftOut(name, problem)


def callable_of(op: Any) -> Callable[..., Any]:
    """What a program calls: the operator, and for a method that Python's own operators call these."""
    name = op.name.strip("_")
    if op.name.startswith("__r") and hasattr(operator, name[1:]):
        plain = getattr(operator, name[1:])
        return lambda x, y: plain(y, x)
    fn: Callable[..., Any] = op.op
    return fn


@contextlib.contextmanager
def without_seeds() -> Iterator[None]:
    """The samples of random operators set a seed in every call, which no program does."""
    modules = [m for n, m in sys.modules.items() if n.startswith("torch.testing") and hasattr(m, "wrapper_set_seed")]
    before = [m.wrapper_set_seed for m in modules]
    for module in modules:
        module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            module.wrapper_set_seed = original  # type: ignore[attr-defined]


def _checked(
    name: str, op: Any, sample: Any, tensors: list[Tensor], rows: list[bool], results: int | None, join: list[str]
) -> OpProgram | LeftOut:
    """The program, with the layouts that eager runs."""
    source, constants = _written(sample, rows, results, join)
    program = OpProgram(
        name, source, _function(name, source, callable_of(op), constants), tuple(tensors), tuple(rows), ()
    )
    layouts = []
    for layout in LAYOUTS:
        if op.name in NOT_EMPTY and len(set(layout)) < len(layout):
            continue
        try:
            outcome(program.fn, program, layout)
        except Exception:
            continue
        layouts.append(layout)
    program.layouts = tuple(layouts)
    if LAYOUTS[0] not in layouts or LAYOUTS[1] not in layouts:
        return LeftOut(name, "eager cannot put the results together, or has no gradient for them")
    return program


def programs_of(op: Any, samples: int = SAMPLES, make: Making = _as_program) -> Iterator[Any]:
    """The first programs of one operator that differ in form; why there are none, if there are none (`LeftOut`)."""
    full = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    dtype = dtype_of(op)
    if dtype is None or op.name in NOT_RUN:
        yield LeftOut(full, NOT_RUN.get(op.name, "no dtype"))
        return
    seen: set[str] = set()
    reasons: list[LeftOut] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterators = [_samples(op, dtype, seed) for seed in (1,)]
        for number, sample in enumerate(iterators[0]):
            if len(seen) >= samples:
                return
            first = next(iter(_leaves(sample.input)), None)
            if not isinstance(first, Tensor) or first.dim() == 0 or first.shape[0] == 0:
                reasons.append(LeftOut(full, "no tensor with a dimension to cut"))
                continue
            if any(t.layout != torch.strided for t in _tensors(sample)):
                reasons.append(LeftOut(full, "not strided"))
                continue
            form = _form(sample)
            if form in seen:
                continue
            made = make(f"{full}/{number}", op, sample, _seeds(op, dtype, number, sample))
            if isinstance(made, LeftOut):
                reasons.append(made)
                continue
            seen.add(form)
            yield made
    if not seen:
        yield LeftOut(full, reasons[0].reason if reasons else "no samples")


def _seeds(op: Any, dtype: torch.dtype, number: int, sample: Any) -> list[list[Tensor]]:
    """The tensors of the same sample under several seeds, as many as fill a row."""
    found = [_tensors(sample)]
    length = found[0][0].shape[0]
    for seed in range(2, 2 + -(-TOTAL // length) - 1):
        again = next(itertools.islice(_samples(op, dtype, seed), number, None), None)
        tensors = _tensors(again) if again is not None else found[0]
        same = len(tensors) == len(found[0]) and all(a.shape == b.shape for a, b in zip(tensors, found[0], strict=True))
        found.append(tensors if same else found[0])
    return found


def programs(
    only: str = "", part: tuple[int, int] = (1, 1), samples: int = SAMPLES, make: Making = _as_program
) -> Iterator[Any]:
    """The programs of all operators, of those whose name contains ``only`` (or one of it, between commas), of the k-th
    of n parts; `LeftOut` for those without."""
    chosen = [op for op in op_db if any(text in op.name for text in only.split(","))]
    with without_seeds():
        for op in chosen[part[0] - 1 :: part[1]]:
            yield from programs_of(op, samples, make)
