"""One open symbolic loop: what its body may read and write, and what must not outlive it.

The body is traced twice, or once for each way through it. That two iterations look alike proves something about all of
them only if nothing but the index tells one iteration from another, so every channel by which state could pass between
iterations is watched: locals of every live frame, cells, mutable Python objects, iterators, list contents. Tensors are
the one kind of state that the graph itself shows; the passes judge those.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import forget_since, hint_of, ranges_of_unbacked, transforms_open
from packpass.capture import code_loops, defaults
from packpass.capture.carried import Carried, learn
from packpass.capture.dynamo import (
    ContextWrappingVariable,
    GenericContextWrappingVariable,
    ListVariable,
    TensorVariable,
    ValueMutationNew,
    VariableTracker,
    emit,
    enter_new_scope,
    size_of,
)
from packpass.capture.lists import CollectedItems
from packpass.capture.places import Adopted, Place, adopt_place, contents
from packpass.capture.questions import without_slots
from packpass.capture.running import adopt
from packpass.capture.running import learn as learn_numbers
from packpass.capture.state import Restart, active, caller_of, refuse, restart
from packpass.capture.watch import ROWS
from packpass.capture.watched import Accesses, Poison, TrackedLocals
from packpass.capture.ways import Ways
from packpass.semantics import example as example_of
from packpass.semantics.added_entries import added_entry, is_plain, is_to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packpass.capture.dynamo import InstructionTranslatorBase
    from packpass.capture.frame import FrameState

ITERATIONS = 2
"""Traced iterations of a loop at least; the second proves that the first was generic."""


ALIVE = frozenset({"store_attr", "check_allowed_side_effect", "create_proxy", "run_node"})
"""Hooks that were called when the sequence was made that is looped over, or an iteration of it was traced, if they are
ever called."""
JUMPS = ("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE", "JUMP_FORWARD")
_RAISES_AGAIN = ("einops",)
"""Packages whose handlers only add to the message, or compute the same in another way."""


def _goes_on(tx: Any, handler: Any) -> bool:
    """Does the program go on after this handler of exceptions, or do all its ways raise again, as after ``finally``?"""
    opnames = [instruction.opname for instruction in tx.instructions[tx.indexof[handler] :][:3]]
    if "WITH_EXCEPT_START" in opnames:
        return False  # the manager decides
    seen, queue = set(), [tx.indexof[handler]]
    while queue:
        at = queue.pop()
        instruction = tx.instructions[at]
        if at in seen or instruction.opname in ("RERAISE", "RAISE_VARARGS"):
            continue
        if instruction.opname.startswith("RETURN"):
            return True
        seen.add(at)
        if instruction.target is not None:
            queue.append(tx.indexof[instruction.target])
        if instruction.target is None or instruction.opname not in JUMPS:
            queue.append(at + 1)
    return False


def catches_exceptions(tx: Any, outermost: Any = None) -> bool:
    """Is the current instruction of this frame, or of a caller, inside ``try`` or a ``with`` that may swallow errors?

    An error of one document, caught by the user, leaves the documents before it done: only eager order does that.
    Callers of ``outermost`` are not asked.
    """
    own, generic = ContextWrappingVariable, GenericContextWrappingVariable
    while tx is not None:
        if str(tx.f_globals.get("__name__", "")).partition(".")[0] in _RAISES_AGAIN:
            tx = caller_of(tx) if tx is not outermost else None
            continue
        entry = tx.current_instruction.exn_tab_entry
        while entry is not None:
            if _goes_on(tx, entry.target):
                return True
            entry = entry.target.exn_tab_entry if entry.target.exn_tab_entry is not entry else None
        for block in tx.block_stack:
            manager = block.with_context
            if manager is None:
                # Before exception tables, try pushes a block; so does with, which names no manager in inlined code.
                if sys.version_info < (3, 11) and block.inst.opname != "SETUP_WITH" and _goes_on(tx, block.target):
                    return True
            elif isinstance(manager, generic) or not isinstance(manager, own):
                return True
        tx = caller_of(tx) if tx is not outermost else None
    return False


def _check_surroundings(tx: Any, location: str) -> None:
    """Refuse a loop that stands where no loop can be captured."""
    if catches_exceptions(tx):
        raise refuse("try-block", "the loop over documents is inside try, or a with that may swallow errors", location)
    if transforms_open():
        reason = (
            "the loop over documents is inside torch.func.grad, jvp or vmap, which compute with sizes of documents "
            "while they are traced; write the loop outside of it"
        )
        raise refuse("body-not-traceable", reason, location)


def _check_hooks(location: str) -> None:
    """Refuse a loop if what was traced before it, or its first iteration, has called hooks that are not there."""
    missing = ALIVE - active.trace.alive
    if missing:
        never = f"hooks are installed and never called by this torch ({', '.join(sorted(missing))})"
        reason = f"{never}, and without them a loop cannot be checked; run `python -m packpass doctor`"
        raise refuse("hooks-dead", reason, location)


MOST_LAYERS = 16
"""How often a loop with loops over documents in its body may run, to be traced as often."""


class Region:
    """A symbolic loop that is being traced."""

    has_inner = False
    """Is there another loop in what the body calls?"""

    def __init__(
        self, tx: InstructionTranslatorBase, iterator: VariableTracker, length: VariableTracker, location: str,
        whole: VariableTracker | None = None,
    ) -> None:  # fmt: skip
        assert active.frame is not None
        _check_surroundings(tx, location)
        if any(node.op != "placeholder" for node in tx.output.root_tracer.graph.nodes):  # else nothing was traced yet
            _check_hooks(location)
        self.id = len(active.frame.sites) + 1
        active.frame.sites[self.id] = location
        self.closed = False
        """Is everything about it proven that can be while it is traced?"""
        self.tx, self.iterator, self.length, self.location = tx, iterator, length, location
        self.whole = length if whole is None else whole
        """How many there are to go over, of which it may go over those in front of the first that leaves it."""
        self.head = tx.current_instruction
        """The FOR_ITER that drives the loop."""
        self.iteration = 0
        self.index: Any = None
        self.lists: list[CollectedItems] = []
        self.skips = False
        """Are some documents skipped? Then a list may have fewer entries than there are documents."""
        self.skipped_at: set[tuple[int, Any]] = set()
        """Iteration and instruction of the branches that skip the rest of the body."""
        self.ways = Ways()
        """What its iterations do at branches that are followed both ways."""
        self._filled = defaults.make(self, contents)
        self.numbers: dict[Any, Any] = {}
        """Tensors of one integer, as nodes -> the number that was read from each."""
        self.ranges = dict[Any, Any]()  # what lists something of every number of a range -> all of these
        self.rows: dict[Any, Any] = {}
        """What was made of the rows of all documents, in front of the loop."""
        self.edges: list[fx.Node] = []
        """Vectors, and what was made of them by one more entry (`packpass.capture.edges`), which nobody may change."""
        self.bounds: list[fx.Node] = []
        """Numbers that are tensors for most documents."""
        self._ranges = ranges_of_unbacked(tx.output.shape_env)
        self._scope = contextlib.ExitStack()
        self._scope.enter_context(enter_new_scope())
        self.cells = Accesses()
        self._frames: list[tuple[Any, Accesses]] = []
        self._watch_locals()
        active.frame.keys[self.id] = self.key
        self.indices: list[Any] = []
        self._before = [dict(frame.symbolic_locals) for frame, _ in self._frames]
        self._after: list[list[dict[str, Any]]] = []
        """Locals of every live frame: before the loop, and after each iteration."""
        self.adopted: list[Adopted] = []
        """Entries of dicts and attributes of objects that are among the locals while the loop is open."""
        for i, name, *keys in sorted(active.frame.running.get(self.key, ()), key=str):
            adopt(self, dict.get(self._frames[i][0].symbolic_locals, name), keys)
        owner, learned = active.frame.carried.get(self.key, (0, {}))
        lost: list[str] = [name for name in learned if isinstance(name, Place) and not adopt_place(self, owner, name)]
        if lost:
            raise self._refuse_carried(lost)
        self.known = Carried(self, self._frames[owner][0], learned, self._before[owner])

    def _watch_locals(self) -> None:
        """Of the frame of the loop, and of those that have called it."""
        frame: Any = self.tx
        while frame is not None:
            if not isinstance(frame.symbolic_locals, TrackedLocals):
                frame.symbolic_locals = TrackedLocals(frame.symbolic_locals)
            accesses = Accesses()
            frame.symbolic_locals.watchers.append(accesses)
            self._frames.append((frame, accesses))
            frame = caller_of(frame)

    @property
    def key(self) -> Any:
        """The loop, by its place in the code."""
        return self.tx.f_code, self.head.offset

    def may_be_layers(self) -> bool:
        """Is there another loop in its body, so that documents may be inside, and does it run a few times now?"""
        few = (hint_of(size_of(self.length)) or MOST_LAYERS + 1) <= MOST_LAYERS
        return few and (self.has_inner or code_loops.holds_a_loop(self.tx, self.head))

    def frame(self, index: int) -> tuple[Any, Accesses, list[dict[str, Any]]]:
        """A live frame, what was read and written in it, and what its locals held before the loop and after each
        iteration."""
        return *self._frames[index], [self._before[index], *(after[index] for after in self._after)]

    def in_front(self, key: Any, make: Callable[[], Any]) -> Any:
        """What is made of the rows of all documents in front of the loop, once for each key; None if ``make`` makes
        nothing."""
        if key not in self.rows:
            with self.indices[0].graph.inserting_before(self.indices[0]):
                made = make()
            if made is None:
                return None
            self.rows[key] = made
        return self.rows[key]

    def place_of(self, value: Any, in_cell: bool = False) -> tuple[int, str] | None:
        """``(frame, name)`` of a local that holds this value, or with ``in_cell`` of one that a closure shares."""
        return next((place for place, held in self.held(in_cell) if held.realize() is value), None)

    def held(self, in_cell: bool = False) -> Iterator[tuple[tuple[int, str], Any]]:
        """The places of locals, or of those that closures share, and what they hold."""
        for i, (frame, _) in enumerate(self._frames):
            for name in frame.symbolic_locals:
                held = dict.get(frame.symbolic_locals, name)
                held = contents(self.tx, held) if in_cell else held
                if held is not None and not isinstance(held, Poison):
                    yield (i, name), held

    def note_skip(self) -> None:
        """Some documents skip the rest of the body."""
        self.skips = True
        if active.frame is not None and self.has_listed():
            active.frame.not_replayable = "a list is appended to before documents are skipped"

    def has_listed(self) -> bool:
        """Has the iteration appended to a list?"""
        return any(items.holds(self.iteration) for items in self.lists)

    def without_slots(self, iteration: int) -> list[Any]:
        """Lengths that are 0 in a traced iteration, as the branch says that it follows."""
        asked = self.ways.asked.get(iteration, [])
        numbers = [condition for condition in asked if not isinstance(condition[0], fx.Node)]
        return [n for asked in numbers for n in without_slots(self.indices[iteration], *asked)]

    def goes_on(self) -> bool:
        """Is there another iteration to be traced?"""
        return self.iteration < ITERATIONS or self.ways.left()

    def may_follow_skips(self, frame: FrameState) -> bool:
        """May branches that skip documents be followed both ways, when the frame is traced again?"""
        return self.key not in frame.both_ways

    def begin_iteration(self) -> None:
        self.ways.begin()
        self.index = emit(self.tx, markers.LOOP_BEGIN, self.length.as_proxy(), self.id, self.iteration)
        self.indices.append(self.index.as_proxy().node)
        if unknown := self.known.begin():
            raise self._refuse_carried(unknown)
        self.begun: fx.Node = next(iter(reversed(self.tx.output.root_tracer.graph.nodes)))

    def reads_entries(self) -> bool:
        """Does the body read entries of vectors by the number of its document, or pick rows by it?"""
        numbers, nodes = {n.node.expr for n in map(example_of, self.indices)}, self.tx.output.root_tracer.graph.nodes
        reads = (example_of(node.args[-1]) for node in nodes if node.target in ROWS and len(node.args) > 1)
        picks = any(node.target is markers.MASKED for node in nodes)
        return picks or any(isinstance(at, torch.SymInt) and at.node.expr.free_symbols & numbers for at in reads)

    def end_iteration(self) -> None:
        for items in self.lists:
            items.end_iteration(self.iteration)
        if not self.iteration:
            self.known.follow()
        if changed := self.known.end():
            raise self._refuse_carried(changed)
        self._after.append([dict(frame.symbolic_locals) for frame, _ in self._frames])
        args = (self.index.as_proxy(), self.id, self.iteration)
        self.tx.output.create_proxy("call_function", markers.LOOP_END, args, {})
        _check_hooks(self.location)
        for accesses in (self.cells, *(accesses for _, accesses in self._frames)):
            accesses.written_now = set()
        self.iteration += 1

    def close(self) -> None:
        """End of the loop: refuse carried state, poison what leaks, turn appended lists into one graph value."""
        # What the body says of sizes, that there is a document for one, is so only if it runs.
        forget_since(self.tx.output.shape_env, self._ranges)
        self._scope.close()  # first: what follows may refuse, and this region is no longer among the open ones
        carried = [name for _, accesses in self._frames for name in accesses.carried()]
        carried += [cell.local_name or "a closure variable" for cell in self.cells.carried()]
        if carried:
            self._learn(carried)
            raise self._refuse_carried(carried)
        self._follow_skips()
        after = {name: Poison(name, self.location, make) for name, make in self.known.numbers().items()}
        after |= self.known.totals()
        for frame, accesses in self._frames:
            frame.symbolic_locals.watchers.remove(accesses)
            for name in accesses.written:
                if dict.__contains__(frame.symbolic_locals, name) and not frame.symbolic_locals.is_unbound(name):
                    value = after.get(name) if frame is self.known.frame else None
                    dict.__setitem__(frame.symbolic_locals, name, value or Poison(name, self.location))
        for entry in self.adopted:
            entry.put_back()
        defaults.done(self._filled)
        side_effects = self.tx.output.side_effects
        for cell in self.cells.written:
            side_effects.store_attr_mutations[cell]["cell_contents"] = Poison(
                cell.local_name or "a closure variable", self.location
            )
        for items in self.lists:
            items.close()
        self.closed = True

    def _refuse_carried(self, names: list[str]) -> Restart:
        reason = f"{', '.join(sorted(set(names)))} carries a value from one document to the next"
        return refuse("carried-state", reason, self.location, self.key)

    def _learn(self, carried: list[str]) -> None:
        """If every document can do without what is carried (`packpass.capture.carried`), trace the frame again."""
        frame = active.frame
        owners = [i for i, (_, accesses) in enumerate(self._frames) if accesses.carried()]
        if frame is None or self.key in frame.carried or len(owners) != 1 or self.cells.carried():
            return
        if self.skips:
            if self.may_follow_skips(frame):
                frame.both_ways.add(self.key)
                raise restart("documents that are skipped are those that add nothing to what is carried")
            return
        after = [locals_of[owners[0]] for locals_of in self._after]
        learned = learn(self._before[owners[0]], after, self, set(carried))
        if all(how is not None for how in learned.values()):
            frame.carried[self.key] = owners[0], learned
            raise restart(f"{', '.join(sorted(learned))} can be made from the documents' numbers")

    def _follow_skips(self) -> None:
        """If documents are skipped that add nothing to an entry of a tensor from outside, trace the frame again, with
        both ways: what a document adds is followed where it is known that the others add 0."""
        frame, begin = active.frame, self.indices[0]
        if frame is None or not self.skips or not self.may_follow_skips(frame):
            return
        found = (added_entry(node) for node in begin.graph.nodes if node > begin)
        to = [one.index for one in found if one is not None and one.total < begin]
        if any(isinstance(index, fx.Node) or is_plain(index) or is_to_the_end(index) for index in to):
            frame.both_ways.add(self.key)
            raise restart("documents that are skipped are those that add nothing to an entry")

    def abandon(self) -> None:
        self._scope.close()

    def adopt_list(self, variable: Any) -> bool:
        """May the body append to this list, created outside the loop? Only if it is new, and holds tensors if any."""
        items = variable.items if type(variable) is ListVariable else None
        if isinstance(items, CollectedItems) and items.region is self:
            return True
        if isinstance(items, CollectedItems):
            filled = items.as_filled() if len(active.regions) == 1 and _is_new(variable) else None
            if filled is not None:
                self._fill(variable).before = [filled]
            return filled is not None
        if items is None or variable.source is not None or len(active.regions) != 1:
            return False
        if not _is_new(variable):
            return False
        if not all(isinstance(entry.realize(), TensorVariable) for entry in items):
            learn_numbers(self, variable)
            return False
        self._fill(variable).before = list(items)
        return True

    def _fill(self, variable: Any) -> CollectedItems:
        """The items of a list that the loop fills from now on."""
        variable.items = CollectedItems(self)
        self.lists.append(variable.items)
        return variable.items


def _is_new(variable: Any) -> bool:
    """Has the program made the list? (A default of a function has no source either, before torch 2.12.)"""
    return variable.source is None and isinstance(variable.mutation_type, ValueMutationNew)
