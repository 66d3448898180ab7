"""Registry of loop programs, their input maker, and the comparison with eager.

A program is a plain function (or an ``nn.Module`` class) together with a description of its arguments, for example
``"f[2,T] i[T] cu"``: one letter per dtype (``f`` float32 with gradient, ``d`` float64 with gradient, ``b`` bfloat16,
``i`` int64, ``j`` int32, ``m`` bool), dims in terms of ``T`` (row length) and ``N`` (number of documents), ``cu`` and
``cu64`` for int32/int64 boundaries. Float values are small multiples of 1/8, so that sums and products are exact in
any order and a comparison can be bit for bit.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Args = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Shape:
    """One input size: number of documents, row length, and how the boundaries lie."""

    docs: int
    total: int
    kind: str

    def __str__(self) -> str:
        return f"N{self.docs}-T{self.total}-{self.kind}"


# The first four are the sizes over which graphs are counted; the order N = 3, 7, 1, 50 is part of the contract.
COUNTED = (Shape(3, 24, "plain"), Shape(7, 61, "plain"), Shape(1, 9, "plain"), Shape(50, 173, "plain"))
SHAPES = (
    *COUNTED,
    Shape(4, 30, "tail"),
    Shape(3, 26, "gap"),
    Shape(5, 5, "ones"),
    Shape(6, 33, "inner_empty"),
    Shape(2, 17, "lead_empty"),
    Shape(12, 40, "tail_empty"),
    Shape(3, 22, "gap_empty"),
    Shape(0, 8, "no_documents"),
)


@dataclasses.dataclass(frozen=True)
class Program:
    """A registered loop program and what may be asked of it."""

    name: str
    target: Any
    args: str
    wrap: Callable[..., Args] | None
    where: tuple[Any, ...]
    demand: bool  # a rewrite by vectorize_segments is demanded
    must_refuse: bool  # any rewrite would be wrong or cannot be proven
    refusal: bool  # a refusal must be reported (a loop over documents is visible to the compiler)
    why: str
    min_len: int
    lead_empty: bool
    tail: bool
    exact: bool
    mutates: bool
    depends: bool
    observe: Callable[[], Any] | None
    shapes: tuple[Shape, ...] | None
    reads: int = 0  # numbers read on the host: sizes and numbers of the result; documents until a loop is left
    graphs: int = 2  # over the counted sizes
    rule: str = "vectorize_segments"  # the pass that rewrites it
    unfit: bool = False  # some sizes fail a check and run document by document; on a GPU a failed check is the end

    def __str__(self) -> str:
        return self.name

    def instance(self, device: str = "cpu") -> Callable[..., Any]:
        """A fresh callable: module classes are built anew (seeded) so that eager and compiled do not share state."""
        if isinstance(self.target, type):
            torch.manual_seed(0)
            module: Callable[..., Any] = self.target()
            return module.to(device) if isinstance(module, nn.Module) else module
        function: Callable[..., Any] = self.target
        return function

    def inputs(self) -> tuple[Shape, ...]:
        """The sizes at which the eager program is defined."""
        if self.shapes is not None:
            return self.shapes
        keep = []
        for shape in SHAPES:
            if not self.tail and shape.kind in ("tail", "gap", "tail_empty", "gap_empty", "no_documents"):
                continue
            if self.min_len > 0 and shape.kind.endswith("empty"):
                continue
            if not self.lead_empty and shape.kind in ("lead_empty", "tail_empty"):
                continue
            if self.min_len > 1 and shape.kind == "ones":
                continue
            keep.append(shape)
        return tuple(keep)

    def spans(self) -> list[tuple[Path, int, int]]:
        """Files and line ranges in which a rewrite of this program may be located."""
        out = []
        for thing in map(inspect.unwrap, (self.target, *self.where)):
            lines, first = inspect.getsourcelines(thing)
            out.append((Path(inspect.getsourcefile(thing) or ""), first, first + len(lines) - 1))
        return out


REWRITE: dict[str, Program] = {}
LEAVE: dict[str, Program] = {}


def _register(table: dict[str, Program], args: str, options: dict[str, Any]) -> Callable[[Any], Any]:
    defaults: dict[str, Any] = dict(
        wrap=None, where=(), demand=False, must_refuse=False, refusal=False, why="", min_len=0, lead_empty=True,
        tail=True, exact=True, mutates=False, depends=True, observe=None, shapes=None,
        reads=0, graphs=2, rule="vectorize_segments", unfit=False,
    )  # fmt: skip
    unknown = options.keys() - defaults.keys()
    if unknown:
        raise TypeError(f"unknown program options {sorted(unknown)}")

    def add(target: Any) -> Any:
        name = target.__name__
        if name in REWRITE or name in LEAVE:
            raise ValueError(f"two programs are called {name}")
        table[name] = Program(name=name, target=target, args=args, **{**defaults, **options})
        return target

    return add


def program(args: str, **options: Any) -> Callable[[Any], Any]:
    """Register a program that must be rewritten (``demand=False``: rewriting it is welcome, equality is demanded)."""
    return _register(REWRITE, args, {"demand": True, **options})


def leave(args: str, **options: Any) -> Callable[[Any], Any]:
    """Register a program that must give eager's results; ``must_refuse=True, why=...`` forbids any rewrite."""
    if options.get("must_refuse"):
        if not options.get("why"):
            raise TypeError("must_refuse needs a reason in words")
        options = {"refusal": True, **options}
    return _register(LEAVE, args, options)


