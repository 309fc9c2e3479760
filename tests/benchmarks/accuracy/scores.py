"""The table of errors that the README shows: python tests/benchmarks/accuracy/scores.py FOLDER [keep]

Scores the tables of FOLDER three ways, as ``tensor_cast.validate data=FOLDER split=all`` does (the tables are not part of the project), prints
the README's table, and compares with scores.csv beside this file: a kind of kernel that is worse by a tenth is named, and the exit code is 1.
``keep`` writes scores.csv anew.
"""

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tensor_cast.commands.validate import SPLITS, by_kind, devices_of, score_tables
from tensor_cast.measurements.files import read_measurements

KEPT = Path(__file__).with_name("scores.csv")
WORSE = 1.1


def main(folder: str, keep: bool) -> int:
    tables = [table for table in read_measurements([folder]) if "eager" not in table.words]
    devices = devices_of(None, tables)
    kinds = by_kind({split: list(score_tables(tables, devices, split)) for split in SPLITS})
    print(f"| kind of kernel | {' | '.join(SPLITS)} | tables |\n|---|{'---|' * (len(SPLITS) + 1)}")
    rows = []
    for kind, splits in kinds.items():
        cells = [f"{splits[split][0]:.1%} / {splits[split][1]:.1%}" if split in splits else "-" for split in SPLITS]
        print(f"| {kind} | {' | '.join(cells)} | {max(one[2] for one in splits.values())} |")
        for split, (mean, median, tables_scored) in splits.items():
            rows.append(
                {
                    "kind": kind,
                    "split": split,
                    "tables": tables_scored,
                    "mean": f"{mean:.4f}",
                    "median": f"{median:.4f}",
                }
            )
    kept = csv.DictReader(KEPT.read_text().splitlines()) if KEPT.exists() else ()
    before = {(row["kind"], row["split"]): float(row["mean"]) for row in kept}
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
