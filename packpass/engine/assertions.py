"""Assertions of a graph that is compiled to C++ for several threads.

Inductor writes ``torch._assert_async`` into its kernels. Thrown out of an OpenMP region it ends the process where eager
raises, and where a call that does not fit is run document by document instead (`packpass.engine.unfit`).
"""

from __future__ import annotations

import torch
from torch import fx

from packpass._compat import generated_cpp_is_sequential
from packpass.engine.counting import graph_modules
from packpass.ops._must_hold import must_hold_op
from packpass.semantics import argument, example, op_name


def held_outside(gm: fx.GraphModule) -> None:
    """Assertions about tensors on the CPU, in the graph and those inside it, become calls beside the kernels."""
    if generated_cpp_is_sequential():
        return
    for module in graph_modules(gm):
        changed = False
        for node in module.graph.nodes:
            if node.op != "call_function" or op_name(node) != "assert_async":
                continue
            (condition,) = node.all_input_nodes or (None,)
            value = None if condition is None else example(condition)
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
                continue
            message = argument(node, 1, "assert_msg", "an assertion of the compiled program does not hold")
            with module.graph.inserting_before(node):
                made = module.graph.call_function(must_hold_op, (condition, message))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)
            changed = True
        if changed:
            module.recompile()