# ---------------------------------------------------------------- inputs


def _lengths(shape: Shape, min_len: int, rng: torch.Generator) -> tuple[int, list[int]]:
    """First boundary and document lengths for one size."""
    n, total, kind = shape.docs, shape.total, shape.kind
    if kind in ("ones", "no_documents"):
        return 0, [1] * n
    first = 2 if kind.startswith("gap") else 0
    used = total - first - (3 if kind.startswith(("tail", "gap")) else 0)
    empty: set[int] = set()
    if kind == "inner_empty":
        empty = {1, 2, n - 1}
    elif kind in ("lead_empty", "gap_empty"):
        empty = {0}
    elif kind == "tail_empty":
        empty = {0, 4, 5, n - 1}
    filled = [d for d in range(n) if d not in empty]
    least = max(min_len, 1)
    spare = used - least * len(filled)
    if spare < 0:
        raise ValueError(f"{shape} cannot hold documents of {least}")
    cuts = torch.randint(0, spare + 1, (len(filled) - 1,), generator=rng).sort().values.tolist()
    extra = [b - a for a, b in zip([0, *cuts], [*cuts, spare], strict=True)]
    if len(filled) > 2:  # always one document of the least length
        extra[0], extra[1] = extra[0] + extra[1], 0
    lens = [0] * n
    for d, more in zip(filled, extra, strict=True):
        lens[d] = least + more
    return first, lens


