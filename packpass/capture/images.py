"""Functions of images, [n, channels, rows, columns], whose sizes are numbers of a document: written with operations on
slots, for torch's own ask for these numbers.

`torch.nn.functional.interpolate`, bilinear and bicubic, is a weighted sum of 4 or 16 pixels, which any index can fetch.
A convolution is a sum over its window: of the shifted image if every channel is by itself, else a linear layer of every
window. (Sources: the kernels that torch documents for `torch.nn.Upsample` and `torch.nn.Conv2d`.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from packpass.capture import widths
from packpass.capture.dynamo import (
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    call,
    constant,
    example,
    variable,
)
from packpass.capture.nothing import is_none
from packpass.capture.state import active
from packpass.capture.watch import is_unknown

_CUBIC, _CUBIC_SMOOTHED = -0.75, -0.5
"""The parameter of torch's bicubic kernel, and of the one for ``antialias``."""


# === What is traced in their place ===========================================================================


def _source(size: Any, of: Any, align_corners: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Where along ``of`` pixels each of ``size`` new ones lies: floats [size]."""
    places = torch.arange(size, device=device).to(dtype)
    if align_corners:
        return places * (of - 1) / torch.sym_max(size - 1, 1)
    return (places + 0.5) * of / size - 0.5


def _linear(size: Any, of: Any, align_corners: bool, dtype: torch.dtype, device: torch.device) -> Any:
    """Pixels and weights of each new pixel along one dimension, [size] each."""
    source = _source(size, of, align_corners, dtype, device).clamp(min=0)
    low = source.floor().long().clamp(max=of - 1)
    upper = source - low
    return ((low, 1 - upper), ((low + 1).clamp(max=of - 1), upper))


def _cubic(size: Any, of: Any, align_corners: bool, dtype: torch.dtype, device: torch.device) -> Any:
    """The same for the bicubic kernel."""
    source = _source(size, of, align_corners, dtype, device)
    low = source.floor()
    rest = source - low
    weights = (_far(rest + 1, _CUBIC), _near(rest, _CUBIC), _near(1 - rest, _CUBIC), _far(2 - rest, _CUBIC))
    return tuple((low.long() + (i - 1), weight) for i, weight in enumerate(weights))


def _near(distance: Tensor, a: float) -> Tensor:
    """The cubic kernel up to a distance of 1."""
    return ((a + 2) * distance - (a + 3)) * distance * distance + 1


def _far(distance: Tensor, a: float) -> Tensor:
    """The cubic kernel from there to a distance of 2."""
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a


def resampled(taps: Any, image: Tensor, rows: Any, columns: Any, align_corners: bool, last: bool) -> Tensor:
    """[n, c, rows, columns] of an image [n, c, h, w], by `_linear` or `_cubic`; ``last``: with channels last in memory,
    as torch's own has it."""
    n, channels, high, wide = image.shape
    dtype = torch.float64 if image.dtype == torch.float64 else torch.float32
    pixels = image.permute(0, 2, 3, 1).flatten(1, 2) if last else image.flatten(2)
    out = None
    for y, down in taps(rows, high, align_corners, dtype, image.device):
        for x, across in taps(columns, wide, align_corners, dtype, image.device):
            at = y.clamp(min=0).clamp(max=high - 1)[:, None] * wide + x.clamp(min=0).clamp(max=wide - 1)[None, :]
            weight = (down[:, None] * across[None, :]).flatten()
            part = pixels.index_select(1 if last else 2, at.flatten()) * (weight[:, None] if last else weight)
            out = part if out is None else out + part
    assert out is not None
    out = out.to(image.dtype)
    if last:
        return out.reshape(n, rows, columns, channels).permute(0, 3, 1, 2)
    return out.reshape(n, channels, rows, columns)


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic_filter(distance: Tensor) -> Tensor:
    near, far = _near(distance, _CUBIC_SMOOTHED), _far(distance, _CUBIC_SMOOTHED)
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def _shares(kernel: Any, size: Any, of: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What part of each of ``size`` new pixels each of the ``of`` old ones is: [size, of]."""
    places = torch.arange(size, device=device).to(dtype)
    center = (places + 0.5) * of / size
    width = ((places * 0 + of) / size).clamp(min=1)
    pixels = torch.arange(of, device=device).to(dtype) + 0.5
    shares = kernel(((pixels[None, :] - center[:, None]) / width[:, None]).abs())
    return shares / shares.sum(-1, keepdim=True)


def smoothed(kernel: Any, image: Tensor, rows: Any, columns: Any, last: bool) -> Tensor:
    """The same with ``antialias``, by `_triangle` or `_cubic_filter`: where pixels get fewer, every one is a mean of
    all that it stands for."""
    _, channels, high, wide = image.shape
    dtype = torch.float64 if image.dtype == torch.float64 else torch.float32
    down = _shares(kernel, rows, high, dtype, image.device)
    across = _shares(kernel, columns, wide, dtype, image.device)
    shares = (down[:, None, :, None] * across[None, :, None, :]).reshape(rows * columns, high * wide)
    out = (shares @ image[0].permute(1, 2, 0).reshape(high * wide, channels).to(dtype)).to(image.dtype)
    out = out.reshape(1, rows, columns, channels).permute(0, 3, 1, 2)
    return out if last else out.contiguous()


def convolved(
    image: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int], last: bool
) -> Tensor:
    """A convolution that moves by one slot, or by as much as its window is large; ``last`` as for `resampled`."""
    high, wide = weight.shape[2:]
    if padding != (0, 0):
        image = F.pad(image, (padding[1], padding[1], padding[0], padding[0]))
    if stride != (1, 1):
        windows = windowed(image, high, wide)  # [n, c * high * wide, rows, columns]
    else:
        rows, columns = image.shape[2] - (high - 1), image.shape[3] - (wide - 1)
        parts = [image.narrow(2, y, rows).narrow(3, x, columns) for y in range(high) for x in range(wide)]
        windows = torch.stack(parts, 2).flatten(1, 2)
    out = F.linear(windows.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)
    return out if last else out.contiguous()


def convolved_by_channel(image: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """A convolution that moves by one slot, every channel by itself."""
    high, wide = weight.shape[2:]
    if padding != (0, 0):
        image = F.pad(image, (padding[1], padding[1], padding[0], padding[0]))
    rows, columns = image.shape[2] - (high - 1), image.shape[3] - (wide - 1)
    out = None
    for y in range(high):
        for x in range(wide):
            part = image.narrow(2, y, rows).narrow(3, x, columns) * weight[:, 0, y, x][:, None, None]
            out = part if out is None else out + part
    assert out is not None
    return out if bias is None else out + bias[:, None, None]


def windowed(image: Tensor, high: int, wide: int) -> Tensor:
    """[n, c * high * wide, rows // high, columns // wide]: the windows side by side; what is left over is left out."""
    n, channels, rows, columns = image.shape[0], image.shape[1], image.shape[2] // high, image.shape[3] // wide
    image = image.narrow(2, 0, rows * high).narrow(3, 0, columns * wide)
    image = image.reshape(n, channels, rows, high, columns, wide).permute(0, 1, 3, 5, 2, 4)
    return image.reshape(n, channels * high * wide, rows, columns)


def unfolded(image: Tensor, high: int, wide: int) -> Tensor:
    """`torch.nn.functional.unfold` with windows side by side."""
    return windowed(image, high, wide).flatten(2)


# === When ====================================================================================================


def interpolate(tx: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.nn.functional.interpolate` to rows and columns of unknown number; None for any other."""
    names = ("input", "size", "scale_factor", "mode", "align_corners")
    kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    input, size, scale_factor = (kwargs.pop(name, None) for name in names[:3])
    if (
        len(args) > len(names)
        or input is None
        or size is None
        or not (scale_factor is None or is_none(scale_factor.realize()))
    ):
        return None
    image, sizes = input.realize(), size.realize()
    known = {name: value.realize() for name, value in kwargs.items()}
    if not _is_image(image) or not isinstance(sizes, (ListVariable, TupleVariable)) or len(sizes.items) != 2:
        return None
    rows, columns = (widths.as_number(tx, entry.realize()) for entry in sizes.items)
    if not all(value.is_python_constant() for value in known.values()):
        return None
    given = {name: value.as_python_constant() for name, value in known.items()}
    taps, kernel = _MODES.get(given.pop("mode", "nearest"), (None, None))
    corners, smooth = bool(given.pop("align_corners", None)), bool(given.pop("antialias", None))
    if taps is None or any(given.values()) or not (_has_unknown(image) or _is_number(rows) or _is_number(columns)):
        return None
    last = constant(_is_last(image))
    if not smooth:
        return call(tx, resampled, variable(tx, taps), image, rows, columns, constant(corners), last)
    if corners or not all(type(size) is int for size in example(image).shape) or example(image).shape[0] != 1:
        return None
    return call(tx, smoothed, variable(tx, kernel), image, rows, columns, last)


_MODES: dict[Any, Any] = {"bilinear": (_linear, _triangle), "bicubic": (_cubic, _cubic_filter)}


def convolution(tx: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.nn.functional.conv2d` of an image of unknown size; None for any other."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    image, weight = (given[name].realize() if name in given else None for name in names[:2])
    if not _is_image(image) or not _has_unknown(image) or not isinstance(weight, TensorVariable):
        return None
    shape = tuple(example(weight).shape)
    stride, padding = _pair(given.get("stride"), 1), _pair(given.get("padding"), 0)
    groups, dilation = _pair(given.get("groups"), 1), _pair(given.get("dilation"), 1)
    if not stride or not padding or not groups or dilation != (1, 1) or not all(type(n) is int for n in shape):
        return None
    bias = given.get("bias") or constant(None)
    last = constant(_is_last(image) or _is_last(weight))
    if groups[0] == 1 and (stride == (1, 1) or stride == shape[2:]):
        return call(tx, convolved, image, weight, bias, _tuple(stride), _tuple(padding), last)
    if groups[0] == shape[0] and shape[1] == 1 and stride == (1, 1) and example(image).shape[1] == shape[0]:
        return call(tx, convolved_by_channel, image, weight, bias, _tuple(padding))
    return None


def unfold(tx: Any, input: Any = None, kernel_size: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.nn.functional.unfold` of an image of unknown size into windows side by side; None for any other."""
    given = {**dict(zip(("dilation", "padding", "stride"), args, strict=False)), **kwargs}
    image, window = input.realize() if input is not None else None, _pair(kernel_size, None)
    rest = [_pair(given.get(name), default) for name, default in (("dilation", 1), ("padding", 0), ("stride", 1))]
    if not _is_image(image) or not _has_unknown(image) or window is None or rest != [(1, 1), (0, 0), window]:
        return None
    return call(tx, unfolded, image, *map(constant, window))


def _is_image(value: Any) -> bool:
    """Is it one, in the body of a loop over documents?"""
    if not active.regions or not isinstance(value, TensorVariable):
        return False
    if torch.is_autocast_enabled(example(value).device.type):
        return False  # which has its own dtypes for torch's functions, not for what they are written with
    return example(value).dim() == 4 and example(value).dtype.is_floating_point


def _is_last(image: Any) -> bool:
    """Does an image lie in memory with its channels last?"""
    channels = example(image).stride()[1]
    return isinstance(channels, int) and channels == 1 and example(image).shape[1] != 1


def _has_unknown(image: Any) -> bool:
    return any(is_unknown(size) for size in example(image).shape)


def _is_number(value: Any) -> bool:
    return isinstance(value, SymNodeVariable) and is_unknown(value.sym_num)


def _pair(value: Any, default: int | None) -> tuple[int, int] | None:
    """A window, or a step, in both dimensions; None if it is none that is known."""
    if value is None:
        return None if default is None else (default, default)
    value = value.realize()
    known = value.as_python_constant() if value.is_python_constant() else None
    pair = (known, known) if type(known) is int else known
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(type(n) is int for n in pair):
        return None
    return pair[0], pair[1]


def _tuple(pair: tuple[int, int]) -> Any:
    return TupleVariable([constant(number) for number in pair])
