"""Loops over documents that Dynamo has unrolled: N copies of the body, one per constant document number.

The same abstract machine runs here, one per document: boundaries ``cu[3]``, ``cu[4]`` are seen by the machine of
document 3 as ``cu[i]``, ``cu[i + 1]``. If the machines of all N documents leave the same terms, the copies are one
loop, proven for exactly this N (which Dynamo guards). Copies of several loops that only touch their own document
belong together; anything else that touches their tensors ends the group.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, op_name, storage
from packpass.semantics.effects import CHECKS, mutated_after, written_inputs
from passes.document_loops.appended import appended_value
from passes.document_loops.boundaries import boundary_vector, lengths_of
from passes.document_loops.find import Decided, _same_effects, conclude
from passes.document_loops.integers import FULL, Affine, Bound, Boundaries
from passes.document_loops.lengths import same_length
from passes.document_loops.machine import Document, Machine
from passes.document_loops.op_names import name_of
from passes.document_loops.step import step
from passes.document_loops.terms import Interner
from passes.loops import LoopFound
from passes.prune import prune
from passes.refused import Refused

_INDEX_DTYPES = (torch.int32, torch.int64)


class DocumentMachine(Machine):
    """The machine of document ``d``: sees absolute boundaries relative to its own."""

    def __init__(self, intern: Interner, fakes: dict[int, Any], shared: dict[fx.Node, Affine], document: int) -> None:
        super().__init__(intern, set(), fakes)
        self.shared, self.document = shared, document

    def value(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node) and arg in self.shared:
            return shifted(self.shared[arg], self.document)
        return super().value(arg)


def shifted(value: Affine, by: int) -> Affine:
    """Absolute boundary numbers as seen from document ``by``."""
    atoms = frozenset((Bound(a.of, a.k - by) if isinstance(a, Bound) else a, c) for a, c in value.atoms)
    return Affine(atoms, value.const)


@dataclasses.dataclass
class Group:
    """Copies that may be one loop."""

    machines: dict[int, DocumentMachine] = dataclasses.field(default_factory=dict)
    owner: dict[fx.Node, int] = dataclasses.field(default_factory=dict)
    cats: list[tuple[fx.Node, list[fx.Node]]] = dataclasses.field(default_factory=list)

    def appended(self, machine: DocumentMachine) -> dict[fx.Node, Any]:
        """What a document gives to every cat."""
        return {cat: appended_value(machine, values[machine.document], cat) for cat, values in self.cats}

    def storages(self, written: bool) -> set[Any]:
        """Memory that the group writes, or touches at all."""
        stores = [s for m in self.machines.values() for s in m.outer.values() if s.outer is not None]
        return {storage(s.outer.node) for s in stores if s.outer is not None and (s.version or not written)}


class Scanner:
    """One walk over a graph that assigns nodes to documents and closes groups."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.intern, self.fakes = Interner(), {}  # type: Interner, dict[int, Any]
        self.shared: dict[fx.Node, Affine] = {}
        self.splits: dict[fx.Node, tuple[Boundaries, int]] = {}
        self.group = Group()
        self.closed: list[Group] = []

    def scan(self) -> list[Group]:
        for node in list(self.graph.nodes):
            if node.op in ("call_function", "call_method"):
                self._visit(node)
            elif node.op == "output":
                self._close()
        return self.closed

    def _close(self) -> None:
        if self.group.owner:
            self.closed.append(self.group)
        self.group = Group()

    def _visit(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        documents = {self.group.owner[i] for i in inputs if i in self.group.owner}
        if not documents:
            if self._boundary(node) or self._split(node):
                return
            document = self._document_of(node)
            if document is None:
                self._foreign(node)
                return
            documents = {document}
        if len(documents) > 1 or self._cat(node):
            if not self._cat(node):
                self._foreign(node)
                return
            self.group.cats.append((node, list(node.args[0])))  # type: ignore[arg-type]
            return
        if self.group.cats:
            # What is made of the joined documents may be used from here on: this is another loop.
            self._close()
            self._visit(node)
            return
        document = documents.pop()
        machine = self.group.machines.get(document)
        if machine is None:
            machine = self.group.machines[document] = DocumentMachine(self.intern, self.fakes, self.shared, document)
        if node.args and node.args[0] in self.splits:
            boundaries, _ = self.splits[node.args[0]]  # type: ignore[index]
            x = node.args[0].args[0]  # type: ignore[union-attr]
            machine.use((boundaries, 0), node)
            rank = example(x).dim()
            machine.values[node] = machine.outer_segment(x, (), self.splits[node.args[0]][1], FULL, rank)  # type: ignore[index, arg-type]
            if x not in machine.split_of:
                machine.split_of.append(x)  # type: ignore[arg-type]
        else:
            step(machine, node)
        self.group.owner[node] = document

    def _boundary(self, node: fx.Node) -> bool:
        """``cu[3]``, its ``item()``, and sums of such: integers known without a document."""
        name, fake = name_of(node), example(node)
        if name in ("getitem", "select") and isinstance(node.args[0], fx.Node):
            vector, index = example(node.args[0]), node.args[1 if name == "getitem" else 2]
            if (
                isinstance(vector, torch.Tensor)
                and vector.dim() == 1
                and vector.dtype in _INDEX_DTYPES
                and type(index) is int
                and not mutated_after(node.graph, node.args[0], node)  # of which an entry is a view
            ):
                root, offset, lengths = boundary_vector(node.args[0])
                size = vector.shape[0]
                if index < 0:
                    if not isinstance(size, int):
                        return False
                    index += size
                k = index + offset
                if lengths:
                    whole = Boundaries(lengths_of(root))  # type: ignore[arg-type]
                    self.shared[node] = Affine.of(Bound(whole, k + 1)).plus(Affine.of(Bound(whole, k)), -1)
                else:
                    self.shared[node] = Affine.of(Bound(Boundaries(root), k))
                return True
        if not node.all_input_nodes or not all(i in self.shared for i in node.all_input_nodes) or not name:
            return False
        scalar = not isinstance(fake, torch.Tensor) or (fake.dim() == 0 and fake.dtype in _INDEX_DTYPES)
        if not scalar or name in CHECKS | {"loop_check"}:
            return False
        machine = DocumentMachine(self.intern, self.fakes, self.shared, 0)
        step(machine, node)
        if isinstance(machine.values[node], Affine):
            self.shared[node] = machine.values[node]
            return True
        return False

    def _document_of(self, node: fx.Node) -> int | None:
        """The document of a node that uses boundaries: the lower of the two."""
        if node.args and node.args[0] in self.splits and name_of(node) == "getitem" and isinstance(node.args[1], int):
            return node.args[1]
        atoms = [
            a for i in node.all_input_nodes if i in self.shared for a, _ in self.shared[i].atoms if isinstance(a, Bound)
        ]
        return min(a.k for a in atoms) if atoms else None

    def _split(self, node: fx.Node) -> bool:
        """``torch.split(x, [lengths of all documents])``."""
        if (
            op_name(node) not in ("split", "split_with_sizes")
            or len(node.args) < 2
            or not isinstance(node.args[1], (list, tuple))
        ):
            return False
        lengths = [self.shared.get(s) if isinstance(s, fx.Node) else None for s in node.args[1]]
        found = [
            length.length_of() if length is not None else None
            for length in (shifted(v, k) if v else v for k, v in enumerate(lengths))
        ]
        if not found or any(f is None or f[1] or f[0] != found[0][0] for f in found):  # type: ignore[index]
            return False
        boundaries = found[0][0]  # type: ignore[index]
        count = example(boundaries.node).shape[0] - (0 if boundaries.lengths else 1)
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        if count != len(found) or not isinstance(node.args[0], fx.Node) or not isinstance(dim, int):
            return False
        rank = example(node.args[0]).dim()
        self.splits[node] = (boundaries, dim % rank - rank)
        return True

    def _cat(self, node: fx.Node) -> bool:
        """A cat, or stack, of one value of every document, in order."""
        if name_of(node) not in ("cat", "stack") or not node.args or not isinstance(node.args[0], (list, tuple)):
            return False
        owners = [self.group.owner.get(v) for v in node.args[0] if isinstance(v, fx.Node)]
        return owners == list(range(len(node.args[0]))) and set(owners) == set(self.group.machines)

    def _foreign(self, node: fx.Node) -> None:
        """A node of no document: it ends the group if it could see, or disturb, what the group does."""
        if not self.group.owner:
            return
        touched, written = self.group.storages(False), self.group.storages(True)
        reads = {storage(i) for i in node.all_input_nodes} - {None}
        writes = {storage(i) for i in written_inputs(node)} - {None}
        if any(i in self.group.owner for i in node.all_input_nodes) or reads & written or writes & touched:
            self._close()


@dataclasses.dataclass(frozen=True)
class Copies:
    """A group of copies that is one loop over all documents, so far as the graph can be read without changing it."""

    number: int
    group: Group
    boundaries: Boundaries
    splits: tuple[fx.Node, ...]

    @property
    def first(self) -> DocumentMachine:
        return self.group.machines[min(self.group.machines)]


def find_unrolled(graph: fx.Graph) -> Copies | None:
    """The first group of copies that is one loop over all documents; raises `Refused` if they are not."""
    scanner = Scanner(graph)
    for number, group in enumerate(scanner.scan()):
        first = group.machines[min(group.machines)]
        if not group.storages(written=True) and not group.cats:
            continue  # only reads boundaries, and changes nothing
        if first.boundaries is None:
            raise Refused("no-segments", "the unrolled loop does not cut anything by boundaries")
        boundaries: Boundaries = first.boundaries[0]
        if boundaries.made is not None:
            raise Refused("partial-coverage", "parts of documents in an unrolled loop have no rule", boundaries.node)
        count = example(boundaries.node).shape[0] - (0 if boundaries.lengths else 1)
        numbers = range(len(group.machines))
        if sorted(group.machines) != list(numbers) or not same_length(count, len(numbers)):
            raise Refused("partial-coverage", "the unrolled loop does not visit every document", boundaries.node)
        first_read = next(n for n in graph.nodes if n in scanner.shared)
        if mutated_after(graph, boundaries.node, first_read):
            raise Refused("boundaries-written", "boundaries are changed after they were read", boundaries.node)
        for machine in group.machines.values():
            _same_effects(first, group.appended(first), machine, group.appended(machine))
        splits = tuple(s for s in scanner.splits if any(u in group.owner for u in s.users))
        return Copies(number, group, boundaries, splits)
    return None


def decide_unrolled(graph: fx.Graph, copies: Copies, lists: Lists) -> Decided:
    """The conditions for every loop; the cats of this one are in the form of captured loops from here on (``lists``,
    which can be undone). Raises `Refused`."""
    first = copies.first
    collects = [lists.collect(cat, values, copies) for cat, values in copies.group.cats]
    nodes = [n for n in graph.nodes if n in copies.group.owner]
    last = nodes[-1]
    loop = LoopFound(-1 - copies.number, ((last, (*copies.splits, *nodes[:-1]), last),), tuple(collects))
    appended = {c: appended_value(first, c.args[0], c) for c in collects}  # type: ignore[arg-type]
    return conclude(graph, loop, first, appended, copies.boundaries, ())


class Lists:
    """Cats of all documents' values, written as captured loops write them, until that is undone."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._before: list[tuple[fx.Node, fx.Node, tuple[Any, ...]]] = []

    def collect(self, cat: fx.Node, values: list[fx.Node], copies: Copies) -> fx.Node:
        """The node that stands for the list; ``cat`` becomes the marker of what is done with it."""
        dim = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
        with self.graph.inserting_before(cat):
            collect = self.graph.call_function(markers.LIST_COLLECT, (values[0], values[-1], -1 - copies.number))
        collect.meta["example_value"] = example(values[0])
        self._before.append((cat, collect, (cat.op, cat.target, cat.args, cat.kwargs)))
        stacked, documents = name_of(cat) == "stack", isinstance(copies.first.value(values[0]), Document)
        joined = markers.LIST_STACK if stacked else markers.LIST_JOIN if documents else markers.RAGGED_CAT
        args = (collect, dim) if joined is markers.RAGGED_CAT else (collect, dim, len(values))
        cat.op, cat.target, cat.args, cat.kwargs = "call_function", joined, args, {}
        return collect

    def undo(self) -> None:
        """The graph as it was."""
        for cat, collect, (op, target, args, kwargs) in self._before:
            cat.op, cat.target, cat.args, cat.kwargs = op, target, args, kwargs
            self.graph.erase_node(collect)
        self._before = []


def sweep_scalars(graph: fx.Graph) -> None:
    """Erase Dynamo's own assertions about boundaries that nothing else reads any more, and those reads."""
    scanner = Scanner(graph)
    for node in graph.nodes:
        if node.op in ("call_function", "call_method") and not any(
            i in scanner.group.owner for i in node.all_input_nodes
        ):
            scanner._boundary(node)
    reads = scanner.shared
    candidates: list[fx.Node] = []
    for node in reversed(list(graph.nodes)):
        if node.target is torch.ops.aten._assert_scalar.default:
            leaves = _leaves(node, reads)
            if leaves and leaves <= set(reads):
                candidates += node.all_input_nodes
                graph.erase_node(node)
    prune(graph, [*candidates, *(n for n in reads if n.graph is graph)])


def _leaves(node: fx.Node, reads: dict[fx.Node, Affine]) -> set[fx.Node]:
    """What an assertion is about: boundary reads, and anything else that is not arithmetic on integers."""
    found, stack = set(), list(node.all_input_nodes)
    while stack:
        n = stack.pop()
        arithmetic = (
            n.op == "call_function" and isinstance(example(n), (int, torch.SymInt, torch.SymBool)) and n not in reads
        )
        if arithmetic and n.all_input_nodes:
            stack.extend(n.all_input_nodes)
        elif n.op != "placeholder" or n in reads:
            found.add(n)
    return found
