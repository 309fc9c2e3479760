"""The files of a run: valid, complete, and all of them or none."""

import csv
import errno
import io
import json
import os
import time

import pytest

from tensor_cast.errors import UserError
from tensor_cast.report.files import csv_text, readable_json, write_all, write_files
from tensor_cast.report.perfetto import chrome_trace

NAMES = ["report.json", "ops.csv", "trace.json", "registry.csv"]
AWKWARD = 'a,"b"\r\nc\rd\n\u7b97\u5b50'


def contents(folder):
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_the_four_files_are_written_into_a_new_folder(tmp_path, made_up):
    paths = write_files(made_up.Simulation(events=made_up.events(3)), tmp_path / "a" / "b")
    assert [path.name for path in paths] == NAMES
    assert sorted(contents(tmp_path / "a" / "b")) == sorted(NAMES)


def test_report_json_is_the_document_in_short_lines(tmp_path, made_up, document):
    write_files(made_up.Simulation(), tmp_path)
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    assert json.loads(text) == document
    assert ' "step_time_s": 0.1,\n' in text
    assert sum('"op": "aten.mm.default", "module": "model' in line for line in text.split("\n")) == 2


def test_ops_csv_reads_back(tmp_path, made_up, document):
    document["ops"][0].update(op=AWKWARD, note="more")
    write_files(made_up.Simulation(document), tmp_path)
    with open(tmp_path / "ops.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(document["ops"])
    assert list(rows[0])[:5] == ["op", "module", "phase", "calls", "time_s"]
    assert (rows[0]["op"], rows[0]["note"], rows[1]["note"]) == (AWKWARD, "more", "")
    assert [float(row["time_s"]) for row in rows] == [row["time_s"] for row in document["ops"]]
    assert rows[0]["shapes"] == "bf16[4096, 4096]; bf16[4096, 14336]"
    assert rows[4]["rule"] == ""


def test_registry_csv_has_its_columns_even_without_rows(tmp_path, made_up):
    write_files(made_up.Simulation(), tmp_path)
    with open(tmp_path / "registry.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["file"] == "my, ops.py"
    assert csv_text([], ("rule", "operator")) == "rule,operator\n"


def test_csv_cells_are_plain_values():
    rows = [{"a": True, "b": None, "c": 1e-7}, {"a": 3, "d": {"k": [1]}}]
    assert list(csv.reader(io.StringIO(csv_text(rows)))) == [
        ["a", "b", "c", "d"],
        ["true", "", "1e-07", ""],
        ["3", "", "", '{"k": [1]}'],
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_file_holds_what_is_no_number(value):
    with pytest.raises(AssertionError):
        readable_json({"step_time_s": value})
    with pytest.raises(AssertionError):
        readable_json({"ops": [{"time_s": value}] * 20})
    with pytest.raises(AssertionError):
        csv_text([{"time_s": value}])
    with pytest.raises(AssertionError):
        chrome_trace([], [(value, 1)])


@pytest.mark.parametrize(
    "value", [{}, [], {"a": {}}, {"a": []}, {1: {None: [1] * 60}}, {"a": {"b": {"c": ["x" * 60] * 3}}}, "\udc80", 1.5]
)
def test_readable_json_says_what_json_says(value, tmp_path):
    write_all(tmp_path, {"a.json": readable_json(value)})
    assert json.loads((tmp_path / "a.json").read_bytes()) == json.loads(json.dumps(value))


def test_a_file_in_the_way_of_the_folder_is_a_users_mistake(tmp_path, made_up):
    (tmp_path / "run").write_text("mine")
    for folder in (tmp_path / "run", tmp_path / "run" / "deeper"):
        with pytest.raises(UserError, match=r"run.*a folder is needed but a file has its name.*hydra\.run\.dir"):
            write_files(made_up.Simulation(), folder)
    assert contents(tmp_path) == {"run": "mine"}


def test_a_folder_in_the_way_of_a_file_leaves_the_rest_as_it_was(tmp_path):
    (tmp_path / "b.csv").mkdir()
    (tmp_path / "a.csv").write_text("old")
    with pytest.raises(UserError, match=r"b\.csv.*a folder has its name"):
        write_all(tmp_path, {"a.csv": "new", "b.csv": "new"})
    assert (tmp_path / "a.csv").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full. Free some space"),
        (errno.EACCES, "permission is lacking"),
        (errno.EROFS, "permission is lacking"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_half_way_leaves_the_old_files(tmp_path, monkeypatch, number, words, links, failing):
    old = {"a.csv": "old a", "c.csv": "old c"}
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    calls = iter(range(99))
    replace = os.replace

    def failing_replace(source, target):
        if next(calls) == failing:
            raise OSError(number, os.strerror(number))
        replace(source, target)

    def no_links(source, target):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "replace", failing_replace)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(UserError) as caught:
        write_all(tmp_path, {"a.csv": "new", "b.csv": "new", "c.csv": "new"})
    assert words in str(caught.value)
    assert str(tmp_path / "abc"[failing]) in str(caught.value)
    assert contents(tmp_path) == old


def test_an_interrupt_leaves_the_old_files(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("old")

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_all(tmp_path, {"a.csv": "new"})
    assert contents(tmp_path) == {"a.csv": "old"}


def test_a_second_run_replaces_the_files(tmp_path):
    write_all(tmp_path, {"a.csv": "1", "b.csv": "1"})
    write_all(tmp_path, {"a.csv": "2", "b.csv": "2"})
    assert contents(tmp_path) == {"a.csv": "2", "b.csv": "2"}


def test_the_trace_names_streams_and_places_ops_in_microseconds():
    event = {
        "name": 'x"y', "module": "a.b", "phase": "forward", "stream": "communication", "start_s": 2e-6,
        "duration_s": 1.5e-6, "bound": "given", "priced_by": "override", "rule": None, "shapes": ["f32[2]", "f32[3]"],
    }  # fmt: skip
    trace = json.loads(chrome_trace([event, {**event, "stream": "other"}], [(0.0, 0), (1e-6, 7)], "t"))
    by_kind = {}
    for row in trace["traceEvents"]:
        by_kind.setdefault(row["ph"], []).append(row)
    assert [row["args"].get("name") for row in by_kind["M"]] == ["t", "communication", None, "other", None]
    first = by_kind["X"][0]
    assert (first["ts"], first["dur"], first["name"], first["cat"]) == (2.0, 1.5, 'x"y', "forward")
    assert first["args"] == {
        "op": 'x"y', "module": "a.b", "phase": "forward", "bound": "given", "priced_by": "override", "rule": None,
        "shapes": "f32[2], f32[3]",
    }  # fmt: skip
    assert [(row["ts"], row["name"], row["args"]) for row in by_kind["C"]] == [
        (0.0, "memory", {"live_bytes": 0}),
        (1.0, "memory", {"live_bytes": 7}),
    ]


def test_neighbours_on_a_stream_never_overlap(made_up):
    trace = json.loads(chrome_trace(made_up.events(5000, duration_s=1e-5 / 7), []))
    ops = [row for row in trace["traceEvents"] if row["ph"] == "X"]
    ends_ns = [round(1000 * row["ts"]) + round(1000 * row["dur"]) for row in ops]
    starts_ns = [round(1000 * row["ts"]) for row in ops]
    assert all(end <= start for end, start in zip(ends_ns, starts_ns[1:], strict=False))


def test_an_empty_trace_is_a_trace():
    assert json.loads(chrome_trace([], []))["traceEvents"]


def test_a_large_models_files_are_written_fast(tmp_path, made_up):
    # 2,400 ops; 30 ms on an idle core, five times that before a busy one fails.
    simulation = made_up.Simulation(events=made_up.events(2400), memory_timeline=[(i * 1e-6, i) for i in range(4800)])
    start = time.perf_counter()
    write_files(simulation, tmp_path)
    assert time.perf_counter() - start < 0.15
