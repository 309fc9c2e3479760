"""What tests share: a device of round numbers, and a call made by hand."""

import pytest
import torch

import tensor_cast.ops  # noqa: F401
from tensor_cast.device import DeviceProfile


@pytest.fixture
def round_device() -> DeviceProfile:
    """1e12 matrix operations, 1e11 vector operations and 1e10 bytes a second; a launch of 1 us; no efficiencies."""
    return DeviceProfile(
        "round",
        memory_bytes=1e9,
        memory_bandwidth_bytes_per_s=1e10,
        matrix_ops_per_s={"float32": 1e12, "bfloat16": 2e12},
        vector_ops_per_s={"float32": 1e11},
        launch_s=1e-6,
    )


@pytest.fixture(autouse=True)
def _meta_only_where_asked():
    yield
    assert torch.get_default_dtype() is torch.float32
