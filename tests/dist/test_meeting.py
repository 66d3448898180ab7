"""The agreement of ranks without processes: its protocol between threads, and what of a graph is compared."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from packpass._options import Options
from packpass.decisions.records import Claims, Rewrite
from packpass.ops import _cp_exchange, _cp_roll_host, cp_packed_roll, cp_to_hp
from packpass.ranks import agreement as _agreement
from packpass.ranks import meeting as rooms
from packpass.ranks.agreement import agreement
from packpass.ranks.collectives import Collective, Sizes, collectives, decisions, placeholders
from packpass.ranks.meeting import AgreementError, Board, Meeting
from packpass.ranks.numbers import SHOWN, Numbers


@dataclasses.dataclass(frozen=True)
class Group:
    """What `Board` asks of a ProcessGroup."""

    at: int
    among: int
    group_name: str = "7"

    def rank(self) -> int:
        return self.at

    def size(self) -> int:
        return self.among


STORES: dict[str, Callable[[Path], Any]] = {
    "HashStore": lambda folder: dist.HashStore(),
    "FileStore": lambda folder: dist.FileStore(str(folder / "store"), 1),
    "TCPStore": lambda folder: dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = STORES[request.param](tmp_path)
    with (
        mock.patch.object(rooms, "group_store", return_value=made),
        mock.patch.object(dist, "get_process_group_ranks", return_value=[4, 5, 6]),
    ):
        yield made


def found(*texts: str) -> list[Collective]:
    return [Collective("7", True, text, f"model.py:{i}") for i, text in enumerate(texts)]


def meeting(rank: int, texts: str, size: int = 3, timeout: float = 20.0) -> Meeting:
    return Meeting(Board(Group(rank, size)), found(*texts), timeout)


def hear(*calls: Callable[[], Any]) -> list[str]:
    """What each of several threads ends with."""
    said = ["no end"] * len(calls)

    def run(i: int) -> None:
        try:
            calls[i]()
            said[i] = "agreed"
        except AgreementError as error:
            said[i] = str(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return said


def meet(*texts: str, delays: tuple[float, ...] = (0, 0, 0)) -> list[str]:
    def one(rank: int) -> Callable[[], None]:
        def call() -> None:
            sleep(delays[rank])
            meeting(rank, texts[rank]).agree([])

        return call

    return hear(*map(one, range(len(texts))))


AGREED = ["agreed"] * 3


# === The protocol ===============================================================================================


def test_a_rank_that_compiles_is_waited_for(store: Any) -> None:
    """Its time-out counts from when it no longer does."""
    until = monotonic() + 1.0

    def late() -> None:
        sleep(1.2)
        meeting(1, "ab", 2).agree([])

    with mock.patch.object(rooms.compiling, "at_work", side_effect=lambda rank: monotonic() < until):
        assert hear(lambda: meeting(0, "ab", 2, timeout=0.6).agree([]), late) == ["agreed", "agreed"]


def test_a_rank_that_compiles_for_ever_is_given_up(store: Any) -> None:
    with mock.patch.object(rooms.compiling, "at_work", return_value=True):
        (said,) = hear(lambda: meeting(0, "ab", 2, timeout=0.2).agree([]))
    assert "did not come to the same collectives" in said


def test_equal_lists(store: Any) -> None:
    assert meet("ab", "ab", "ab", delays=(0, 0.2, 0.1)) == AGREED
    assert meet("b", "b", "b") == AGREED


def test_different_lists(store: Any) -> None:
    started = monotonic()
    said = meet("ab", "ab", "ac", delays=(0, 0.3, 0.1))
    assert len(set(said)) == 1
    assert "First difference: collective 2 of the graph\n  ranks 0, 1: b at model.py:1\n  rank 2: c at" in said[0]
    assert "process group '7' (global ranks 4, 5, 6)" in said[0]
    assert monotonic() - started < 10
    assert meet("ab", "ab", "ab") == AGREED  # nothing is left of it


def test_a_list_that_failed_is_not_known(store: Any) -> None:
    for _ in range(2):
        assert "First difference" in meet("a", "b", "a")[0]
        assert "First difference" in meet("b", "a", "b")[0]


def test_a_message_about_ranks_that_have_not_come(store: Any) -> None:
    """Two ranks disagree; the third comes when both have given up, and hears of it at once."""
    with mock.patch.object(rooms, "GRACE_S", 0.2):
        said = meet("a", "b", "a", delays=(0, 0, 1.5))
    assert len(set(said)) == 1
    assert "\n  rank 2: no answer so far\n" in said[0]
    assert meet("a", "a", "a") == AGREED


def test_a_list_that_is_known_needs_nobody(store: Any) -> None:
    assert meet("ab", "ab", "ab") == AGREED
    started = monotonic()
    meeting(1, "ab").agree([Numbers("sizes", [5])])  # other sizes than the others had then
    assert monotonic() - started < 5


def test_a_rank_that_waits_with_a_new_list_is_no_partner_for_a_known_one(store: Any) -> None:
    assert meet("ab", "ab", "ab") == AGREED
    said = meet("ab", "ac", "ab", delays=(0.5, 0, 0.5))
    assert len(set(said)) == 1
    assert "rank 1: c at" in said[0]


def test_a_rank_that_waits_for_others_with_a_known_list_is_not_at_odds(store: Any) -> None:
    """Rank 1 compiles again what all had, and stands there for a moment while rank 0 comes to something new."""
    assert meet("ab", "ab", "ab") == AGREED
    board = Board(Group(1, 3))
    record = board.record(1)
    assert record is not None
    board.put("now/1", dataclasses.replace(record, state="waits").to_json())
    assert meet("ac", "ac", "ac", delays=(0, 0.5, 0)) == AGREED


def test_time_out(store: Any) -> None:
    said = hear(*(lambda rank=rank: meeting(rank, "a", timeout=0.5).agree([]) for rank in (0, 1)))
    assert len(set(said)) == 1
    assert "packpass: rank 2 of process group '7'" in said[0]
    assert "within 0.5 s" in said[0]
    assert "a at model.py:0\n  rank 2: never came to collectives compiled by packpass" in said[0]
    # Rank 2 comes late: it hears the same at once, but of another list nothing.
    assert hear(lambda: meeting(2, "a").agree([])) == said[:1]
    assert meet("a", "a", "a") == AGREED


def test_a_late_rank_joins_those_that_try_again(store: Any) -> None:
    hear(*(lambda rank=rank: meeting(rank, "a", timeout=0.3).agree([]) for rank in (0, 1)))
    assert meet("a", "a", "a", delays=(0, 0, 0.5)) == AGREED
    hear(*(lambda rank=rank: meeting(rank, "b", timeout=0.3).agree([]) for rank in (0, 1)))
    assert meet("c", "c", "c", delays=(0.5, 0.5, 0)) == AGREED


@pytest.mark.parametrize(
    ("third", "words"),
    [
        ([1, 2, 3], None),
        ([1, None, 3], None),
        (None, None),
        ([1, 5, 3], "sizes, entry 1\n  ranks 0, 1: 2 in [1, 2, 3]\n  rank 2: 5 in [1, 5, 3]\n"),
        ([1, 2], "sizes, entry 2\n  ranks 0, 1: 3 in [1, 2, 3]\n  rank 2: no entry in [1, 2]\n"),
    ],
)
def test_numbers(store: Any, third: list[int | None] | None, words: str | None) -> None:
    """Unknown numbers are like any; the last rank comes later than the others, or not."""
    for texts, delay in (("ab", 0.0), ("cd", 0.3)):

        def call(rank: int, texts: str = texts, delay: float = delay) -> None:
            sleep(delay if rank == 2 else 0)
            meeting(rank, texts).agree([Numbers("sizes", [1, 2, 3] if rank < 2 else third)])

        said = hear(*(lambda rank=rank: call(rank) for rank in range(3)))
        assert len(set(said)) == 1
        assert said[0] == "agreed" if words is None else words in said[0]


def test_every_call(store: Any) -> None:
    def calls(rank: int) -> None:
        mine = meeting(rank, "a")
        for i in range(4):
            mine.check_call([Numbers("boundaries", [0, i if (rank, i) != (1, 3) else 9])])

    said = hear(*(lambda rank=rank: calls(rank) for rank in range(3)))
    assert len(set(said)) == 1
    assert "boundaries, entry 1\n  ranks 0, 2: 3 in [0, 3]\n  rank 1: 9 in [0, 9]\n" in said[0]


def test_a_rank_without_the_check_of_every_call(store: Any) -> None:
    said = hear(*(lambda rank=rank: meeting(rank, "a", timeout=0.5).check_call([]) for rank in (0, 2)))
    assert len(set(said)) == 1
    assert "rank 1 of process group" in said[0]


def test_a_store_that_is_gone() -> None:
    class Gone(dist.Store):
        pass

    with mock.patch.object(rooms, "group_store", return_value=Gone()):
        (said,) = hear(lambda: meeting(0, "a").agree([]))
    assert "the store of process group '7' does not answer" in said


# === What is compared ===========================================================================================


@pytest.fixture
def fake_group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()


def graph_of(program: Callable[..., Any], *arguments: Any, dynamic: bool | None = None) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    torch.compile(program, backend=keep, fullgraph=True, dynamic=dynamic)(*arguments)
    return graphs[0]


BOUNDARIES = torch.tensor([0, 8, 48])


def test_texts_hold_what_ranks_share(fake_group: None) -> None:
    world: Any = dist.group.WORLD

    def program(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
        y = cp_to_hp(x, cu.long(), None, [4, 4])
        moved = cp_packed_roll([ids, x], cu, None, [-1, -2], 0, [-100, None])
        uneven = functional.all_to_all_single(x, [1, 2, 4, 5], [3, 3, 3, 3], world)
        return y, *(m for f in moved for m in f), uneven, functional.all_reduce(x, "sum", world)

    gm = graph_of(program, torch.ones(12, 8, requires_grad=True), torch.arange(12), BOUNDARIES, dynamic=True)
    said = [c.text for c in collectives(gm)]
    assert said == [
        "cp_to_hp of float32 [*, *] with gradient, sections=[4, 4], dim=1, zigzag=True",
        "cp_packed_roll of int64 [*], float32 [*, *] with gradient, fields=[0, 0, 1, 1], shifts=[-1, -2, -1, -2], "
        "dims=[0, 0], fills=[-100, -100, 0, 0], wraps=[False, False, True, True], zigzag=True",
        "all_to_all_single of float32 [*, *] with gradient",
        "all_reduce of float32 [*, *] with gradient, reduce_op='sum'",
    ]
    assert [c.ours for c in collectives(gm)] == [True, True, False, False]
    assert {c.location.rsplit(":", 1)[0] for c in collectives(gm)} == {"tests/dist/test_meeting.py"}


def test_a_rank_without_a_compiler_sends_other_messages(fake_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
        y = cp_to_hp(x, cu, None)
        return y, cp_packed_roll(x, cu, None, -1, 0), functional.all_reduce(x, "sum", dist.group.WORLD)

    gm = graph_of(program, torch.ones(12, 8), BOUNDARIES)
    with_one = [c.text for c in collectives(gm)]
    monkeypatch.setattr(_cp_exchange, "_native", lambda name: None)
    monkeypatch.setattr(_cp_roll_host, "_native", lambda: None)
    without = [c.text for c in collectives(gm)]
    said = ", without a C++ compiler"
    assert without == [with_one[0] + said, with_one[1] + said, with_one[2]]


def test_sizes_and_boundaries_of_a_call(fake_group: None) -> None:
    def program(x: Tensor, cu: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = cp_to_hp(torch.cat([x, x]), cu.to(torch.int64), None)
        return y, cp_to_hp(x, cu, None), cp_to_hp(x, other * 4, None)

    x, cu = torch.ones(12, 8), BOUNDARIES
    gm = graph_of(program, x, cu, torch.tensor([0, 2, 12]), dynamic=True)
    calls = collectives(gm)
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    values = {"x": torch.ones(20, 8), "cu": torch.tensor([0, 80]), "other": torch.tensor([0, 10])}
    inputs = [next((v for k, v in values.items() if f"_{k}_" in name), 20) for name in names]
    numbers = _agreement._numbers(calls, Sizes(placeholders(gm)), inputs)
    assert [n.entries for n in numbers if n.what.startswith("sizes")] == [[40, 8], [20, 8], [20, 8]]
    # The same input once; what is computed from one is not known.
    assert [n.entries for n in numbers if n.what.startswith("boundaries")] == [[0, 80], None, None]


def test_many_boundaries_are_digested() -> None:
    ones = torch.ones(SHOWN + 5, dtype=torch.int64)
    other = ones.clone()
    other[-1] = 2
    a, b = _agreement._entries(ones), _agreement._entries(other)
    assert a is not None
    assert b is not None
    assert len(a) == SHOWN + 1
    assert a[:-1] == b[:-1]
    assert a != b


def test_an_input_is_looked_for_in_the_graph_itself_only(fake_group: None) -> None:
    """Collectives of a checkpointed part stand where it is run."""

    def part(x: Tensor, cu: Tensor) -> Tensor:
        return cp_to_hp(x, cu, None)

    def program(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.utils.checkpoint.checkpoint(part, x, cu, use_reentrant=False)
        return y, cp_packed_roll(x, cu, None, -1, 0)

    calls = collectives(graph_of(program, torch.ones(12, 8), BOUNDARIES))
    assert [c.text.split()[0] for c in calls] == ["cp_to_hp", "cp_packed_roll"]
    assert [c.boundaries is None for c in calls] == [True, False]


def test_decisions_of_passes() -> None:
    rewrites = [
        Rewrite("a", "m.py:1", "", "", claims=Claims(agreement=("x", "y"))),
        Rewrite("b", "m.py:2", "", "", claims=Claims(agreement=("z",), group="5")),
        Rewrite("c", "m.py:3", "", ""),
    ]
    of_all = [("a: x", "m.py:1"), ("a: y", "m.py:1")]
    assert [(c.text, c.location) for c in decisions(rewrites, "5")] == [*of_all, ("b: z", "m.py:2")]
    assert [(c.text, c.location) for c in decisions(rewrites, "6")] == of_all


def test_what_the_first_rank_alone_knows_is_left_out(fake_group: None) -> None:
    def text(fill: int | None) -> str:
        ends = (None, None) if fill is None else ([fill], [False])

        def program(x: Tensor, cu: Tensor) -> Any:
            return torch.ops.packpass.cp_packed_roll([x], cu, [0], [-1], [0], [0], [False], "0", 4, 1, *ends, True)

        torch._dynamo.reset()
        (roll,) = collectives(graph_of(program, torch.ones(12), BOUNDARIES))
        return roll.text

    assert text(7) == text(-100)
    assert "ends as rank 0 has them" in text(7)
    assert "ends" not in text(None)


# === When nothing is done =======================================================================================


def run(*inputs: Any) -> Any:
    return inputs


def one(x: Tensor, cu: Tensor) -> Tensor:
    return cp_to_hp(x, cu, None)


def test_a_group_that_is_not_real(fake_group: None) -> None:
    assert agreement(graph_of(one, torch.ones(12, 8), BOUNDARIES), [], Options()).before(run) is run


@pytest.mark.parametrize("options", [Options(agreement=False), Options(bucket_bytes=0)])
def test_graphs_without_collectives_of_ours(fake_group: None, options: Options) -> None:
    """Switched off, or only collectives that nobody will touch."""

    world: Any = dist.group.WORLD

    def exchanges(x: Tensor) -> tuple[Tensor, Tensor]:
        return (
            functional.all_to_all_single(x, None, None, world),
            functional.all_to_all_single(x + 1, None, None, world),
        )

    gm = graph_of(exchanges, torch.ones(12, 8))
    board = mock.Mock(rank=1, **{"count.return_value": 0})
    with mock.patch.object(_agreement, "board_of", return_value=board):
        made = agreement(gm, [], options)
        assert not made.meetings
        assert (made.before(run) is run) == (not options.agreement)  # others that give up tell this rank
        assert board.put.called == options.agreement  # others that wait can name this rank's collectives
        assert agreement(gm, [], Options()).meetings  # two exchanges, which may be joined
        assert not agreement(gm, [], Options(disable=("bucket_all_to_all",))).meetings


def test_without_distributed() -> None:
    gm = graph_of(lambda x: x + 1, torch.ones(2))
    assert agreement(gm, [], Options()).before(run) is run


def test_a_group_of_one(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert agreement(graph_of(one, torch.ones(12, 8), BOUNDARIES), [], Options()).before(run) is run
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()


def test_boundaries_are_found_behind_the_copies_kept_for_the_backward() -> None:
    graph = torch.fx.Graph()
    x, cu = graph.placeholder("x"), graph.placeholder("cu")
    kept = graph.call_function(torch.ops.packpass.snapshot.default, (cu,))
    made = graph.call_function(torch.ops.packpass.cp_to_hp.default, (x, kept, [4], 1, "0", 2))
    graph.output(made)
    for node, value in ((x, torch.zeros(2, 4)), (cu, torch.tensor([0, 4])), (kept, torch.tensor([0, 4]))):
        node.meta["example_value"] = value
    made.meta["example_value"] = torch.zeros(4, 2)
    (found,) = collectives(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert found.boundaries == 1
