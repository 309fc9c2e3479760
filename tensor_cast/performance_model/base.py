"""``PerformanceModel`` under its other import path."""

from tensor_cast.performance_model.model import PerformanceModel

__all__ = ["PerformanceModel"]
