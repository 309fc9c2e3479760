"""The table of errors that the README shows: python tests/benchmarks/accuracy/scores.py FOLDER [keep]

Scores every table of FOLDER (``tensor_cast.measurements.csv_tables`` says what columns they have; the tables are not part of the project)
three ways, as ``tensor_cast.validate`` does: held out (fitted to three groups of shapes in four, scored on the fourth), device not measured (fitted to the
other devices), as shipped. Prints, by kind of kernel, the median over tables of their mean and median errors, and compares with scores.csv beside
this file: a kind that is worse by a tenth is named, and the exit code is 1. ``keep`` writes scores.csv anew.
"""

import csv
import statistics
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from fit_profiles import BEYOND_PHYSICS, DEVICES, kernels_in

from tensor_cast.commands.validate import SPLITS, score_tables
from tensor_cast.device import load_device
from tensor_cast.measurements.files import read_measurements

KEPT = Path(__file__).with_name("scores.csv")
LEAST = 100  # rows of a table that counts
WORSE = 1.1


def kind_of(table) -> str | None:
    """The row of the table of errors; None for what is not scored."""
    if BEYOND_PHYSICS[0] in table.source and table.family in BEYOND_PHYSICS[1]:
        return None
    if table.family == "matmul":
        if table.device == "Ascend-910B":
            return f"products, 910B, {table.words}"
        narrow = table.dtype in ("float8_e4m3fn", "int8")
        wide = "float32" if table.dtype == "float32" else "bfloat16, float16"
        return "products, fp8 and int8" if narrow else f"products, {wide}" if "_wo" not in table.words else None
    if table.family == "collective":
        return "collectives, one node" if table.words == "one node" else None
    if "attention" in table.family:
        if "mla" in table.words:
            return "latent attention (MLA)"
        return "attention, decode" if table.family == "decode_attention" else "attention, prefill"
    return {"grouped_matmul": "experts, whole layers", "elementwise": "element-wise"}.get(
        table.family, "normalisation, softmax"
    )


def main(folder: str, keep: bool) -> int:
    tables = [
        table
        for table in read_measurements(kernels_in(folder))
        if len(table) >= LEAST or table.family in ("normalization", "softmax")
    ]
    devices = {measured: load_device(name) for name, (measured, _) in DEVICES.items()}
    rows = []
    for split in SPLITS:
        found = defaultdict(list)
        scored = [table for table in tables if kind_of(table) and table.device in devices]
        for one in score_tables(scored, devices, split):
            if one.score.num_rows >= 10:
                found[kind_of(one.rows)].append(one.score)
        for kind, scores in sorted(found.items()):
            mean, median = (statistics.median(getattr(score, name) for score in scores) for name in ("mean", "median"))
            rows.append(
                {"kind": kind, "split": split, "tables": len(scores), "mean": f"{mean:.4f}", "median": f"{median:.4f}"}
            )
            print(f"{split:8} {kind:28} {mean:6.1%} / {median:.1%} of {len(scores)} tables", flush=True)
    before = {}
    if KEPT.exists():
        before = {
            (row["kind"], row["split"]): float(row["mean"]) for row in csv.DictReader(KEPT.read_text().splitlines())
        }
    worse = [row for row in rows if float(row["mean"]) > WORSE * before.get((row["kind"], row["split"]), 1e9)]
    for row in worse:
        print(
            f"WORSE: {row['kind']}, {row['split']}: {float(row['mean']):.1%}, was {before[row['kind'], row['split']]:.1%}"
        )
    if keep:
        with open(KEPT, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "keep" in sys.argv[2:]))
