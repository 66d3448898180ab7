"""What an operation means: the one place that knows torch's operations by name. It knows nothing of packing.

``names``      the canonical name of whatever a node calls, by identity
``call``       `call_of(node)`: the call with its arguments bound by name (``binding``) and its tensor operands
"""

from packpass.semantics.call import Call, Operand, call_of
from packpass.semantics.names import op_name

__all__ = ["Call", "Operand", "call_of", "op_name"]
