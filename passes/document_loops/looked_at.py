"""What of a loop's body anybody looks at: results, and sizes of results."""

from __future__ import annotations

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols
from packpass.semantics import example, family_of
from packpass.semantics.effects import effects_of
from passes.document_loops.machine import Machine, Segment
from passes.loops import asserted_alone
from passes.refused import Refused


def seen(body: tuple[fx.Node, ...]) -> list[fx.Node]:
    """The nodes of an iteration without those whose results nobody looks at, as the weights of attention often are.

    Of these, none whose rank is a matter of sizes: Python may have asked for that (``x.squeeze(0).dim()``), or for the
    size of what parts of different sizes make.
    """
    inside, found = set(body), set[fx.Node]()
    for node in reversed(body):
        numbers_alone = effects_of(node).repeatable and family_of(node) in ("pointwise", "reductions")
        numbers_alone = numbers_alone and not _of_several_sizes(node)
        if not numbers_alone or any(user in found or user not in inside for user in node.users):
            found.add(node)
    return [node for node in body if node in found]


def _of_several_sizes(node: fx.Node) -> bool:
    fakes = [fake for arg in node.all_input_nodes if isinstance(fake := example(arg), torch.Tensor)]
    sizes = [size for fake in fakes for size in fake.shape if isinstance(size, torch.SymInt)]
    return len({str(size) for size in sizes if free_unbacked_symbols(size)}) > 1


def sizes_are_known(machine: Machine, body: tuple[fx.Node, ...]) -> None:
    """Where sizes are data, torch takes those of operands for the same, and one of them for that of the result. If one
    slot met several, that may be the wrong one: nobody may ask for it."""
    asked = [
        (node, value.node.expr)
        for node in body
        if isinstance(value := example(node), (torch.SymInt, torch.SymFloat)) and not asserted_alone(node)
    ]
    for call, window in machine.met:
        operands = [arg for arg in call.all_input_nodes if isinstance(machine.values.get(arg), Segment)]
        alike = [arg for arg in operands if machine.values[arg].window == window]
        known = {size.node.expr for arg in alike for size in example(arg).shape if isinstance(size, torch.SymInt)}
        made = example(call)
        sizes = made.shape if isinstance(made, torch.Tensor) else ()
        for size in sizes:
            if isinstance(size, torch.SymInt) and free_unbacked_symbols(size) and size.node.expr not in known:
                wrong = next((node for node, number in asked if number.has(size.node.expr)), None)
                if wrong is not None:
                    what = "the length of a part is asked for, where one slot may meet several"
                    raise Refused("length-mismatch", what, wrong)
