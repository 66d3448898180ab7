"""What messages and conditions mean for `machine`."""

from __future__ import annotations

from torch import fx

from packpass import markers
from packpass._registry import registrar
from packpass.semantics.integers import Comparison
from passes.fuse_boundary_exchange.machine import PARTWISE, RULES, Machine, Message
from passes.fuse_boundary_exchange.values import (
    Pending,
    Received,
    Run,
    View,
    What,
    always,
    if_empty,
    only_if_empty,
)
from passes.refused import Refused

rule = registrar(RULES)


@rule(markers.SEND)
def _send(machine: Machine, node: fx.Node) -> None:
    view, message = _message(machine, node, sends=True)
    message.what = machine.read(view, node)
    for root in view.memory.roots():
        root.sending.add(message.number)


@rule(markers.RECV)
def _recv(machine: Machine, node: fx.Node) -> None:
    view, message = _message(machine, node, sends=False)
    machine.write(view, (Run(view.length, Pending(message.number)),), node)


PARTWISE.update((_send, _recv))


def _message(machine: Machine, node: fx.Node, *, sends: bool) -> tuple[View, Message]:
    tensor, peer, tag, group, work = node.args
    view = machine.view(tensor, node)
    if tag != 0:
        raise Refused("message-order", "a message has a tag", node)
    if view.length != machine.form.sent:
        raise Refused("not-a-roll", "messages of something else than a slot, or equally many, of every document", node)
    part = sum(message.number[0] == work for message in machine.messages)
    message = Message((work, part), sends, peer, group, node, view.memory, view.empty)  # type: ignore[arg-type]
    machine.messages.append(message)
    return view, message


@rule(markers.WAIT)
def _wait(machine: Machine, node: fx.Node) -> None:
    asked = [message for message in machine.messages if message.number[0] == node.args[0]]
    if not asked:
        raise Refused("message-wait", "a wait for a message that is not understood", node)
    for message in asked:
        message.waited = True
        memory = message.memory
        for root in memory.roots():
            root.sending.discard(message.number)
        memory.runs = tuple(Run(run.length, _come(run.what, message.number)) for run in memory.runs)


def _come(what: What, number: tuple[int, int]) -> What:
    """What memory holds when that message has come."""
    return Received(number, what.at) if isinstance(what, Pending) and what.message == number else what


@rule(*markers.LOOP_SKIP)
def _skip(machine: Machine, node: fx.Node) -> None:
    """``if length == 0: continue`` before anything happened."""
    condition, skip_when = machine.value(node.args[0]), bool(node.args[1])
    untouched = not machine.messages and not any(memory.version for memory in machine.memories.values())
    if not (untouched and isinstance(condition, Comparison)):
        raise Refused("skip-condition", "by what documents are skipped is not understood", node)
    if not only_if_empty(machine.form.in_slots(condition), skip_when):
        raise Refused("skip-condition", "documents are skipped for another reason than being empty", node)
    machine.skips_empty |= if_empty(machine.form.in_slots(condition)) == skip_when


@rule(markers.LOOP_CHECK)
def _check(machine: Machine, node: fx.Node) -> None:
    condition = machine.value(node.args[0])
    if not (isinstance(condition, Comparison) and always(condition)):
        raise Refused("check", "the body checks something about a document that is not known", node)


@rule("_check")
def _torch_check(machine: Machine, node: fx.Node) -> None:
    """Dynamo's own; the user's are `markers.LOOP_CHECK`, too."""
