"""How well fitted matrix products predict measured ones: python tests/benchmarks/accuracy/products.py gemm.csv.gz

For each row of FITS: the held-out score (fitted to three weight shapes in four, scored on the fourth), the score as shipped, and the
efficiency that a fit to all rows gives, as it stands in conf/device. The table is not part of the project.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tensor_cast.commands.fit import PARAMETERS, fit_products, score
from tensor_cast.commands.tables import TYPES, read_products
from tensor_cast.commands.validate import heldout_score
from tensor_cast.device import load_device

FITS = [  # device, the table's name for it, type, source
    ("h100_sxm", "H100-SXM5-80GB", "bfloat16", "aiconfigurator:vllm-0.24.0"),
    ("a100_sxm_80g", "A100-SXM4-80GB", "bfloat16", "aiconfigurator:vllm-0.14.0"),
    ("l40s", "L40S", "bfloat16", "aiconfigurator:vllm-0.24.0"),
    ("b60", "Intel-Arc-Pro-B60", "bfloat16", "aiconfigurator:vllm-0.20.0"),
    ("ascend910b", "Ascend-910B", "bfloat16", "aiconfigurator-npu:vllm-ascend-0.18.0"),
    ("mi355x", "MI355X", "bfloat16", "aiter:tuned"),
    ("t4", "T4", "float32", "NeuSight"),
    ("l4", "L4", "float32", "NeuSight"),
    ("p4", "P4", "float32", "NeuSight"),
]


def main(paths: list[str]) -> None:
    tables = {(table.device, table.dtype, table.source): table for table in read_products(paths)}
    for name, measured, dtype, source in FITS:
        table = tables.get((measured, dtype, source))
        if table is None:
            print(f"{name} {dtype}: no rows of {measured}, {source}")
            continue
        device = load_device(name)
        shipped = score(table, device, device.efficiency_of("matmul", TYPES[dtype][0]))
        unseen = heldout_score(table, device)
        print(
            f"{name} {dtype}: held out {unseen.mean:.1%} / {unseen.median:.1%} of {unseen.num_rows},"
            f" as shipped {shipped.mean:.1%} / {shipped.median:.1%} of {shipped.num_rows}"
        )
        fitted = fit_products(table, device)
        print("  ", ", ".join(f"{parameter}: {getattr(fitted, parameter):.3g}" for parameter, *_ in PARAMETERS))


if __name__ == "__main__":
    main(sys.argv[1:])
