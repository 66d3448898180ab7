"""What an operation means: the one place that knows torch's operations by name. It knows nothing of packing.

=============  ===============================================================================================
``names``      the canonical name of whatever a node calls, by identity
``call``       `call_of(node)`: the call with its arguments bound by name (``binding``) and its tensor operands
``meaning``    the types: what becomes of every axis of every operand
``registry``   `meaning_of(call)`, from the entries of the families: ``pointwise``, ``views``, ``indexing``,
               ``writes``, ``joins``, ``reductions``, ``products``, ``lookups``, ``losses``, ``creation``
``memory``     which memory results share with operands, and which operands a call writes
``integers``   what a call computes from whole numbers that are sums: boundaries, lengths, numbers of chunks
``effects``    what a node does besides computing its result: what it writes, random numbers, modes ...
=============  ===============================================================================================

To add an operation, add its entry to a family; `tests/semantics` then compares it with torch.
"""

from packpass.semantics.binding import argument, example, is_tensor
from packpass.semantics.call import Call, Operand, call_of, op_of, read_inputs
from packpass.semantics.meaning import Meaning, Relation
from packpass.semantics.memory import storage
from packpass.semantics.names import AUTOGRAD_FUNCTION, op_name
from packpass.semantics.registry import (
    blank,
    contents_of,
    family_of,
    family_of_name,
    keeps_order,
    kept_axis,
    meaning_of,
    reduces,
    scans,
    ways,
)

__all__ = [
    "AUTOGRAD_FUNCTION",
    "Call",
    "Meaning",
    "Operand",
    "Relation",
    "argument",
    "blank",
    "call_of",
    "contents_of",
    "example",
    "family_of",
    "family_of_name",
    "is_tensor",
    "keeps_order",
    "kept_axis",
    "meaning_of",
    "op_name",
    "op_of",
    "read_inputs",
    "reduces",
    "scans",
    "storage",
    "ways",
]
