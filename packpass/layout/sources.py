"""Where boundaries come from: declarations, loops that were vectorised, varlen-attention calls, well-known inputs.

Every source says which axis it packs. Well-known inputs (by name, `well_known`) count only if exactly one reading
is possible: one vector of boundaries, one row of tokens per tensor, one length.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass._compat import hint_of, statically_known_true
from packpass.decisions.location import location_of_node
from packpass.layout.attention import attention, is_boundaries
from packpass.layout.axes import Axis
from packpass.semantics import example, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.memory import copied

KINDS = ("declared", "loop", "attention", "input")
"""In order of precedence."""

BOUNDARY_NAMES = ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q", "cu_seq_lens", "cu_seqlen", "cu_doc_lens")
PADDED_NAMES = ("cu_seqlens_padded", "cu_seqlens_q_padded")
_TOKENS = r"(?:decoder_|shift(?:ed)?_|mtp_|target_|packed_)*"
_IDS = re.compile(
    rf"{_TOKENS}(?:ids|idx|input_ids|token_ids|tokens|input_tokens|labels?|targets?|target_ids|position_ids|pos_ids|"
    r"positions|token_type_ids|loss_mask|padding_mask|attention_mask|label_mask|token_mask|inputs)"
)
_HIDDEN = re.compile(
    rf"{_TOKENS}(?:lm_)?(?:hidden_states|hidden|inputs_embeds|input_embeds|embeddings|decoder_input|logits)"
)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Boundaries that cut an axis. ``kind`` is one of `KINDS`, ``text`` is for reports, ``location`` the user's line.

    ``boundaries`` and ``padded`` are nodes of the graph that the packed tensor lives in, or of one around it.
    """

    boundaries: fx.Node
    padded: fx.Node | None
    kind: str
    text: str
    location: str
    cp_group: str = ""
    """Declared with a context-parallel group, by name: the row is this rank's zigzag shard, boundaries are global."""


class LayoutError(ValueError):
    """Two declarations of the layout contradict each other, or a declaration cannot be true."""


@dataclasses.dataclass(frozen=True)
class Doubt:
    """Why a possible source was not used: a stable code, and a reason that a user can act on.

    ``if_equal``: pairs of symbolic sizes; there is no doubt where they are equal, as they are at the moment.
    """

    code: str
    reason: str
    location: str = "<inputs>"
    if_equal: tuple[tuple[Any, Any], ...] = ()


def source_name(node: fx.Node) -> str | None:
    """How the user's code calls a graph input: "cu_seq_lens_q" for ``L['kwargs']['cu_seq_lens_q']``."""
    arg = node.meta.get("grapharg")
    source = getattr(arg, "source", None)
    text = getattr(source, "name", None)
    if callable(text):  # a method before torch 2.12
        text = text()
    return text if isinstance(text, str) else None


def last_name(source: str) -> str:
    """The last name in ``L['kwargs']['cu_seq_lens_q']`` or ``L['packed_seq_params'].cu_seqlens_q``."""
    found = re.findall(r"[A-Za-z_]\w*", source)
    return found[-1] if found else ""


def belongs_to_module(source: str) -> bool:
    """Is this input a parameter, buffer or attribute of a module, rather than an argument of the call?"""
    return source.startswith(("L['self']", "G[")) or "._parameters[" in source or "._buffers[" in source


# === In the graph ============================================================================================

_PACKED_OPS = {
    # op: (position of the packed tensor, of its boundaries, of its dimension, of padded boundaries)
    "packpass::packed_roll": (0, 1, 3, 5),
    "packpass::packed_flip": (0, 1, 2, None),
}


DOUBTFUL = "packpass_doubtful"
"""In the meta of a call: its boundaries may not be those of the row it is given (see `passes.remap_boundaries`)."""


def in_graph(node: fx.Node) -> Iterator[tuple[Axis, Packing]]:
    """What one node says about the layout of its inputs."""
    name = op_name(node)
    if node.meta.get(DOUBTFUL):
        return
    if name == "packpass::packed":
        x, cu, dim, padded, group = node.args
        assert isinstance(x, fx.Node) and isinstance(cu, fx.Node)
        dim = int(example(dim))  # a symbol under dynamic=True, which the op has already fixed
        pad = root_of(padded) if isinstance(padded, fx.Node) else None
        line = location_of_node(node) or "<unknown>"
        packing = Packing(root_of(cu), pad, "declared", "packpass.packed", line, str(group))
        yield Axis(x, dim % example(x).dim()), packing
    elif name in _PACKED_OPS:
        at_x, at_cu, at_dim, at_padded = _PACKED_OPS[name]
        x, cu, dim = node.args[at_x], node.args[at_cu], node.args[at_dim]
        padded = node.args[at_padded] if at_padded is not None and len(node.args) > at_padded else None
        if isinstance(x, fx.Node) and isinstance(cu, fx.Node) and isinstance(dim, int):
            pad = root_of(padded) if isinstance(padded, fx.Node) else None
            packing = Packing(root_of(cu), pad, "loop", "loop", location_of_node(node) or "<unknown>")
            yield Axis(x, dim % example(x).dim()), packing
    else:
        yield from _attention(node)


def _attention(node: fx.Node) -> Iterator[tuple[Axis, Packing]]:
    """A call of variable-length attention packs its queries, and its keys if they have the same boundaries."""
    found = attention(node)
    if found is not None:
        line = location_of_node(node) or "<unknown>"
        cu = root_of(found.boundaries)
        packing = Packing(cu, None, "attention", f"{getattr(node.target, '__name__', node.target)}", line)
        yield Axis(found.query, found.dim), packing
        if found.other_boundaries is None or root_of(found.other_boundaries) is cu:
            for other in found.keys:
                yield Axis(other, found.dim), packing


