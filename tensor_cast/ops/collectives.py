"""Collectives between ranks. ``args[0]`` is always the tensor that this rank sends; ``ranks`` are the members of the group.

- ``all_reduce(input, ranks)`` -> the shape of input
- ``all_gather(input, ranks, dim=0)`` -> input's ``dim`` times the number of ranks
- ``reduce_scatter(input, ranks, dim=0)`` -> input's ``dim`` divided by the number of ranks
- ``all_to_all(input, ranks, output_splits=None, input_splits=None)`` -> dimension 0 is the sum of output_splits

An empty list of ranks is a group of one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tensor_cast.ops.library import LIBRARY

LIBRARY.define("all_reduce(Tensor input, int[] ranks=[]) -> Tensor")
LIBRARY.define("all_gather(Tensor input, int[] ranks=[], int dim=0) -> Tensor")
LIBRARY.define("reduce_scatter(Tensor input, int[] ranks=[], int dim=0) -> Tensor")
LIBRARY.define(
    "all_to_all(Tensor input, int[] ranks=[], SymInt[]? output_splits=None, SymInt[]? input_splits=None) -> Tensor"
)


def _all_reduce(input: Tensor, ranks: Sequence[int] = ()) -> Tensor:
    return input.new_empty(input.shape)


def _all_gather(input: Tensor, ranks: Sequence[int] = (), dim: int = 0) -> Tensor:
    shape = list(input.shape)
    shape[dim] *= max(len(ranks), 1)
    return input.new_empty(shape)


def _reduce_scatter(input: Tensor, ranks: Sequence[int] = (), dim: int = 0) -> Tensor:
    shape = list(input.shape)
    num_ranks = max(len(ranks), 1)
    if shape[dim] % num_ranks:
        raise ValueError(
            f"tensor_cast::reduce_scatter: dimension {dim} of {tuple(input.shape)} is no multiple of {num_ranks} ranks"
        )
    shape[dim] //= num_ranks
    return input.new_empty(shape)


def _all_to_all(
    input: Tensor,
    ranks: Sequence[int] = (),
    output_splits: list[int] | None = None,
    input_splits: list[int] | None = None,
) -> Tensor:
    rows = input.shape[0] if output_splits is None else sum(output_splits)
    return input.new_empty((rows, *input.shape[1:]))


LIBRARY.impl("all_reduce", _all_reduce, "Meta")
LIBRARY.impl("all_gather", _all_gather, "Meta")
LIBRARY.impl("reduce_scatter", _reduce_scatter, "Meta")
LIBRARY.impl("all_to_all", _all_to_all, "Meta")
