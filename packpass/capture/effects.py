"""What may pass between iterations of a symbolic loop: mutation, cells, iterators, and other ways out of the loop.

Two traced iterations that look alike stand for all only if nothing but the index tells one from another; a body that
could notice is refused. Functions named after what they wrap are ``replacement(original, *args)`` for the hook table
in `packpass.capture`.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from packpass import markers
from packpass.capture import expansions, masked, outgoing, places, plain_messages, sized
from packpass.capture.dynamo import (
    AutogradFunctionContextVariable,
    CellVariable,
    IteratorVariable,
    LocalGeneratorObjectVariable,
    TensorVariable,
    UserDefinedObjectVariable,
    VariableTracker,
    current_scope_id,
    is_side_effect_safe,
)
from packpass.capture.frame import Mode
from packpass.capture.later import Later, numbers
from packpass.capture.region import JUMPS, catches_exceptions
from packpass.capture.state import (
    active,
    current_frame,
    has_captured,
    location_of,
    note,
    refuse,
    restart,
    without_data_sizes,
    without_layers,
)
from packpass.capture.watch import READ, loops_are_sought, watch_data_size, watch_mask
from packpass.capture.watched import Poison
from packpass.decisions.location import is_library, shorten
from packpass.semantics.collectives import collective_name


def _refuse_mutation(item: Any) -> None:
    region = active.regions[-1]
    what = type(item).__name__.removesuffix("Variable")
    raise refuse(
        "outer-mutation", f"the loop body changes a Python object from outside the loop ({what})", region.location
    )


def _new_cell(item: Any) -> bool:
    return isinstance(item, CellVariable) and item.source is None and item.pre_existing_contents is None


def check_allowed_side_effect(original: Any, self: Any, item: Any) -> Any:
    """``SideEffects.check_allowed_side_effect``: only objects born in this iteration may change."""
    if active.regions and not isinstance(item, AutogradFunctionContextVariable):
        region = active.regions[-1]
        if item.mutation_type is not None and not is_side_effect_safe(item.mutation_type):
            if isinstance(item, IteratorVariable):
                refuse_advance()
            if not (_new_cell(item) or region.adopt_list(item)):
                _refuse_mutation(item)
            return False
    return original(self, item)


def store_attr(original: Any, self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """``SideEffects.store_attr``: stock Dynamo defers this check for constants; a loop may not."""
    if active.regions and item.mutation_type is not None and not is_side_effect_safe(item.mutation_type):
        if _new_cell(item) and name == places.CELL:
            if places.store_shared(item, *args, **kwargs):
                return None
            for region in active.regions:
                region.cells.write(item)
        elif not isinstance(item, AutogradFunctionContextVariable):
            _refuse_mutation(item)
    return original(self, item, name, *args, **kwargs)


def load_cell(original: Any, self: Any, cell: Any) -> Any:
    """``SideEffects.load_cell``: closures are locals too."""
    shared = places.load(cell, places.CELL) if active.regions else None
    if shared is not None:
        return shared
    value = original(self, cell)
    if isinstance(value, Poison):
        raise value.refuse()
    for region in active.regions:
        if cell.mutation_type is not None and cell.mutation_type.scope != current_scope_id():
            region.cells.read(cell)
    return value


# === Iterators ===============================================================================================


def is_iterator(value: Any) -> bool:
    return isinstance(value, (IteratorVariable, LocalGeneratorObjectVariable))


def note_birth(value: Any) -> None:
    """A call has returned this: the first one that does has made it."""
    if is_iterator(value):
        active.trace.born.setdefault(value, active.regions[-1] if active.regions else None)


def _is_from_outside(value: Any) -> bool:
    """Was this iterator there before the loop? Most know the scope that they were made in, generators do not."""
    if value.mutation_type is not None:
        return not is_side_effect_safe(value.mutation_type)
    return active.trace.born.get(value) is not active.regions[-1]


def refuse_advance() -> None:
    location = active.regions[-1].location
    raise refuse("outer-iterator", "the loop body advances an iterator from outside the loop", location)


def check_iterators(*values: Any) -> None:
    """The body is about to go through these: one from outside the loop carries its position from document to
    document."""
    if active.regions:
        for value in values:
            value = value.realize() if isinstance(value, VariableTracker) else value
            if is_iterator(value) and _is_from_outside(value) and not _drives(value):
                refuse_advance()


def _drives(iterator: Any) -> bool:
    """Is it the generator in which the open loop is, so that its next entry is the loop's next iteration?"""
    tx = active.regions[-1].tx
    while tx in active.trace.consumers:
        if getattr(iterator, "inline_tracer", None) is tx:
            return True
        tx = active.trace.consumers[tx]
    return False


# === Ops of the body =========================================================================================


