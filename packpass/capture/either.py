"""Values that code behind a graph gets, and that no graph can hold.

A local that a loop over documents may leave as it was: ``total = 0.0``, to which only documents with tokens add.

Where no document adds anything, eager still has the number from before the loop there, which is no tensor, and of no
tensor's type. Which of both it is only the data says. So nothing can be traced with such a value: the graph ends where
it is used (at the latest), and the code behind has the one that eager has.
"""

from __future__ import annotations

from typing import Any

from packpass.capture.dynamo import VariableTracker


def pick(any_document: int, after: Any, before: Any) -> Any:
    """What eager has: called by the code between two graphs."""
    return after if any_document else before


class Either(VariableTracker):
    """``after`` if the number ``any_document`` is not 0, else ``before``."""

    def __init__(self, any_document: Any, after: Any, before: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.any_document, self.after, self.before = any_document, after, before

    def reconstruct(self, codegen: Any) -> None:
        codegen.add_push_null(lambda: codegen.load_import_from(__name__, pick.__name__))
        for value in (self.any_document, self.after, self.before):
            codegen(value)
        codegen.call_function(3, False)
