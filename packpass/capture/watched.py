"""Names whose reads and writes are watched while a symbolic loop is open, and what they hold when it is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packpass.capture.dynamo import VariableTracker
from packpass.capture.state import Restart, refuse


class Poison(VariableTracker):
    """Value of a name that a closed loop assigned: that of a traced iteration, not of the last one.

    Reading it, or a graph break that would have to rebuild it, refuses the loop, unless it can be made (``make``).
    """

    def __init__(self, name: str, location: str, make: Callable[[], Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name, self.location, self.make = name, location, make

    def made(self) -> Any:
        if self.make is None:
            raise self.refuse()
        return self.make()

    def refuse(self) -> Restart:
        return refuse(
            "leaked-local",
            f"'{self.name}' is assigned in the loop over documents and used after it; compute it outside the loop",
            self.location,
        )

    def reconstruct(self, codegen: Any) -> None:
        raise self.refuse()


class Accesses:
    """What was read and written in one frame (names), or through cells, since a region was opened."""

    def __init__(self) -> None:
        self.written_now: set[Any] = set()
        self.written: dict[Any, None] = {}
        self.read_first: set[Any] = set()

    def read(self, key: Any) -> None:
        if key not in self.written_now:
            self.read_first.add(key)

    def write(self, key: Any, *, changed: bool = True) -> None:
        """A name gets a value; not ``changed``: the one that it has, as where ``parts += [a]`` stores the same list."""
        self.written_now.add(key)
        if changed:
            self.written[key] = None

    def has_read_first(self, key: Any) -> bool:
        """Was it read, in an iteration so far, before it was written?"""
        return key in self.read_first

    def carried(self) -> list[Any]:
        return [key for key in self.written if key in self.read_first]


class TrackedLocals(dict[str, Any]):
    """``symbolic_locals`` of a frame, recording accesses while regions are open."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.watchers: list[Accesses] = []
        self._aside: list[tuple[str, Any, list[Accesses]]] = []
        """``(name, value, watchers that had not seen it written)`` of `set_aside`."""
        self._unbound: list[Any] = []
        self._silent = False

    def set_aside(self, name: str, instruction: Callable[[], Any]) -> None:
        """Python 3.12 runs comprehensions in the frame around them: this ``instruction`` puts what a name holds on the
        stack, and returns it, before the name becomes the comprehension's; afterwards it is stored again. Nobody has
        read it then, and what is stored again was not written in this iteration."""
        bound = name in self and not self.is_unbound(name)
        unwritten = [watcher for watcher in self.watchers if name not in watcher.written_now]
        self._silent = True
        try:
            value = instruction()
        finally:
            self._silent = False
        self._aside.append((name, value, unwritten))
        if not bound:
            self._unbound.append(value)
        self._unbound.append(dict.get(self, name))

    def is_unbound(self, name: str) -> bool:
        """Does a name hold nothing since a comprehension took it?"""
        value = dict.get(self, name)
        return any(value is nothing for nothing in self._unbound)

    def __getitem__(self, name: str) -> Any:
        value = dict.__getitem__(self, name)
        if self._silent:
            return value
        if isinstance(value, Poison):
            value = value.made()
            dict.__setitem__(self, name, value)
        for watcher in self.watchers:
            watcher.read(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  (this is get)

    def _note_write(self, name: str, *, changed: bool = True) -> None:
        for watcher in self.watchers:
            watcher.write(name, changed=changed)

    def __setitem__(self, name: str, value: Any) -> None:
        if not self._silent:
            self._note_write(name, changed=value is not dict.get(self, name))
        dict.__setitem__(self, name, value)
        for other, before, unwritten in self._aside:
            if other == name and value is before:
                for watcher in unwritten:
                    watcher.written_now.discard(name)

    def give(self, name: str, value: Any) -> None:
        """A name's value for the iteration that begins, which does not depend on the one before."""
        self._note_write(name)
        dict.__setitem__(self, name, value)

    def __delitem__(self, name: str) -> None:
        self._note_write(name)
        dict.__delitem__(self, name)

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self:
            return dict.pop(self, name, *default)
        value = self[name]
        del self[name]
        return value
