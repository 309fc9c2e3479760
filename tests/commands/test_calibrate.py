"""Calibrating a device from measured products, and scoring predictions against them."""

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tensor_cast.commands import calibrate, validate
from tensor_cast.commands.fit import fit_and_score, predicted_s, score
from tensor_cast.commands.tables import read_products
from tensor_cast.device import Efficiency, load_device

TRUTH = Efficiency(compute=0.7, memory=0.75, launch_s=4e-6, overlap=2.0, tile_edge=20, tile_depth=60, tile_start_s=3e-7,
                   wave_rounding=0.3, split_s=3e-6, cache_speedup=2.0)  # fmt: skip


def write(path, rows, header=("device", "dtype", "m", "n", "k", "latency_us")):
    lines = "\n".join(",".join(map(str, row)) for row in (header, *rows))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """What a device of a known efficiency would take, with 2 % noise."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    shapes = [
        (m, n, k) for m in (1, 16, 100, 512, 3000) for n in (512, 1536, 4096, 11008) for k in (256, 1024, 4096, 8192)
    ]
    rows = [("lab", "bfloat16", *shape, 1.0) for shape in shapes]
    (table,) = read_products([write(tmp_path / "shapes.csv", rows)])
    times = predicted_s(table, load_device("a100_sxm_80g"), TRUTH) * random.lognormal(0, 0.02, len(shapes))
    rows = [("lab", "bfloat16", *shape, time * 1e6) for shape, time in zip(shapes, times, strict=True)]
    return write(tmp_path / "measured.csv.gz", rows)


def test_a_known_device_is_found_again(measured):
    (table,) = read_products([measured])
    efficiency, unseen = fit_and_score(table, load_device("a100_sxm_80g"))
    assert unseen.mean < 0.05 and efficiency.error == round(unseen.mean, 3)
    assert score(table, load_device("a100_sxm_80g"), efficiency).mean < 0.04
    wrong = score(table, load_device("a100_sxm_80g"), replace(TRUTH, compute=0.35, memory=0.4)).mean
    assert wrong > 0.3


def test_the_command_writes_a_device_that_runs(measured, capsys):
    assert calibrate.main(["device=a100_sxm_80g", f"data={measured}", "name=mine"]) == 0
    assert "mean" in capsys.readouterr().out
    content = yaml.safe_load(Path("conf/device/mine.yaml").read_text())
    assert content["like"] == "a100_sxm_80g" and content["efficiency"]["matmul.bfloat16"]["error"] < 0.06
    assert content["sources"]["efficiency.matmul.bfloat16"].startswith("fitted: measured.csv, 80 products")
    device = load_device("mine")
    assert device.efficiency_of("matmul", "bfloat16").error == content["efficiency"]["matmul.bfloat16"]["error"]
    assert validate.main([f"data={measured}", "device=mine", "csv=scores.csv"]) == 0
    (row,) = csv.DictReader(Path("scores.csv").read_text().splitlines())
    assert float(row["mean"]) < 0.05 and row["num_rows"] == "80"
    assert calibrate.main(["device=a100_sxm_80g", f"data={measured}", "name=mine"]) == 2
    assert "exists" in capsys.readouterr().err


def test_the_held_out_score_is_of_a_fit_that_has_not_seen_it(measured, capsys):
    assert validate.main([f"data={measured}", "device=a100_sxm_80g", "split=heldout"]) == 0
    (table,) = read_products([measured])
    assert 0 < table.held_out.sum() < len(table) and f" {table.held_out.sum()} " in capsys.readouterr().out


BAD = [
    (["device=a100_sxm_80g"], "data= is missing"),
    (["device=a100_sxm_8g", "data=measured.csv.gz"], "no device 'a100_sxm_8g'"),
    (["device=a100_sxm_80g", "data=none.csv"], "none.csv: cannot be read"),
    (["device=a100_sxm_80g", "data=measured.csv.gz", "nam=x"], "there is no argument 'nam'. Did you mean 'name'"),
    (["device=a100_sxm_80g", "measured.csv.gz"], "an argument reads name=value"),
    (
        ["device=a100_sxm_80g", "data=measured.csv.gz", "rows=other"],
        "no rows of products are left; the tables have the devices lab",
    ),
    (["device=a100_sxm_80g", "data=few.csv"], "a fit needs 20 at least"),
    (["device=a100_sxm_80g", "data=wrong.csv"], "wrong.csv:2: m must be above zero, got '-3'"),
    (["device=a100_sxm_80g", "data=words.csv"], "words.csv:2: k must be a number, got 'x'"),
    (["device=a100_sxm_80g", "data=columns.csv"], "the column 'latency_us' is missing"),
    (["device=a100_sxm_80g", "data=text.csv.gz"], "cannot be read"),
    (["device=a100_sxm_80g", "device=l4", "data=few.csv"], "device= is given 2 times"),
    (["device=p100", "data=measured.csv.gz"], "no matrix peak for bfloat16"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[said for _, said in BAD])
def test_mistakes_are_told_in_a_sentence(measured, arguments, said, capsys, tmp_path):
    write(tmp_path / "few.csv", [("lab", "bfloat16", 8, 8, 8, 5.0)] * 3)
    write(tmp_path / "wrong.csv", [("lab", "bfloat16", -3, 8, 8, 5.0)])
    write(tmp_path / "words.csv", [("lab", "bfloat16", 3, 8, "x", 5.0)])
    write(tmp_path / "columns.csv", [("lab", "bfloat16", 3, 8, 8, 5.0)], ("device", "dtype", "m", "n", "k", "latency"))
    (tmp_path / "text.csv.gz").write_text("no gzip")
    assert calibrate.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error and not (tmp_path / "conf").exists()
