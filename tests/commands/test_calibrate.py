"""Calibrating a device from measured times, and scoring predictions against them."""

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tensor_cast.commands import calibrate, validate
from tensor_cast.commands.fit import fit, fit_and_score, held_out_score, score
from tensor_cast.device import load_device
from tensor_cast.efficiency import DecodeEfficiency, Efficiency, ExpertEfficiency, LinkEfficiency, ProductEfficiency
from tensor_cast.measurements.files import read_measurements

TRUTH = ProductEfficiency(compute=0.7, memory=0.75, launch_s=4e-6, overlap=2.0, tile_edge=20, tile_depth=60, tile_start_s=3e-7,
                          wave_rounding=0.3, split_s=3e-6, cache_speedup=2.0)  # fmt: skip
PRODUCT = ("device", "dtype", "m", "n", "k", "latency_us")


def write(path, rows, header=PRODUCT):
    lines = "\n".join(",".join(map(str, row)) for row in (header, *rows))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


def made_up(path, header, rows, device, truth, noise=0.02):
    """A table of what a device of a known efficiency would take, with noise."""
    (table,) = read_measurements([write(path, [(*row, 1.0) for row in rows], header)])
    times = table.predicted_s(load_device(device), truth) * np.random.default_rng(0).lognormal(0, noise, len(rows))
    return write(path, [(*row, time * 1e6) for row, time in zip(rows, times, strict=True)], header)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shapes = [
        (m, n, k) for m in (1, 16, 100, 512, 3000) for n in (512, 1536, 4096, 11008) for k in (256, 1024, 4096, 8192)
    ]
    rows = [("lab", "bfloat16", *shape) for shape in shapes]
    return made_up(tmp_path / "measured.csv.gz", PRODUCT, rows, "a100_sxm_80g", TRUTH)


def test_a_known_device_is_found_again(measured):
    (table,) = read_measurements([measured])
    efficiency, unseen = fit_and_score(table, load_device("a100_sxm_80g"))
    assert unseen.mean < 0.06 and efficiency.error == round(unseen.mean, 3)
    assert score(table, load_device("a100_sxm_80g"), efficiency).mean < 0.04
    wrong = score(table, load_device("a100_sxm_80g"), replace(TRUTH, compute=0.35, memory=0.4)).mean
    assert wrong > 0.3


ATTENTION = ("device", "dtype", "kv_dtype", "kind", "phase", "causal", "batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim",
             "v_head_dim", "window", "latency_us")  # fmt: skip
