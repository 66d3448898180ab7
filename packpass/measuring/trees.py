"""Arguments and results as trees of tensors: copy them, walk them, compare them.

Containers are lists, tuples (named ones too), mappings and dataclass instances, nested at will. Anything else that
is not a tensor is passed on as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def map_tensors(tree: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """A copy of ``tree`` with every tensor replaced by ``function(tensor)``; containers keep their types."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        items = {key: map_tensors(value, function) for key, value in tree.items()}
        if type(tree) is dict:
            return items
        clone = copy.copy(tree)
        for key, value in items.items():
            clone[key] = value  # type: ignore[index]
        return clone
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(value, function) for value in tree))
    if type(tree) in (list, tuple):
        return type(tree)(map_tensors(value, function) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        twin: Any = copy.copy(tree)
        for field in dataclasses.fields(tree):
            if hasattr(tree, field.name):
                # object.__setattr__: frozen dataclasses are copied too
                object.__setattr__(twin, field.name, map_tensors(getattr(tree, field.name), function))
        return twin
    return tree


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in ``tree`` that is not a container, with its path, for example ``("[0].hidden", tensor)``."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            # Keys that are names read like attributes at the top, so that paths start with a word.
            yield from leaves(value, f"{path}[{key!r}]" if path or not isinstance(key, str) else key)
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        for name, value in zip(tree._fields, tree, strict=True):
            yield from leaves(value, f"{path}.{name}")
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}[{index}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            if hasattr(tree, field.name):
                yield from leaves(getattr(tree, field.name), f"{path}.{field.name}")
    else:
        yield path, tree


def tensors(tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among :func:`leaves`."""
    for path, leaf in leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield path, leaf


def clone_tree(tree: Any) -> Any:
    """A deep copy whose tensors are leaves with the same ``requires_grad``, strides and mutual aliasing.

    Storages are copied whole, once each: views of one buffer stay views of one buffer.
    """
    storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}
    clones: dict[int, torch.Tensor] = {}

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in clones:
            clones[id(tensor)] = _clone(tensor, storages).requires_grad_(tensor.requires_grad)
        return clones[id(tensor)]

    return map_tensors(tree, clone)


def _clone(tensor: torch.Tensor, storages: dict[tuple[torch.device, int], torch.UntypedStorage]) -> torch.Tensor:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.device.type == "meta" or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone()
    storage = tensor.untyped_storage()
    key = (tensor.device, storage.data_ptr())
    if key not in storages or storage.nbytes() == 0:
        storages[key] = storage.clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far ``actual`` is from ``expected``: over all tensors of two trees.

    ``largest`` is the largest absolute difference (in float64; inf where structure, shape, dtype or NaNs differ),
    ``equal`` bitwise equality of all values, ``close`` whether every tensor is within the usual tolerance of its dtype,
    ``where`` the path of the largest difference (empty if equal) and ``why`` what is wrong with the structure.
    """

    largest: float = 0.0
    equal: bool = True
    close: bool = True
    where: str = ""
    why: str = ""


def difference(expected: Any, actual: Any) -> Difference:
    """Compare two trees: tensors by value, numbers and strings for equality; other objects are not looked at."""
    left, right = list(leaves(expected)), list(leaves(actual))
    if [path for path, _ in left] != [path for path, _ in right]:
        paths = [", ".join(path or "one value" for path, _ in side) for side in (left, right)]
        return Difference(float("inf"), False, False, "", f"the structure is ({paths[1]}) instead of ({paths[0]})")
    total = Difference()
    for (path, one), (_, other) in zip(left, right, strict=True):
        total = worse(total, _leaf_difference(path or "result", one, other))
    return total


def _leaf_difference(path: str, expected: Any, actual: Any) -> Difference:
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        return _tensor_difference(path, expected, actual)
    plain = (bool, int, float, complex, str, bytes, type(None), torch.Tensor)
    if isinstance(expected, plain) and isinstance(actual, plain):
        same = not isinstance(expected, torch.Tensor) and not isinstance(actual, torch.Tensor)
        if not same or (expected != actual and expected == expected):
            return Difference(float("inf"), False, False, path, f"{path} is {actual!r} instead of {expected!r}")
    return Difference()


def worse(one: Difference, other: Difference) -> Difference:
    """Both differences in one; path and reason of the larger."""
    larger = other if (other.largest, not other.equal) > (one.largest, not one.equal) else one
    return dataclasses.replace(larger, equal=one.equal and other.equal, close=one.close and other.close)


def _tensor_difference(path: str, expected: torch.Tensor, actual: torch.Tensor) -> Difference:
    if expected.shape != actual.shape or expected.dtype != actual.dtype or expected.device != actual.device:
        kinds = [f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in (expected, actual)]
        return Difference(float("inf"), False, False, path, f"{path} is {kinds[1]} instead of {kinds[0]}")
    expected, actual = expected.detach(), actual.detach()
    if expected.dtype.is_complex:
        expected, actual = torch.view_as_real(expected), torch.view_as_real(actual)
    if torch.equal(torch.isnan(expected), torch.isnan(actual)) is False:
        return Difference(float("inf"), False, False, path, f"{path} has NaN in other places")
    if expected.numel() == 0 or bool(((expected == actual) | torch.isnan(expected)).all()):
        return Difference()
    distance = (expected.double() - actual.double()).abs()
    # inf - inf is NaN where both agree; an infinity on one side only stays infinite.
    largest = float(torch.where(expected == actual, 0.0, distance).nan_to_num(0.0, posinf=float("inf")).max())
    if not expected.dtype.is_floating_point:
        return Difference(max(largest, 1.0), False, False, path, f"{path} differs")
    tolerance = _TOLERANCE.get(expected.dtype, (1e-5, 1e-8))
    # Sums cancel: what counts is the error relative to the tensor's scale, not to each element.
    scale = max(1.0, float(expected.double().nan_to_num(0.0, posinf=0.0, neginf=0.0).abs().max()))
    close = torch.allclose(actual.double(), expected.double(), tolerance[0], tolerance[1] * scale, equal_nan=True)
    return Difference(largest, False, close, path, "" if close else f"{path} differs by up to {largest:.3g}")


# (rtol, atol) as torch.testing.assert_close has them
_TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
