"""What the hooks know while one frame is being compiled.

A frame is traced in one of four modes; each refusal restarts Dynamo's analysis one step further down:

``PROBE``     stock tracing that only watches for a loop over documents. A frame without one never leaves this mode.
``SYMBOLIC``  the loop is traced once for every number of documents.
``UNROLLED``  symbolic loops are off (option or hook): scalars are captured and the unrolled loop is left to the passes.
``STOCK``     loops are left alone: what ``torch.compile`` does by itself, but for `packpass.capture.late_reads`.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any

from packpass._options import Options


class Mode(enum.Enum):
    PROBE = "probe"
    SYMBOLIC = "symbolic"
    UNROLLED = "unrolled"
    STOCK = "stock"


LOOP_MODES = (Mode.SYMBOLIC, Mode.UNROLLED)


@dataclasses.dataclass(frozen=True)
class GivenList:
    """A list that the program is given; ``rank``: 2 for one of several numbers for each document, else 1."""

    source: Any
    count: int
    rank: int


@dataclasses.dataclass
class FrameState:
    options: Options
    mode: Mode = Mode.PROBE
    dynamic_sources: set[str] = dataclasses.field(default_factory=set)
    rows: set[str] = dataclasses.field(default_factory=set)
    """Inputs whose sizes are symbols in every mode, because a pass asked for it."""
    sites: dict[int, str] = dataclasses.field(default_factory=dict)
    """Loop id -> user location."""
    totals: dict[Any, list[Any]] = dataclasses.field(default_factory=dict)
    """Loop id and what a document appends -> how much that is of all documents, once it was asked."""
    branches: dict[int, str] = dataclasses.field(default_factory=dict)
    """Loop id -> the user's line with a branch on data that its two traced iterations followed both ways."""
    both_ways: set[Any] = dataclasses.field(default_factory=set)
    """Loops (code object, bytecode offset) in which also branches that skip a document are followed both ways."""
    no_edges: set[Any] = dataclasses.field(default_factory=set)
    """Loops in which what one document does in another way is a branch like others (`packpass.capture.edges`)."""
    only_numbers: bool = False
    """Are scalars captured for a number in front of a loop of which it is not known whether it is over documents?"""
    data_sizes: bool | None = False
    """Are results captured whose size is data (``repeat_interleave``, ``nonzero``, ``x[mask]``), because a loop over
    documents comes behind them? None: no more, the frame could not be captured with them."""
    expands: bool = False
    """Are they captured because a row whose boundaries are known expands, see `packpass.capture.expansions`?"""
    user_checks: bool = False
    """Did the user check data outside a captured loop? Then the assertions in the graph are not all Dynamo's own."""
    not_replayable: str = ""
    """Why the loops of this frame must not be replayed although their two iterations are alike."""
    given: dict[str, GivenList] = dataclasses.field(default_factory=dict)
    """Name of the tensor of its numbers, or sizes -> a list that the program is given, and that may be of documents
    (`packpass.capture.number_lists`)."""
    settings: set[str] = dataclasses.field(default_factory=set)
    """Such lists that are not: every document goes over them."""
    row_sizes: bool = False
    """Is there a loop over rows of sizes? Where there is, the lengths of what else is made of them depend on values."""
    masks: bool = False
    """Are rows picked by a mask? Then documents are the rows of a batch also where no vector has their lengths."""
    parts: bool = False
    """Are lengths given as parts of the longest, in floating point?"""
    batches: set[str] = dataclasses.field(default_factory=set)
    """Inputs with one row for each document."""
    rows_alone: bool = False
    """Are only the rows of those counted, as documents are exchanged between ranks? What is exchanged is a row of
    tokens, of which there happened to be as many as documents."""
    single_rows: bool = False
    """Is there a matrix with one row, over which a loop was captured, among the values of the frame?"""
    lone: bool | None = False
    """Is there a loop over one document, whose number of entries torch takes for a constant, that is captured with that
    number? None: no more, it was refused."""
    lone_ranges: bool | None = False
    """Is such a loop one over ``range(1)``, which may as well be over layers? None: no more."""
    layers: set[str] | None = dataclasses.field(default_factory=set)
    """Lines of loops that run documents inside of them and are traced as they are written, see
    `packpass.capture.layers`. None: no more, that was refused."""
    in_rows: bool = False
    """May documents be those of one row of a matrix, so that a row of it is a vector like others?"""
    assumed: set[str] = dataclasses.field(default_factory=set)
    """Lines of loops that are taken for loops over documents because of how often they run now."""
    lone_at: set[str] = dataclasses.field(default_factory=set)
    """Lines with such loops that go by entries of a vector of integers."""
    counted: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    """Lines with a ``range`` -> numbers given to the model that may have decided how long it is
    (`packpass.capture.given_numbers`)."""
    counts: bool | None = False
    """Is there a loop that runs as often as such a number says? None: no more, it was refused."""
    stops: dict[Any, dict[int, Any]] = dataclasses.field(default_factory=dict)
    """Loop, and how often it has begun before -> the conditions with which it is left, by the place of the branch: how
    each is made of entries of vectors, and its outcome then (`packpass.capture.stops`)."""
    apart: bool = False
    """Do the ranks of a group not exchange alike in this code? Then its messages and collectives stay as they are."""
    unseen: set[Any] = dataclasses.field(default_factory=set)
    """Loops by ``while`` or in steps, and functions that call themselves, of which has been said that they are not
    captured."""
    stepped: set[str] = dataclasses.field(default_factory=set)
    """Lines with a ``range`` in steps of more than one."""
    restarts: int = 0
    said: bool = False
    """Has a loop of this frame been refused, in this compile?"""
    carried: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """Loop (code object, bytecode offset) -> which of its live frames has locals that change by documents, and how, see
    `packpass.capture.carried`."""
    keys: dict[int, Any] = dataclasses.field(default_factory=dict)
    """Loop id -> loop (code object, bytecode offset)."""
    left: set[Any] = dataclasses.field(default_factory=set)
    """Loops that were refused, in front of which the graph ends, so that those before them stay captured."""
    running: dict[Any, set[tuple[Any, ...]]] = dataclasses.field(default_factory=dict)
    """Loop -> which of its live frames has a list of numbers under which name, and which key of what that holds, see
    `packpass.capture.running`."""
    defaults: dict[Any, list[tuple[int, str, Any]]] = dataclasses.field(default_factory=dict)
    """Loop -> the entries of ``defaultdict`` that are made in front of it: the live frame, its local, and the key."""
    row_numbers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Name -> how numbers of all rows are counted, see `packpass.capture.row_numbers`."""
    exchanging: dict[Any, set[tuple[str, int]]] = dataclasses.field(default_factory=dict)
    """Loop -> the lines of its body from which exchanges are called that stock torch does not trace."""
    messages: int = 0
    """Point-to-point requests captured so far: each gets a number."""
    message_groups: dict[str, tuple[str, set[int]]] = dataclasses.field(default_factory=dict)
    """Name of each process group in which a captured loop sends messages -> the user's line of the first, and the
    global ranks at the other ends."""
    code: types.CodeType | None = None
    """The code of the frame; None if the gate was not there when it was traced."""
    named_boundaries: tuple[tuple[str, Any], ...] = ()
    """Name and value of the arguments with well-known names for boundaries, whether or not the code reads them."""

    @property
    def seeks(self) -> bool:
        """Is it still looked for what tells that a loop is over documents?"""
        return self.mode is Mode.PROBE or (self.mode is Mode.SYMBOLIC and self.only_numbers and not self.masks)
