"""Factorisations of dense matrices: operations of the standard algorithms, two a multiply-add.

Source: Golub and Van Loan, Matrix Computations.
"""

from __future__ import annotations

import torch

from tensor_cast.performance_model.builtin.declare import add_ops, counts
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


def _factorised(info: OpInvokeInfo, squares: float, cubes: float) -> PerformanceProperties:
    """squares: times m n^2, cubes: times n^3, for each (m, n) of the batch with n the shorter side."""
    matrix: torch.Tensor = info.args[0]
    m, n = max(matrix.shape[-2:]), min(matrix.shape[-2:])
    batch = matrix.shape[:-2].numel()
    operations = batch * (squares * m * n**2 + cubes * n**3)
    return add_ops(info.get_memory_access_properties(), matrix.dtype, mma_ops=operations)


@counts("matmul", "aten.linalg_cholesky_ex", "aten.cholesky")
def cholesky(info: OpInvokeInfo) -> PerformanceProperties:
    return _factorised(info, 0, 1 / 3)


@counts("matmul", "aten.linalg_inv_ex", "aten.linalg_inv", "aten.inverse")
def inverse(info: OpInvokeInfo) -> PerformanceProperties:
    return _factorised(info, 0, 2)


@counts(
    "matmul",
    "aten.linalg_lu_factor_ex",
    "aten._linalg_det",
    "aten._linalg_slogdet",
    "aten._linalg_solve_ex",
    "aten.linalg_lu",
)
def lu(info: OpInvokeInfo) -> PerformanceProperties:
    return _factorised(info, 1, -1 / 3)


@counts("matmul", "aten.linalg_qr", "aten.geqrf", "aten.linalg_lstsq")
def qr(info: OpInvokeInfo) -> PerformanceProperties:
    # Householder reflections and the explicit Q
    return _factorised(info, 4, -4 / 3)


@counts("matmul", "aten._linalg_eigh", "aten.linalg_eig", "aten._linalg_eigvals")
def eigh(info: OpInvokeInfo) -> PerformanceProperties:
    return _factorised(info, 0, 9)


@counts("matmul", "aten._linalg_svd")
def svd(info: OpInvokeInfo) -> PerformanceProperties:
    # with vectors: 14 m n^2 + 8 n^3; without: 4 m n^2 - 4/3 n^3
    return _factorised(info, 14, 8) if info.argument("compute_uv", True) else _factorised(info, 4, -4 / 3)
