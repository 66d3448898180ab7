"""Messages of a loop over documents: plain code for Dynamo, as `packpass.capture.plain` is."""

from __future__ import annotations

from typing import Any, NoReturn

from packpass.capture import plain


def _never() -> NoReturn:
    raise RuntimeError("packpass: a message of a loop over documents reached execution; please report this")


def wait(request: Any) -> Any:
    """Wait for a point-to-point request."""
    _never()


def refuse_request(what: Any) -> Any:
    """Refuse the loop: a point-to-point request is used for something else than one wait."""
    _never()


class Request:
    """What ``isend`` and ``irecv`` return: good for one ``wait()`` in its own iteration."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return refuse_request("a wait with a time-out")
        return wait(self)

    def __getattr__(self, name: Any) -> Any:
        return refuse_request(name)


class Done:
    """What a collective with ``async_op=True`` returns in a loop over documents, where it is complete at once."""

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return True

    def is_completed(self) -> Any:
        return True

    def __getattr__(self, name: Any) -> Any:
        return refuse_request(name)


class Message:
    """A ``dist.P2POp``: goes into the list of ``batch_isend_irecv``, nowhere else, and is not changed."""

    def __init__(self, number: Any) -> None:
        object.__setattr__(self, "number", number)

    def __setattr__(self, name: Any, value: Any) -> None:
        refuse_request(name)

    def __getattr__(self, name: Any) -> Any:
        return refuse_request(name)


def request(number: Any) -> Any:
    return Request(number)


def message(number: Any) -> Any:
    return Message(number)


def done() -> Any:
    return Done()


OURS = (plain.Documents, plain.Entries, Request, Done, Message)
"""Nothing of these may outlive the graph."""
