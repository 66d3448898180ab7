"""Registry of programs that shift tokens, their inputs, and the two oracles.

A program is a function or an ``nn.Module`` class; its inputs are made from the names of its parameters. What is written
for one document is right when it is run on every document alone, so that is the reference for a program that must be
rewritten: `one_by_one`. A program that must be left alone has to do what it does without packpass, bit for bit.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import packpass

VOCABULARY, WIDTH = 37, 6
EAGER = {"packpass.inner_backend": "eager"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One packed row: the documents' lengths, slots before the first and after the last one."""

    lengths: tuple[int, ...]
    head: int = 0
    tail: int = 0

    @property
    def total(self) -> int:
        return self.head + sum(self.lengths) + self.tail

    @property
    def cuts(self) -> list[int]:
        out = [self.head]
        for n in self.lengths:
            out.append(out[-1] + n)
        return out

    def cu(self, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(self.cuts, dtype=dtype)

    def alone(self, d: int) -> Row:
        return Row((self.lengths[d],))


ROWS = (
    Row((5, 1, 8, 9)),
    Row((4, 0, 1, 1, 7, 0, 3, 15)),
    Row((19,)),
    Row((1, 1, 1, 2, 11, 1, 2, 3, 1, 1, 6)),
)
TAILS = (Row((5, 1, 0, 8, 4), tail=5), Row((6, 3, 4), head=2, tail=3))


LONG = (Row((5, 4, 8, 9)), Row((7, 4, 6, 13, 5)), Row((21,)))
"""For code that needs a few slots in every document."""
_KEYWORDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_seqlen")
"""What ``**kwargs`` stand for."""
Make = Callable[[Row], Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """A registered program and what is expected of it."""

    name: str
    target: Any
    rewrites: int
    code: str | None
    source: str
    tails: bool
    rows: tuple[Row, ...]
    given: dict[str, str]

    def __str__(self) -> str:
        return self.name

    def instance(self) -> Any:
        if not isinstance(self.target, type):
            return self.target
        torch.manual_seed(0)
        return self.target()

    def parameters(self) -> list[str]:
        fn = self.target.forward if isinstance(self.target, type) else self.target
        names = [p for p in inspect.signature(fn).parameters if p not in ("self", "kwargs")]
        return [*names, *_KEYWORDS] if "kwargs" in inspect.signature(fn).parameters else names

    def maker(self, parameter: str) -> tuple[Make, int | None]:
        return MAKERS[self.given.get(parameter, parameter)]


REWRITE: dict[str, Program] = {}
LEAVE: dict[str, Program] = {}


def rewrites(
    count: int = 1, source: str = "input", tails: bool = True, rows: tuple[Row, ...] = ROWS, **given: str
) -> Callable[[Any], Any]:
    """Exactly ``count`` shifts become boundary-aware, by boundaries from ``source``. ``tails``: defined where slots
    belong to no document; ``given``: parameter -> the maker of its value, where that has another name."""

    def register(target: Any) -> Any:
        name = target.__name__
        assert name not in REWRITE, name
        REWRITE[name] = Program(name, target, count, None, source, tails, rows, given)
        return target

    return register


def leaves(code: str | None = None, rows: tuple[Row, ...] = ROWS, **given: str) -> Callable[[Any], Any]:
    """Nothing is rewritten; if it looks like a shift, the refusal has this code."""

    def register(target: Any) -> Any:
        name = target.__name__
        assert name not in LEAVE, name
        LEAVE[name] = Program(name, target, 0, code, "", True, rows, given)
        return target

    return register


# === Inputs ==================================================================================================


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(sum(map(ord, name)))


def _ids(name: str, total: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (1, total), generator=_generator(name))


def _float(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    # Multiples of 1/8: sums are exact in any order.
    x = torch.randint(-16, 17, shape, generator=_generator(name)) / 8
    return x.to(dtype).requires_grad_()


MAKERS: dict[str, tuple[Make, int | None]] = {
    # name: (maker, dimension of the tokens or None)
    "ids": (lambda r: _ids("ids", r.total), 1),
    "input_ids": (lambda r: _ids("input_ids", r.total), 1),
    "tokens": (lambda r: _ids("tokens", r.total), 1),
    "labels": (lambda r: _ids("labels", r.total), 1),
    "targets": (lambda r: _ids("targets", r.total), 1),
    "flat": (lambda r: _ids("ids", r.total)[0], 0),
    "longer": (lambda r: _ids("ids", r.total + 2), None),
    "position_ids": (lambda r: torch.arange(r.total).view(1, -1) % 7, 1),
    "loss_mask": (lambda r: (_ids("loss_mask", r.total) % 3 > 0).float(), 1),
    "padding_mask": (lambda r: _ids("padding_mask", r.total) % 5 == 0, 1),
    "bool_mask": (lambda r: _ids("bool_mask", r.total) % 3 > 0, 1),
    "weights": (lambda r: _float("weights", 1, r.total), 1),
    "hidden_states": (lambda r: _float("hidden", 1, r.total, WIDTH), 1),
    "time_first": (lambda r: _float("hidden", r.total, 1, WIDTH), 0),
    "thd": (lambda r: _float("thd", r.total, 2, WIDTH), 0),
    "channels_first": (lambda r: _float("channels", 1, WIDTH, r.total), 2),
    "bf16": (lambda r: _float("bf16", 1, r.total, WIDTH, dtype=torch.bfloat16), 1),
    "logits": (lambda r: _float("logits", 1, r.total, VOCABULARY), 1),
    "batch": (lambda r: _ids("batch", 3 * r.total).view(3, -1), 1),
    "images": (lambda r: _float("images", 2, 4, 4, 3), None),
    "scale": (lambda r: _float("scale", WIDTH), None),
    "cu_seqlens": (lambda r: r.cu(), None),
    "cu_seqlens_q": (lambda r: r.cu(), None),
    "cu_seqlens_k": (lambda r: r.cu(), None),
    "cu_seqlens_kv": (lambda r: r.cu(), None),
    "cu_seq_lens_q": (lambda r: r.cu(), None),
    "cu_seq_lens_k": (lambda r: r.cu(), None),
    "cu": (lambda r: r.cu(), None),
    "offsets": (lambda r: r.cu(torch.int64), None),
    "lengths": (lambda r: torch.tensor(r.lengths), None),
    "max_seqlen": (lambda r: max(r.lengths), None),
    "packed_seq_params": (
        lambda r: types.SimpleNamespace(cu_seqlens_q=r.cu(), cu_seqlens_kv=r.cu(), qkv_format="thd"),
        None,
    ),
    "batch_dict": (
        lambda r: {"input_ids": _ids("input_ids", r.total), "labels": _ids("labels", r.total), "cu_seqlens": r.cu()},
        None,
    ),
}


def inputs(prog: Program, row: Row) -> dict[str, Any]:
    return {name: prog.maker(name)[0](row) for name in prog.parameters()}


def document(prog: Program, row: Row, d: int) -> dict[str, Any]:
    """The inputs of document ``d`` alone; float inputs are leaves of their own."""
    whole, alone = inputs(prog, row), {}
    start, stop = row.cuts[d], row.cuts[d + 1]

    def cut(x: Tensor, dim: int) -> Tensor:
        piece = x.detach().narrow(dim, start, stop - start).clone()
        return piece.requires_grad_(x.requires_grad)

    for name, value in whole.items():
        make, dim = prog.maker(name)
        if dim is not None:
            alone[name] = cut(value, dim)
        elif name == "batch_dict":
            alone[name] = {k: row.alone(d).cu() if k == "cu_seqlens" else cut(v, 1) for k, v in value.items()}
        else:
            alone[name] = (
                make(row.alone(d)) if isinstance(value, (types.SimpleNamespace, int)) or _bounds(name) else value
            )
    return alone


def _bounds(name: str) -> bool:
    return name.startswith(("cu", "offsets", "lengths"))


# === Running =================================================================================================


@dataclasses.dataclass
class Seen:
    """Outputs, in-place changes of the inputs, and gradients."""

    outputs: list[Tensor]
    arguments: dict[str, Tensor]
    gradients: dict[str, Tensor]


def flat(result: Any) -> list[Tensor]:
    leaves_ = torch.utils._pytree.tree_leaves(result)
    return [x for x in leaves_ if isinstance(x, Tensor)]


Cotangents = Callable[[int, Tensor], Tensor]


def cotangents(row: Row) -> Cotangents:
    """Fixed numbers, 0 in slots of no document."""

    def make(i: int, like: Tensor) -> Tensor:
        out = _float(f"cotangent{i}", *like.shape, dtype=like.dtype).detach()
        dim = row_dim(like, row.total)
        if dim is not None:
            out.narrow(dim, 0, row.cuts[0]).zero_()
            out.narrow(dim, row.cuts[-1], row.total - row.cuts[-1]).zero_()
        return out

    return make


def run(fn: Any, kwargs: dict[str, Any], module: Any, cotangents: Cotangents) -> Seen:
    """Call ``fn`` and differentiate everything that can be."""
    outputs = flat(fn(**kwargs))
    wanted = {k: v for k, v in kwargs.items() if isinstance(v, Tensor) and v.requires_grad and v.is_leaf}
    wanted |= dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    scored = [(o, cotangents(i, o)) for i, o in enumerate(outputs) if o.requires_grad]
    gradients: dict[str, Tensor] = {}
    if scored and wanted:
        found = torch.autograd.grad(
            [o for o, _ in scored], list(wanted.values()), [c for _, c in scored], allow_unused=True
        )
        gradients = {k: torch.zeros_like(wanted[k]) if g is None else g for k, g in zip(wanted, found, strict=True)}
    arguments = {k: v.detach() for k, v in kwargs.items() if isinstance(v, Tensor)}
    return Seen([o.detach() for o in outputs], arguments, gradients)


def row_dim(x: Tensor, total: int) -> int | None:
    """The dimension of an output that runs over the row."""
    return next((d for d in range(x.dim()) if x.shape[d] == total), None)


def one_by_one(prog: Program, row: Row, got: Seen) -> Seen:
    """The program on every document alone, put together again; outputs without a row are summed."""
    module = prog.instance()
    outputs: list[Tensor] = [torch.zeros_like(o) if row_dim(o, row.total) is None else o.clone() for o in got.outputs]
    gradients = {k: torch.zeros_like(g) for k, g in got.gradients.items()}
    for d, length in enumerate(row.lengths):
        if length == 0:
            continue
        start = row.cuts[d]

        def part(i: int, like: Tensor, start: int = start, length: int = length) -> Tensor:
            whole = cotangents(row)(i, got.outputs[i])
            dim = row_dim(got.outputs[i], row.total)
            return whole if dim is None else whole.narrow(dim, start, length)

        alone = run(module, document(prog, row, d), module, part)
        for i, o in enumerate(alone.outputs):
            dim = row_dim(outputs[i], row.total)
            if dim is None:
                outputs[i] += o
            else:
                outputs[i].narrow(dim, start, length).copy_(o)
        for k, g in alone.gradients.items():
            dim = prog.maker(k)[1] if k in prog.parameters() else None
            if dim is None:
                gradients[k] += g
            else:
                gradients[k].narrow(dim, start, length).copy_(g)
    return Seen(outputs, {}, gradients)


def equal(a: Tensor, b: Tensor, exact: bool = True) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if exact and not a.is_floating_point():
        return torch.equal(a, b)
    return (
        torch.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
        if not exact
        else bool(((a == b) | (a.isnan() & b.isnan())).all())
    )


def differences(a: Seen, b: Seen, row: Row, exact: bool = False) -> list[str]:
    """What two runs disagree about, within documents."""
    out = []

    def inside(x: Tensor) -> Tensor:
        dim = row_dim(x, row.total)
        return x if dim is None else x.narrow(dim, row.cuts[0], row.cuts[-1] - row.cuts[0])

    for i, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)):
        if not equal(inside(x), inside(y), exact):
            out.append(f"output {i}: {x} {y}")
    for k in a.gradients.keys() & b.gradients.keys():
        if not equal(inside(a.gradients[k]), inside(b.gradients[k]), exact):
            out.append(f"gradient of {k}: {a.gradients[k]} {b.gradients[k]}")
    for k in a.arguments.keys() & b.arguments.keys():
        if not equal(a.arguments[k], b.arguments[k], exact):
            out.append(f"argument {k} after the call")
    return out


def compiled(target: Any, **options: Any) -> Any:
    settings = {**EAGER, **{f"packpass.{k}": v for k, v in options.items()}}
    if isinstance(target, nn.Module):
        target = copy.copy(target)
    return torch.compile(target, backend=packpass.backend, options=settings)


def explained(prog: Program, row: Row, **options: Any) -> packpass.Report:
    """The report of one run from scratch."""
    torch._dynamo.reset()
    settings = {**EAGER, **{f"packpass.{k}": v for k, v in options.items()}}
    report: packpass.Report = packpass.explain(prog.instance(), options=settings)(**inputs(prog, row))
    return report