def create_proxy(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``OutputGraph.create_proxy``: an op of the body, where an error of one document would be caught."""
    if active.regions:
        region = active.regions[-1]
        if catches_exceptions(self.current_tx, region.tx):
            raise refuse("try-block", "the loop body is inside try, or a with that may swallow errors", region.location)
        frame, target = current_frame(), args[1]
        if frame.batches and not frame.rows_alone and (collective_name(target) or target in markers.MESSAGES):
            frame.rows_alone = True
            raise restart("rows of tokens are exchanged")
    return original(self, *args, **kwargs)


# === Leaving a region in other ways than its end =============================================================


def refuse_exit() -> Exception:
    return refuse("early-exit", "the loop over documents is left by break or return", active.regions[-1].location)


def compile_subgraph(original: Any, self: Any, tx: Any, reason: Any, *args: Any, **kwargs: Any) -> Any:
    """``OutputGraph.compile_subgraph``: the graph ends. No loop may be open, and nothing of ours may outlive it."""
    if active.regions:
        if reason.graph_break:
            text = f"the loop body cannot be captured: {first_line(reason.reason)}"
            raise refuse("graph-break", text, active.regions[-1].location)
        raise refuse_exit()
    if not has_captured() and (again := without_layers("no loop over documents is captured inside of them")):
        raise again
    if active.frame is not None and active.frame.mode is Mode.SYMBOLIC:
        wanted = active.frame.sites or active.frame.expands
        if not wanted and (again := without_data_sizes("the graph has no loop over documents")):
            raise again
        _check_survivors(tx)
        sized.check(location_of(tx), ends=reason.graph_break)
        if reason.graph_break and _has_numbers(tx):
            note("sequence-use", PASSED.format(first_line(reason.reason)), location_of(tx))
    if active.frame is not None and active.frame.mode is Mode.PROBE and reason.graph_break:
        _note_read(reason)
    return original(self, tx, reason, *args, **kwargs)


def _has_numbers(tx: Any) -> bool:
    """Does code behind the graph that has a loop get a list of numbers, one per document?"""
    while tx is not None:
        held = itertools.chain(tx.stack, dict(tx.symbolic_locals).values())
        behind = (instruction.opname for instruction in tx.instructions[tx.instruction_pointer :])
        if any(isinstance(v, Later) and v.make is numbers for v in held) and "GET_ITER" in behind:
            return True
        tx = tx.parent
    return False


PASSED = (
    "the graph ends here ({}), and the code behind it gets a list of numbers, one per document, as numbers of Python: "
    "loops over them run as in stock torch; make the list behind this line, or move what ends the graph in front of it"
)


def _note_read(reason: Any) -> None:
    """The graph ends in a comprehension that reads numbers from tensors, and no code behind it will see the loop."""
    stack = list(getattr(reason, "user_stack", None) or ())
    if stack and stack[-1].name in _COMPREHENSIONS and reads_data(reason.reason) and loops_are_sought():
        note("lengths-unknown", READ.format(first_line(reason.reason)), shorten(stack[-1].filename, stack[-1].lineno))


def watch_breaks(tx: Any) -> None:
    """Say so where Dynamo compiles a frame up to a place in front of a loop, and runs the rest of it eagerly, because
    the loop reads numbers from tensors. Later it knows no more why; a torch without this method says nothing."""
    original = getattr(tx, "log_graph_break", None)

    def log_graph_break(*args: Any, **kwargs: Any) -> Any:
        reason, error = kwargs.get("reason"), kwargs.get("exc")
        if active.frame is not None and active.frame.mode is Mode.PROBE and error is not None and reads_data(error):
            if "cannot resume" in str(reason) and loops_are_sought():
                if again := without_layers(first_line(error)):
                    raise again
                note("lengths-unknown", READ.format(first_line(error)), place_of(error) or location_of(tx))
        return original(*args, **kwargs) if original is not None else None

    if original is not None:
        tx.log_graph_break = log_graph_break


def failed(tx: Any, error: Exception, fn: Any, args: list[Any]) -> None:
    """A call of ``fn`` on ``args`` that cannot be traced, before Dynamo decides where the graph ends."""
    if active.frame is not None and first_line(error).startswith("Dynamic shape operator"):
        repeats = expansions.repeats(fn)
        for value in (*args, getattr(fn, "obj", None)):
            if masked.is_mask(value):
                masked.watch_picked(tx, value)
            elif repeats and isinstance(value, TensorVariable):
                watch_mask(tx, value)
        watch_data_size(tx, inside=repeats)
    if active.frame is not None and reads_data(error):
        expansions.watch(tx, fn, args)


_COMPREHENSIONS = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})


def reads_data(text: object) -> bool:
    """Does the graph end because numbers in a tensor are needed?"""
    return first_line(text).startswith(_DATA)


_DATA = ("Data dependent operator", "Unsupported Tensor.item()", "Dynamic shape operator", "Data-dependent branching")


NAMESPACES = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Builtins that read variables by name: what looks dead to Dynamo may be read by them."""


def _check_survivors(tx: Any) -> None:
    """Sequences over documents and what a loop has assigned: known while the frame is traced, and to nobody after."""
    roots: list[Any] = []
    made: dict[Any, Any] = {}
    frame = tx
    while frame is not None:
        if not NAMESPACES.intersection(frame.f_code.co_names):
            frame.prune_dead_locals()
            _drop_overwritten(frame)
        _make_numbers(frame, made)
        roots += [*frame.stack, *dict(frame.symbolic_locals).values()]
        frame = frame.parent
    effects = tx.output.side_effects
    roots += [holder for holder in effects.id_to_variable.values() if holder.source is not None]
    # What a cell or an object holds is known to the side effects, not to the cell or object.
    seen: dict[int, Any] = {}
    held: list[Any] = [roots]

    def look(value: Any) -> None:
        _check_survivor(tx, value)
        held.append(outgoing.within(tx, value, made))

    while held:
        VariableTracker.visit(look, held.pop(), seen)


def _drop_overwritten(frame: Any) -> None:
    """Forget what a loop has assigned where every way on assigns it again before reading it; Dynamo itself counts a
    variable of a loop that comes for read."""
    values = frame.symbolic_locals
    for name in [name for name, value in dict.items(values) if isinstance(value, Poison)]:
        if not _is_read(frame, name):
            dict.__delitem__(values, name)


def _make_numbers(frame: Any, lists: dict[Any, Any]) -> None:
    """What a loop has left, and can be made, is made while there is a graph to make it in."""
    values = frame.symbolic_locals
    for name, value in list(dict.items(values)):
        if isinstance(value, Poison) and value.make is not None:
            dict.__setitem__(values, name, value.made())
        else:
            dict.__setitem__(values, name, outgoing.behind_the_graph(frame, value, lists) or value)
    for at, value in enumerate(frame.stack):
        frame.stack[at] = outgoing.behind_the_graph(frame, value, lists) or value


def _is_read(frame: Any, name: str) -> bool:
    """May the rest of a frame read a name before it assigns it?"""
    seen, queue = set(), [frame.instruction_pointer or 0]
    while queue:
        at = queue.pop()
        if at in seen or at >= len(frame.instructions):
            continue
        seen.add(at)
        instruction = frame.instructions[at]
        if instruction.exn_tab_entry is not None:
            queue.append(frame.indexof[instruction.exn_tab_entry.target])  # it may raise
        named = instruction.argval == name or (isinstance(instruction.argval, tuple) and name in instruction.argval)
        if named and instruction.opname not in ("STORE_FAST", "STORE_FAST_STORE_FAST"):
            return True
        if named or instruction.opname.startswith("RETURN") or instruction.opname in ("RERAISE", "RAISE_VARARGS"):
            continue
        if instruction.target is not None:
            queue.append(frame.indexof[instruction.target])
        if instruction.target is None or instruction.opname not in JUMPS:
            queue.append(at + 1)
    return False


def _check_survivor(tx: Any, value: Any) -> None:
    if isinstance(value, Poison):
        raise value.refuse()
    if isinstance(value, UserDefinedObjectVariable) and issubclass(value.python_type(), plain_messages.OURS):
        if issubclass(value.python_type(), (plain_messages.Request, plain_messages.Message)):
            reason = "a graph break, or a return, that keeps hold of a point-to-point request"
            raise refuse("message-wait", reason, location_of(tx))
        reason = "a graph break or a return that keeps a sequence over documents needs their number to be a constant"
        raise refuse("sequence-use", reason, location_of(tx))


def reason_of(error: Exception) -> str:
    """Why a function is not compiled, and what a user can do about it."""
    error = getattr(error, "inner_exception", error)  # the first line of BackendCompilerFailed names the backend only
    what = f"{type(error).__name__}: {first_line(error)}"
    if (failed := _FAILED_NODE.search(str(error))) is not None:
        said = failed["error"].replace("\\n", "\n")
        name = failed["quoted"] or failed["plain"]
        what = f"{name} cannot be run without the numbers in its arguments: {first_line(said)}"
    if "Dynamic shape operator" in what and active.regions:
        return what + PICKED
    if getattr(error, "gb_type", "") != "graph break in loop":
        return what
    return (
        f"the graph breaks inside a Python loop ({what}), and stock torch runs the whole function eagerly then. Move "
        "that loop (over the model's blocks, say) into a method of its own; what stands around it is compiled then"
    )


PICKED = (
    "; how many slots a mask of a document picks (x[s:e][mask[s:e]], nonzero) is known to its data alone: write "
    "torch.where(mask, x, 0).sum() / mask.sum(), or pick from the whole row, in front of the loop"
)


def line_of(error: BaseException) -> str:
    """`` (at file.py:123)`` of the user's line at which a trace failed, as far as Dynamo knows it."""
    place = place_of(error)
    return f" (at {place})" if place else ""


def place_of(error: BaseException) -> str:
    """The same without words around it."""
    frames = [f for f in getattr(error, "real_stack", None) or () if not is_library(f.filename)]
    return shorten(frames[-1].filename, frames[-1].lineno) if frames else ""


_FAILED_NODE = re.compile(
    r"call_(?:function|method) (?:<[a-z\- ]*(?:function|method) (?P<quoted>[\w.]+)[^>]*>|(?P<plain>[\w.]+))\(.*?got "
    r"\w+\(['\"](?P<error>.*)",
    re.DOTALL,
)
"""What torch says of a call whose result it cannot make up, in an explanation below a first line that names nothing."""


def first_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[0][:200] if lines else ""
