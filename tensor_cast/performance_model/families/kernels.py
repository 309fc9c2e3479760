"""The family of a kernel by its geometry and efficiency."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensor_cast.efficiency import (
    AttentionEfficiency,
    DecodeEfficiency,
    Efficiency,
    ExpertEfficiency,
    ProductEfficiency,
)
from tensor_cast.performance_model.families.attention import Attention, attention_times, decode_times
from tensor_cast.performance_model.families.experts import Experts, expert_times
from tensor_cast.performance_model.families.family import Times, Work
from tensor_cast.performance_model.families.products import Product, product_times
from tensor_cast.performance_model.families.streaming import Stream, stream_times

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile

Geometry = Product | Experts | Attention | Stream


def kernel_times(geometry: Geometry, work: Work, device: DeviceProfile, efficiency: Efficiency) -> Times:
    """Seconds besides the launch, of one call or of many; a kernel of no known shape streams."""
    if device.num_cores is not None:
        if isinstance(geometry, Product) and isinstance(efficiency, ProductEfficiency):
            return product_times(geometry, work, device, efficiency)
        if isinstance(geometry, Experts) and isinstance(efficiency, ExpertEfficiency):
            return expert_times(geometry, work, device, efficiency)
        if isinstance(geometry, Attention) and isinstance(efficiency, AttentionEfficiency):
            return attention_times(geometry, work, device, efficiency)
        if isinstance(geometry, Attention) and isinstance(efficiency, DecodeEfficiency):
            return decode_times(geometry, work, device, efficiency)
    return stream_times(geometry if isinstance(geometry, Stream) else Stream(), work, device, efficiency)
