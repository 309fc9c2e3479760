"""Data types by name. No torch here: names are torch's own, without the prefix."""

RATE_NAMES = (
    "float64", "float32", "tfloat32", "float16", "bfloat16",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn_x2",
    "int64", "int32", "int16", "int8", "uint8", "int4", "bool",
)  # fmt: skip

_REAL = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def rate_name(dtype: object) -> str:
    """The name under which a device lists the rate of a torch dtype (complex numbers run in their real type)."""
    name = str(dtype).removeprefix("torch.")
    return _REAL.get(name, name)