def boundaries(shape: Shape, seed: int = 0, min_len: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
    """``cu_seqlens`` of N+1 entries for one size."""
    first, lens = _lengths(shape, min_len, torch.Generator().manual_seed(1000 * shape.docs + shape.total + seed))
    return torch.tensor([first, *lens], dtype=torch.int64).cumsum(0).to(dtype)


_DTYPES = {
    "f": torch.float32, "d": torch.float64, "b": torch.bfloat16, "i": torch.int64, "j": torch.int32, "m": torch.bool,
}  # fmt: skip


def _tensor(code: str, dims: list[int], rng: torch.Generator, grad: bool, device: str) -> Tensor:
    dtype = _DTYPES[code]
    if code == "m":
        return (torch.rand(dims, generator=rng) > 0.4).to(device)
    if code in "ij":
        return torch.randint(1, 90, dims, generator=rng, dtype=dtype).to(device)
    values = (torch.randint(-31, 32, dims, generator=rng).double() / 8).to(device, dtype)
    return values.requires_grad_() if grad else values


@dataclasses.dataclass
class Call:
    """The arguments of one call and the leaves whose gradients count."""

    args: Args
    leaves: list[Tensor]


def one_long_document(cu: Tensor, min_len: int) -> Tensor:
    """Every inner boundary moved to the end: one long document, and the others as short as allowed."""
    moved = cu.clone()
    moved[1:] = cu[-1] - min_len * torch.arange(cu.numel() - 2, -1, -1, dtype=cu.dtype, device=cu.device)
    return moved


def build(
    prog: Program, shape: Shape, seed: int = 0, grad: bool = True, device: str = "cpu", one_long: bool = False
) -> Call:
    """The arguments of ``prog`` at one size: equal seeds give equal, unshared tensors.

    ``one_long`` asks for other boundaries over the same tokens, see ``one_long_document``.
    """
    rng = torch.Generator().manual_seed(7 + seed)
    leaves: list[Tensor] = []
    args: list[Any] = []
    cu: dict[str, Tensor] = {}
    for token in prog.args.split():
        if token in ("cu", "cu64"):
            dtype = torch.int64 if token.endswith("64") else torch.int32
            cu[token] = boundaries(shape, seed, prog.min_len, dtype).to(device)
            if one_long:
                cu[token] = one_long_document(cu[token], prog.min_len)
            args.append(cu[token])
        elif token == "N":
            args.append(shape.docs)
        else:
            found = re.fullmatch(r"([fdbijm])\[([^\]]*)\]", token)
            if found is None:
                raise ValueError(f"cannot read the argument {token!r} of {prog.name}")
            dims = [int(eval(d, {}, {"T": shape.total, "N": shape.docs})) for d in found[2].split(",") if d]
            tensor = _tensor(found[1], dims, rng, grad, device)
            if tensor.requires_grad:
                leaves.append(tensor)
                if prog.mutates:  # a leaf cannot be written in place
                    tensor = tensor.clone()
            args.append(tensor)
    return Call(tuple(args) if prog.wrap is None else prog.wrap(*args), leaves)


# ---------------------------------------------------------------- outcome and comparison


def flatten(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Everything observable in ``value``: tensors and plain scalars, in containers and in attributes."""
    seen = set() if seen is None else seen
    if isinstance(value, (Tensor, int, float, bool, str, type(None))):
        yield path, value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for key in value:
            yield from flatten(value[key], f"{path}[{key!r}]", seen)
    elif isinstance(value, (list, tuple)):
        yield f"{path}.len", len(value)
        for k, item in enumerate(value):
            yield from flatten(item, f"{path}[{k}]", seen)
    elif isinstance(value, nn.Module):
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield f"{path}.{name}", tensor
        for name, item in vars(value).items():
            if not name.startswith("_") and name != "training":
                yield from flatten(item, f"{path}.{name}", seen)
    elif hasattr(value, "__dict__"):
        for name, item in vars(value).items():
            yield from flatten(item, f"{path}.{name}", seen)


@dataclasses.dataclass
class Outcome:
    """What one call did: outputs, inputs afterwards, which outputs share memory with what, gradients."""

    outputs: list[tuple[str, Any]]
    inputs: list[tuple[str, Any]]
    shared: list[tuple[str, str]]
    grads: list[Tensor | None]
    observed: Any


def _weight(like: Tensor) -> Tensor:
    count = torch.arange(like.numel(), dtype=like.dtype, device=like.device) % 11
    return (count - 5).reshape(like.shape) / 4


def outcome(fn: Callable[..., Any], call: Call, observe: Callable[[], Any] | None = None) -> Outcome:
    """Call ``fn`` once (seeded) and once backward from all differentiable outputs."""
    torch.manual_seed(1234)
    random.seed(1234)
    parameters = list(fn.parameters()) if isinstance(fn, nn.Module) else []
    for parameter in parameters:
        parameter.grad = None
    result = fn(*call.args)
    outputs, inputs = list(flatten(result, "out")), list(flatten(call.args, "in"))
    inputs += list(flatten(fn, "self")) if isinstance(fn, nn.Module) else []
    leaves = [*call.leaves, *parameters]
    pairs = [
        (a, b)
        for k, (a, t) in enumerate(outputs)
        for b, u in (*inputs, *outputs[:k])
        if isinstance(t, Tensor) and isinstance(u, Tensor) and t.numel() and _storage(t) == _storage(u)
    ]
    loss = [
        (t * _weight(t)).sum().double()
        for _, t in outputs
        if isinstance(t, Tensor) and t.requires_grad and t.is_floating_point()
    ]
    if loss:
        torch.stack(loss).sum().backward()
    frozen = [(p, v.detach().clone() if isinstance(v, Tensor) else v) for p, v in outputs]
    after = [(p, v.detach().clone() if isinstance(v, Tensor) else v) for p, v in inputs]
    return Outcome(frozen, after, pairs, [leaf.grad for leaf in leaves], observe() if observe else None)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def same(name: str, want: Any, got: Any, exact: bool = True) -> None:
    """Raise ``AssertionError`` unless the two values agree (tensors: shape, dtype and every bit, or to rounding)."""
    if not isinstance(want, Tensor):
        assert type(want) is type(got), f"{name}: eager {want!r}, compiled {got!r}"
        assert want == got, f"{name}: eager {want!r}, compiled {got!r}"
        return
    assert isinstance(got, Tensor), f"{name}: eager gives a tensor, compiled {type(got).__name__}"
    assert want.shape == got.shape, f"{name}: eager shape {tuple(want.shape)}, compiled {tuple(got.shape)}"
    assert want.dtype == got.dtype, f"{name}: eager {want.dtype}, compiled {got.dtype}"
    if exact and want.is_floating_point():
        equal = bool(((want == got) | (want.isnan() & got.isnan())).all())
    elif exact:
        equal = torch.equal(want, got)
    else:
        equal = torch.allclose(want.double(), got.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert equal, f"{name}: values differ\neager    {want.flatten()[:64]}\ncompiled {got.flatten()[:64]}"


def compare(want: Outcome, got: Outcome, exact: bool = True) -> None:
    """Raise ``AssertionError`` unless the compiled call did exactly what the eager one did."""
    assert [p for p, _ in want.outputs] == [p for p, _ in got.outputs], "the outputs have another structure"
    for (path, a), (_, b) in zip(want.outputs, got.outputs, strict=True):
        same(path, a, b, exact)
    assert [p for p, _ in want.inputs] == [p for p, _ in got.inputs], "the inputs have another structure afterwards"
    for (path, a), (_, b) in zip(want.inputs, got.inputs, strict=True):
        same(f"after the call, {path}", a, b, exact)
    assert want.shared == got.shared, f"shared memory: eager {want.shared}, compiled {got.shared}"
    for k, (a, b) in enumerate(zip(want.grads, got.grads, strict=True)):
        same(f"gradient {k}", a, b, exact)
    for (path, a), (_, b) in zip(flatten(want.observed, "state"), flatten(got.observed, "state"), strict=True):
        same(path, a, b, exact)