SAME_BOUNDARIES = ("packpass::snapshot", "packpass::fit_boundaries")
"""What rewrites make of boundaries that are still those of the program."""


def root_of(node: fx.Node) -> fx.Node:
    """The tensor that a copy of boundaries was made of: two casts of one ``cu_seqlens`` are the same boundaries."""
    while isinstance(source := node.args[0] if op_name(node) in SAME_BOUNDARIES else copied(node), fx.Node):
        if not is_boundaries(example(source)) or mutated_after(node.graph, source, node):
            break
        if mutated_after(node.graph, node, node.next):
            break  # a copy that is written has boundaries of its own
        node = source
    return node


# === Well-known inputs =======================================================================================


@dataclasses.dataclass(frozen=True)
class Field:
    """A graph input with a well-known name for one value per token; ``dim`` is the dimension of the tokens.

    ``doubt``: why it may be another dimension, or more than one row.
    """

    node: fx.Node
    name: str
    dim: int
    doubt: str = ""

    @property
    def length(self) -> Any:
        return example(self.node).shape[self.dim]


@dataclasses.dataclass(frozen=True)
class WellKnown:
    """What the inputs of a graph say about the layout. ``suspects`` would be packed if it were not for ``doubts``."""

    marks: tuple[tuple[Axis, Packing], ...] = ()
    doubts: tuple[Doubt, ...] = ()
    suspects: tuple[tuple[Axis, Packing], ...] = ()


def well_known(graph: fx.Graph, boundaries: fx.Node | None = None) -> WellKnown:
    """Token fields and the one set of boundaries among the inputs of a graph, if only one reading is possible.

    ``boundaries`` stands in for boundaries that are an argument of the call but no input of the graph (yet).
    """
    named = [(n, s) for n in graph.nodes if n.op == "placeholder" and (s := _named_input(n)) is not None]
    candidates = [(n, s) for n, s in named if last_name(s) in BOUNDARY_NAMES]
    padded = [(n, s) for n, s in named if last_name(s) in PADDED_NAMES]
    if boundaries is not None:
        candidates.append((boundaries, boundaries.name))
    fields = _fields(named)
    if not candidates or not fields:
        return WellKnown()
    cu, source = candidates[0]
    pad = padded[0][0] if padded else None
    packing = Packing(cu, pad, "input", f"input {last_name(source)}", f"<input {source}>")
    marks = tuple((Axis(f.node, f.dim), packing) for f in fields)
    doubt = _doubt(candidates, padded, fields)
    return WellKnown(marks) if doubt is None else WellKnown((), (doubt,), marks)


def _doubt(
    candidates: list[tuple[fx.Node, str]], padded: list[tuple[fx.Node, str]], fields: list[Field]
) -> Doubt | None:
    """Why more than one reading of the inputs is possible, or none."""
    where = ", ".join(s for _, s in candidates)
    if len(candidates) > 1:
        return Doubt("ambiguous-boundaries", f"more than one input could be the boundaries: {where}")
    for node, source in (*candidates, *padded):
        value = example(node)
        if not is_boundaries(value):
            what = f"{value.dim()}-D {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            return Doubt("not-boundaries", f"{source} is {what}; boundaries are one 1-D int32 or int64 tensor")
    for field in fields:
        if field.doubt:
            return Doubt("ambiguous-rows", field.doubt)
    length, entries = fields[0].length, example(candidates[0][0]).shape[0]
    if isinstance(entries, int) and isinstance(length, int) and entries > max(length + 1, 2):
        return Doubt("not-boundaries", f"{where} has {entries} entries for a row of {length} slots")
    ends = [example(node).shape[0] for node, _ in padded]
    if len(padded) > 1 or any(not statically_known_true(n == entries) for n in ends):
        reason = f"{', '.join(s for _, s in padded)} do not go with {where}"
        pairs = tuple((n, entries) for n in ends) if len(padded) == 1 and _equal_now(ends[0], entries) else ()
        return Doubt("ambiguous-boundaries", reason, if_equal=pairs)
    others = [f for f in fields[1:] if not statically_known_true(f.length == length)]
    if others:
        names = f"{fields[0].name} ({length} slots) and {others[0].name} ({others[0].length})"
        reason = f"{names} may have different lengths; {where} can cut only one"
        pairs = tuple((f.length, length) for f in others if _equal_now(f.length, length))
        return Doubt("ambiguous-fields", reason, if_equal=pairs if len(pairs) == len(others) else ())
    return None


def _equal_now(a: Any, b: Any) -> bool:
    """Are two sizes equal in the call that is being compiled?"""
    return hint_of(a) is not None and hint_of(a) == hint_of(b)


def _named_input(node: fx.Node) -> str | None:
    source = source_name(node)
    return None if source is None or belongs_to_module(source) else source


def _fields(named: list[tuple[fx.Node, str]]) -> list[Field]:
    fields: list[Field] = []
    for node, source in named:
        name, value = last_name(source), example(node)
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            continue
        shape = value.shape
        if _IDS.fullmatch(name) and value.dim() <= 2:
            rows = (
                ""
                if value.dim() == 1 or _one(shape[0])
                else (f"{name} has {shape[0]} rows; boundaries of one row cannot be told from those of a batch")
            )
            fields.append(Field(node, name, value.dim() - 1, rows))
        elif _HIDDEN.fullmatch(name) and value.dim() in (2, 3) and value.is_floating_point():
            # [T, D], [1, T, D] or [T, 1, D]
            long = [d for d in range(value.dim() - 1) if not _one(shape[d])]
            several = f"{name} has two dimensions that could be the row: {tuple(shape)}" if len(long) > 1 else ""
            fields += [Field(node, name, d, several) for d in long[-1:]]
    return fields


def _one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
