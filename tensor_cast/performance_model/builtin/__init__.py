"""What known operators do: counts, one module a family, and estimators where time is not counts through a roofline."""

import importlib

FAMILY_MODULES = (
    "matmul",
    "linalg",
    "attention",
    "convolution",
    "normalization",
    "reduction",
    "gather",
    "copies",
    "foreach",
    "spatial",
    "collectives",
)
MODULES = tuple(f"{__name__}.{name}" for name in FAMILY_MODULES)
for _module in MODULES:
    importlib.import_module(_module)
