"""``torch.autocast`` on meta tensors: PyTorch's own knows no meta device, so its lists for accelerators are followed here.

Which operators change the type of their inputs, and how, are those of PyTorch's documentation of automatic mixed precision
("CUDA Ops that can autocast to float16, to float32, that promote to the widest input type"). A leaf's cast is made once in the
outermost region, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

# A dispatch key of no device here, above autograd: it is switched on while a region is active.
_KEY = "AutocastPrivateUse1"
_NARROW = {
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "addmm", "addmv", "addr", "matmul", "einsum",
    "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
}  # fmt: skip
_WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add",
}  # fmt: skip
_RESULT_WIDE = {
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
}


class Autocast:
    """The regions that are active in one trace."""

    def __init__(self) -> None:
        self._regions: list[torch.dtype | None] = []
        self._casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._libraries: list[torch.library.Library] = []

    @property
    def dtype(self) -> torch.dtype | None:
        """The narrow type of the innermost region, None where none is active."""
        return self._regions[-1] if self._regions else None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While a program is traced: its regions are followed, whatever device they name."""
        kind = torch.autocast
        # what is restored afterwards
        names = ("__init__", "__enter__", "__exit__")
        before = {name: getattr(kind, name) for name in names}
        asked = torch.is_autocast_enabled, torch.get_autocast_dtype
        kind.__init__, kind.__enter__, kind.__exit__ = _made, self._entered(), self._left()  # type: ignore[method-assign,assignment]
        torch.is_autocast_enabled = lambda *_: self.dtype is not None  # type: ignore[assignment]
        torch.get_autocast_dtype = lambda device: self.dtype or asked[1](device)  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.is_autocast_enabled, torch.get_autocast_dtype = asked
            for name in names:
                setattr(kind, name, before[name])
            self._switch(False)
            for library in self._libraries:
                library._destroy()

    def _entered(self) -> Callable[..., Any]:
        def enter(region: Any) -> Any:
            enabled = getattr(region, "_asked_for", region._enabled or region.device != "cpu")
            self._regions.append(region.fast_dtype if enabled else None)
            self._switch(enabled)
            return region

        return enter

    def _left(self) -> Callable[..., Any]:
        def leave(region: Any, *exc: Any) -> None:
            self._regions.pop()
            self._switch(self.dtype is not None)
            if not self._regions:
                self._casts.clear()

        return leave

    def _switch(self, on: bool) -> None:
        if on and not self._libraries:
            self._libraries = [_rest(), _kernels(self)]
        key = torch._C.DispatchKey.__members__[_KEY]
        torch._C._dispatch_tls_set_dispatch_key_included(key, on)
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, not on)

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Floating-point tensors in ``dtype``, a leaf's narrow form made once."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(item, dtype) for item in value)
        if not isinstance(value, torch.Tensor) or not _may_change(value) or value.dtype is dtype:
            return value
        if not (value.requires_grad and value.is_leaf and dtype is self.dtype and not value._is_view()):
            return value.to(dtype)
        if id(value) not in self._casts:
            self._casts[id(value)] = (value, value.to(dtype))
        return self._casts[id(value)][1]


def _made(
    region: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: Any = None
) -> None:
    region.device, region._enabled, region._asked_for = device_type, enabled, enabled
    region.fast_dtype = dtype or (torch.bfloat16 if device_type in ("cpu", "meta", "xpu") else torch.float16)
    region._cache_enabled = True


def _may_change(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.dtype is not torch.float64


def _rest() -> torch.library.Library:
    """Every other operator is left as it is."""
    library = torch.library.Library("_", "IMPL")
    library.fallback(torch.library.fallthrough_kernel, _KEY)
    return library


def _kernels(autocast: Autocast) -> torch.library.Library:
    """A kernel for each operator that PyTorch's autocast knows: it changes the types and calls the operator again."""
    library = torch.library.Library("aten", "IMPL")
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if schema.name.startswith("aten::") and _has_kernel(name):
            packet = getattr(torch.ops.aten, schema.name.partition("::")[2])
            library.impl(name, _kernel(autocast, getattr(packet, schema.overload_name or "default")), _KEY)
    return library


def _has_kernel(name: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA"))
    except RuntimeError:
        return False


def _kernel(autocast: Autocast, operator: Any) -> Callable[..., Any]:
    name = operator._schema.name.partition("::")[2]
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.__members__[_KEY])
    positions = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as exits:
            exits.enter_context(torch._C._ExcludeDispatchKeyGuard(key))
            narrow = autocast.dtype
            if name in _NARROW and narrow is not None:
                args, kwargs = autocast.cast(args, narrow), {k: autocast.cast(v, narrow) for k, v in kwargs.items()}
            elif name in _WIDEST:
                types = [item.dtype for item in args if isinstance(item, torch.Tensor) and _may_change(item)]
                if len(set(types)) > 1:
                    args = autocast.cast(args, torch.float32)
            elif name in _RESULT_WIDE and "dtype" in positions:
                given = args[positions.index("dtype") :]
                if _may_change(args[0]) and args[0].dtype is not torch.float32 and not any(given):
                    kwargs = {"dtype": torch.float32, **{k: v for k, v in kwargs.items() if v is not None}}
                    args = args[: len(args) - len(given)]
            else:
                args = autocast.cast(args, torch.float32)
                kwargs = {k: autocast.cast(v, torch.float32) for k, v in kwargs.items()}
            return operator(*args, **kwargs)

    return kernel
