"""A moment of a traced frame to come back to: ways behind a branch are traced in turn, from the same state."""

from __future__ import annotations

from typing import Any

FILLERS = ("NOP", "CACHE", "NOT_TAKEN", "RESUME", "EXTENDED_ARG")
"""Instructions that do nothing."""


class Moment:
    """The stack and the locals of a traced frame, in front of a branch say."""

    def __init__(self, tx: Any) -> None:
        self.tx, self.stack, self.locals = tx, list(tx.stack), dict(tx.symbolic_locals.items())
        self.pointer, self.instruction = tx.instruction_pointer, tx.current_instruction
        watchers = getattr(tx.symbolic_locals, "watchers", [])
        self.written = [(watcher, set(watcher.written_now), dict(watcher.written)) for watcher in watchers]

    def restore(self) -> None:
        tx = self.tx
        tx.stack[:] = self.stack
        tx.instruction_pointer, tx.current_instruction = self.pointer, self.instruction
        for name in [name for name in tx.symbolic_locals if name not in self.locals]:
            dict.__delitem__(tx.symbolic_locals, name)
        for name, value in self.locals.items():
            dict.__setitem__(tx.symbolic_locals, name, value)
        for watcher, written_now, written in self.written:
            watcher.written_now, watcher.written = set(written_now), dict(written)

    def changed(self) -> dict[Any, Any]:
        """What is on the stack behind these entries, by its place there, and in locals that have changed."""
        found: dict[Any, Any] = dict(enumerate(self.tx.stack[len(self.stack) :]))
        now = dict(dict.items(self.tx.symbolic_locals))
        return found | {name: value for name, value in now.items() if self.locals.get(name) is not value}

    def completed(self, changed: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
        """With the locals that only the other way has changed, as they were."""
        return {name: self.locals[name] for name in other if name in self.locals} | changed

    def put(self, place: Any, value: Any, was_read: bool) -> None:
        """``was_read``: one way leaves the local as it was, which whoever watches has to know."""
        if isinstance(place, str):
            if was_read:
                self.tx.symbolic_locals.get(place)
            self.tx.symbolic_locals[place] = value
        else:
            self.tx.stack.append(value)
