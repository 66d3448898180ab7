"""Matrices of documents, each of sizes of its own, that lie one behind the other in memory."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor


def document_matrices(sizes: Tensor, *parts: tuple[Tensor, tuple[int, int]]) -> Iterator[list[Tensor]]:
    """Of each document the numbers of several tensors: views ``[batch, first, second]``, without the dimension of one
    matrix alone.

    Args:
        sizes: int64 ``[N, K]``, sizes of every document, the batch first. They are read on the host.
        parts: a row of numbers that lies in one piece, and which columns of ``sizes`` are the two dimensions.
    """
    begins = [0] * len(parts)
    for document in sizes.tolist():
        found = []
        for i, (numbers, (first, second)) in enumerate(parts):
            batch, shape = document[0], (document[first], document[second])
            end = begins[i] + batch * shape[0] * shape[1]
            found.append(numbers[begins[i] : end].view(shape if batch == 1 else (batch, *shape)))
            begins[i] = end
        yield found