LAYER = (
    "device",
    "dtype",
    "part",
    "tokens",
    "hidden",
    "inter",
    "topk",
    "experts",
    "tp",
    "ep",
    "distribution",
    "latency_us",
)
FAMILIES = {
    "decode_attention": (
        ATTENTION,
        [("lab", "bfloat16", "bfloat16", "mha_gqa", "decode", 1, b, 1, t, h, kv, d, d, 0)
         for b in (1, 8, 64) for t in (256, 2048, 16384) for h, kv in ((32, 8), (16, 16), (8, 1)) for d in (64, 128)],
        DecodeEfficiency(launch_s=6e-6, memory=0.8, tile=8.0, splits_single=False),
    ),
    "grouped_matmul": (
        LAYER,
        [("lab", "bfloat16", "full", t, h, i, k, e, 1, ep, "balanced")
         for t in (1, 32, 512, 4096) for h, i, k, e in ((4096, 14336, 2, 8), (2048, 768, 8, 128), (7168, 2048, 8, 256), (5120, 8192, 1, 16), (3072, 1024, 6, 64), (4096, 1536, 8, 128)) for ep in (1, 4)],
        ExpertEfficiency(launch_s=5e-6, compute=0.5, memory=0.8, layer_s=3e-5),
    ),
    "collective": (
        ("device", "op", "dtype", "world_size", "nodes", "bytes", "latency_us"),
        [("lab", op, "half", n, 1, 2**power) for op in ("all_reduce", "all_gather", "reduce_scatter") for n in (2, 4, 8)
         for power in range(10, 30, 2)],
        LinkEfficiency(launch_s=6e-6, step_s=1e-6, share=0.7, low_latency_share=0.2, low_latency_s=5e-7, fill_s=1e-5),
    ),
    "elementwise": (
        ("device", "op", "dtype", "rows", "cols", "bytes", "latency_us"),
        [("lab", op, "float16", rows, cols, 6 * rows * cols) for op in ("add", "mul") for rows in (1, 64, 1024, 30000)
         for cols in (256, 1000, 4096, 8192)],
        Efficiency(launch_s=3e-6, memory=0.85, cache_speedup=1.6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_found_again(family, tmp_path):
    header, rows, truth = FAMILIES[family]
    (table,) = read_measurements([made_up(tmp_path / "one.csv", header, rows, "a100_sxm_80g", truth, noise=0.01)])
    assert table.family == family and len(table) == len(rows)
    device = load_device("a100_sxm_80g")
    found = fit(table, device)
    assert type(found) is type(truth)
    assert score(table, device, found).mean < 0.05
    if family == "decode_attention":
        assert found.splits_single is False
    unseen = held_out_score(table, device)
    assert unseen is not None and unseen.mean < 0.12


def test_twenty_rows_are_enough_to_be_useful(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        ("lab", "bfloat16", m, n, k)
        for m in (1, 64, 512, 4096)
        for n, k in ((512, 512), (2048, 4096), (4096, 4096), (11008, 4096), (8192, 512))
    ]
    (table,) = read_measurements([made_up(tmp_path / "few.csv", PRODUCT, rows, "h100_sxm", TRUTH)])
    found = fit(table, load_device("h100_sxm"))
    random = np.random.default_rng(1)
    shapes = [("lab", "bfloat16", *map(int, np.exp(random.uniform(np.log(16), np.log(8192), 3)))) for _ in range(60)]
    (others,) = read_measurements([made_up(tmp_path / "others.csv", PRODUCT, shapes, "h100_sxm", TRUTH, noise=0.0)])
    assert score(others, load_device("h100_sxm"), found).mean < 0.15
    assert score(others, load_device("h100_sxm"), ProductEfficiency()).mean > 0.15


def test_the_command_writes_a_device_that_runs(measured, capsys):
    assert calibrate.main(["device=a100_sxm_80g", f"data={measured}", "name=mine"]) == 0
    assert "mean" in capsys.readouterr().out
    content = yaml.safe_load(Path("conf/device/mine.yaml").read_text())
    assert content["like"] == "a100_sxm_80g" and content["efficiency"]["matmul"]["error"] < 0.06
    assert content["sources"]["efficiency.matmul"].startswith("fitted: lab, measured, bfloat16, 80 rows")
    device = load_device("mine")
    assert device.efficiency_of("matmul", "bfloat16").error == content["efficiency"]["matmul"]["error"]
    assert device.efficiency_of("elementwise") == load_device("a100_sxm_80g").efficiency_of("elementwise")
    assert validate.main([f"data={measured}", "device=mine", "csv=scores.csv", "plot=scores.svg"]) == 0
    (row,) = csv.DictReader(Path("scores.csv").read_text().splitlines())
    assert float(row["mean"]) < 0.05 and row["num_rows"] == "80" and row["family"] == "matmul"
    assert Path("scores.svg").read_text().count("<circle") == 80
    assert calibrate.main(["device=a100_sxm_80g", f"data={measured}", "name=mine"]) == 2
    assert "exists" in capsys.readouterr().err


def test_times_below_any_hosts_are_fitted(tmp_path):
    path = write(tmp_path / "same.csv", [("lab", "bfloat16", 128, 512, 512, 9.0)] * 30)
    (table,) = read_measurements([path])
    assert score(table, load_device("h100_sxm"), fit(table, load_device("h100_sxm"))).mean < 0.01


def test_what_cannot_be_explained_is_no_device(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "seconds.csv", [("lab", "bfloat16", 10**6, 4096 + i, 4096, 1e-3) for i in range(30)])
    assert calibrate.main(["device=h100_sxm", f"data={path}", "name=wrong"]) == 2
    told = capsys.readouterr()
    assert "are its times microseconds" in told.out and "nothing was fitted" in told.err
    assert not Path("conf").exists()


def test_libraries_become_choices_of_kernels(measured, tmp_path, capsys):
    slow = replace(TRUTH, compute=0.3, memory=0.4)
    rows = [
        ("lab", "bfloat16", m, n, 1024, "x:slow-1.0")
        for m in (1, 64, 512, 3000)
        for n in (512, 1024, 2048, 4096, 8192, 11008)
    ]
    header = (*PRODUCT[:-1], "source", "latency_us")
    path = made_up(tmp_path / "slow.csv", header, rows, "a100_sxm_80g", slow)
    assert calibrate.main(["device=a100_sxm_80g", f"data={measured}", f"data={path}", "name=both"]) == 0
    device = load_device("both")
    assert "slow" in device.kernels
    chosen = device.with_kernels("slow")
    assert chosen.efficiency_of("matmul", "bfloat16").compute < 0.6 < device.efficiency_of("matmul", "bfloat16").compute
    assert chosen.efficiency_of("attention") == device.efficiency_of("attention")


def test_the_held_out_score_is_of_a_fit_that_has_not_seen_it(measured, capsys):
    assert validate.main([f"data={measured}", "device=a100_sxm_80g", "split=heldout"]) == 0
    (table,) = read_measurements([measured])
    assert 0 < table.held_out.sum() < len(table) and f" {table.held_out.sum()} " in capsys.readouterr().out
    groups = {
        (n, k): held for n, k, held in zip(table.geometry.columns, table.geometry.inner, table.held_out, strict=True)
    }
    assert all(
        groups[n, k] == held
        for n, k, held in zip(table.geometry.columns, table.geometry.inner, table.held_out, strict=True)
    )


def test_a_device_is_scored_by_what_others_were_fitted_to(measured, tmp_path, capsys):
    rows = [
        ("other", "bfloat16", m, n, k)
        for m in (1, 64, 512, 3000)
        for n in (512, 2048, 8192, 11008)
        for k in (256, 1024, 4096, 8192)
    ]
    path = made_up(tmp_path / "other.csv", PRODUCT, rows, "h100_sxm", TRUTH)
    both = tmp_path / "both.csv"
    lines = gzip.decompress(measured.read_bytes()).decode().splitlines() + path.read_text().splitlines()[1:]
    both.write_text("\n".join(lines))
    arguments = [f"data={both}", "device=lab:a100_sxm_80g,other:h100_sxm", "split=device", "csv=scores.csv"]
    assert validate.main(arguments) == 0
    scores = {row["device"]: float(row["mean"]) for row in csv.DictReader(Path("scores.csv").read_text().splitlines())}
    assert set(scores) == {"lab", "other"} and max(scores.values()) < 0.1


BAD = [
    (["device=a100_sxm_80g"], "data= is missing"),
    (["device=a100_sxm_8g", "data=measured.csv.gz"], "no device 'a100_sxm_8g'"),
    (["device=a100_sxm_80g", "data=none.csv"], "none.csv: there is no such file"),
    (["device=a100_sxm_80g", "data=measured.csv.gz", "nam=x"], "there is no argument 'nam'. Did you mean 'name'"),
    (["device=a100_sxm_80g", "data=measured.csv.gz", "name=a/b"], "a device's name is made of"),
    (["device=a100_sxm_80g", "measured.csv.gz"], "an argument reads name=value"),
    (
        ["device=a100_sxm_80g", "data=measured.csv.gz", "rows=other"],
        "no rows are left; the tables have the devices lab",
    ),
    (["device=a100_sxm_80g", "data=few.csv"], "no table has the 20 rows that a fit needs"),
    (["device=a100_sxm_80g", "data=wrong.csv"], "wrong.csv:2: m must be a number of at least 1, got '-3'"),
    (["device=a100_sxm_80g", "data=words.csv"], "words.csv:2: k must be a number of at least 1, got 'x'"),
    (["device=a100_sxm_80g", "data=columns.csv"], "are those of no known table"),
    (["device=a100_sxm_80g", "data=text.csv.gz"], "cannot be read"),
    (["device=a100_sxm_80g", "device=l4", "data=measured.csv.gz"], "device= is given 2 times"),
    (
        ["device=p100", "data=measured.csv.gz"],
        "of a family and type that device p100 has",
    ),
    (["device=a100_sxm_80g", "data=two.csv"], "several devices: lab, other; choose one with rows=DEVICE"),
    (["device=a100_sxm_80g", "data=empty"], "the folder holds no .csv or .json files"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[said for _, said in BAD])
def test_mistakes_are_told_in_a_sentence(measured, arguments, said, capsys, tmp_path):
    write(tmp_path / "few.csv", [("lab", "bfloat16", 8, 8, 8, 5.0)] * 3)
    write(tmp_path / "wrong.csv", [("lab", "bfloat16", -3, 8, 8, 5.0)])
    write(tmp_path / "words.csv", [("lab", "bfloat16", 3, 8, "x", 5.0)])
    write(tmp_path / "columns.csv", [("lab", "bfloat16", 3, 8, 8, 5.0)], ("device", "dtype", "m", "n", "k", "latency"))
    write(tmp_path / "two.csv", [("lab", "bfloat16", 8, 8, 8, 5.0), ("other", "bfloat16", 8, 8, 8, 5.0)])
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.csv.gz").write_text("no gzip")
    assert calibrate.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error and not (tmp_path / "conf").exists()
