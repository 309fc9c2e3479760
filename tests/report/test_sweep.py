"""A sweep's summary: joined columns, the best marked, the failed explained, both files or none."""

import csv
import io
import json

import pytest
from rich.console import Console

from tensor_cast.errors import UserError
from tensor_cast.report.sweep import columns_of, print_sweep, sweep_row, write_sweep


def printed(rows, width=200):
    file = io.StringIO()
    print_sweep(rows, Console(file=file, width=width))
    return file.getvalue()


def job(device, step_time_s, peak_bytes=2**30, fits=True, **swept):
    document = {"step_time_s": step_time_s, "memory": {"peak_bytes": peak_bytes, "fits": fits}}
    return sweep_row({"device": device, **swept}, document)


FAILED = sweep_row({"device": "h1000"}, None, "user error", "device=h1000:\n no such device.\tDid you mean 'h100'?")


def test_the_table_joins_the_jobs():
    assert printed([job("slow", 0.2), job("fast", 0.1, **{"workload.seq_len": 7}), FAILED]) == (
        "job  device  workload.seq_len  status      step time      peak  fits\n"
        "--------------------------------------------------------------------\n"
        "  0  slow    -                 ok             200 ms  1.00 GiB  yes\n"
        "  1  fast    7                 ok            100 ms*  1.00 GiB  yes\n"
        "  2  h1000   -                 user error          -         -  -\n"
        "* best of the jobs that are ok and fit in memory\n"
        "job 2, user error: device=h1000: no such device. Did you mean 'h100'?\n"
    )


def test_an_error_stands_beside_its_time():
    document = {"step_time_s": 0.1, "step_time_error": 0.05}
    row = sweep_row({"device": "fitted"}, document)
    assert row["step_time_error"] == 0.05 and "100 ms ± 5.0%" in printed([row, job("slow", 0.2)])


def test_swept_keys_stand_first_and_in_order_of_appearance():
    rows = [{"b": 1, "status": "ok", "x_s": 1.0}, {"b": 1, "a": 2, "status": "ok", "y": None}]
    assert columns_of(rows) == (["b", "a"], ["status", "x_s", "y"])


def test_a_job_that_does_not_fit_is_not_the_best():
    lines = printed([job("a", 0.1, fits=False), job("b", 0.2), job("c", 0.3)]).split("\n")
    assert [line.count("ms*") for line in lines[2:5]] == [0, 1, 0]


@pytest.mark.parametrize("rows", [[job("a", 0.1)], [job("a", 0.1), job("b", 0.1)], [FAILED], [FAILED, job("a", 0.1)]])
def test_nothing_is_best_where_there_is_nothing_to_compare(rows):
    assert "*" not in printed(rows)


def test_a_wide_table_goes_on_below():
    rows = [job("a", 0.1, **{f"workload.some_long_key_{i}": i for i in range(6)}), FAILED]
    text = printed(rows, width=80)
    assert max(map(len, text.split("\n"))) <= 80
    assert text.count("job ") >= 3


def test_a_sweep_without_jobs_says_so():
    assert printed([]) == "The sweep has no jobs.\n"


def test_the_files_hold_all_rows_with_all_columns(tmp_path):
    rows = [job("a,\n\u7b97", 0.1), job("b", 0.2, **{"workload.seq_len": 7}), FAILED]
    paths = write_sweep(rows, tmp_path / "sweep")
    assert [path.name for path in paths] == ["sweep.csv", "sweep.json"]
    with open(paths[0], encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    documents = json.loads(paths[1].read_text(encoding="utf-8"))
    assert [row["device"] for row in table] == [row["device"] for row in documents] == ["a,\n\u7b97", "b", "h1000"]
    assert {tuple(row) for row in documents} == {tuple(table[0])}
    assert (table[1]["workload.seq_len"], table[1]["fits"], table[0]["workload.seq_len"]) == ("7", "true", "")
    assert documents[2]["reason"] == FAILED["reason"]
    assert documents[2]["step_time_s"] is None


def test_the_files_are_both_written_or_neither(tmp_path):
    (tmp_path / "sweep.json").mkdir()
    (tmp_path / "sweep.csv").write_text("old")
    with pytest.raises(UserError, match=r"sweep\.json"):
        write_sweep([job("a", 0.1)], tmp_path)
    assert (tmp_path / "sweep.csv").read_text() == "old"
    with pytest.raises(AssertionError):
        write_sweep([job("a", float("nan"))], tmp_path / "new")
    assert not (tmp_path / "new").exists()
