"""The report for a person: one golden text, and what must hold for documents of every kind."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tensor_cast.report.layout import break_name
from tensor_cast.report.tables import print_report

GOLDEN = Path(__file__).with_name("report.txt")
FILES = [Path("/runs") / ("long" * 20) / name for name in ("report.json", "ops.csv")]


def printed(document, width=80, top=10, files=(), encoding="utf-8", terminal=False):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    print_report(document, top, files, Console(file=file, width=width, force_terminal=terminal))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_report_reads_as_the_golden_text(document):
    assert printed(document, files=FILES) == GOLDEN.read_text(encoding="utf-8")


def test_the_plain_report_is_ascii_without_codes_and_80_columns_wide(document):
    lines = printed(document).split("\n")
    assert all(re.fullmatch(r"[ -~]*", line) and line == line.rstrip() for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_terminal_gets_bold_titles(document):
    assert "\x1b[1m" in printed(document, terminal=True)


def test_equal_ops_of_other_shapes_are_one_row(document):
    row = next(line for line in printed(document, width=160).split("\n") if "aten.mm.default" in line)
    assert row.split()[:5] == ["60.0", "ms", "60.0%", "64", "mma"]


def test_the_table_of_ops_stops_at_top(document):
    text = printed(document, top=1)
    assert "Top ops by time (1 of 4)" in text
    assert "flash_attention" not in text


@pytest.mark.parametrize("width", [72, 80, 120, 200])
def test_no_letter_of_a_name_is_lost(document, width):
    letters = re.sub(r"\s", "", printed(document, width=width).split("Top ops")[1].split("Priced by")[0])
    assert "..." not in letters
    for piece in ("flash_", "attention_", "cpu.", "self_attn", "up_proj", "mylib.", "odd[x]."):
        assert piece in letters


def test_the_step_says_how_sure_it_is_and_what_it_waits_for(document):
    assert "100 ms\n" in printed(document)
    assert "100 ms ± 9.0%\n" in printed(document | {"step_time_error": 0.09})
    waiting = document | {"step_time_error": 0.125, "host_wait_s": 0.02}
    assert "100 ms ± 12.5%, 20.0 ms of it waiting for the host" in printed(waiting)


def test_what_does_not_fit_says_by_how_much(document):
    document["memory"].update(fits=False, capacity_bytes=20 * 2**30)
    assert "DOES NOT FIT: 4.00 GiB too much." in printed(document)


def test_more_than_one_phase_is_told_apart(document):
    document["ops"][2]["phase"] = "backward"
    text = printed(document)
    assert "By phase: forward 70.0%, backward 30.0%." in text
    assert "(backward)" in text


def test_an_overlap_is_told(document):
    document["step_time_s"] = 0.08
    assert "Ops take 100 ms in all, the step 80.0 ms." in printed(document)


def test_a_document_of_nulls_prints(document):
    assert printed(dict.fromkeys(document)) == "step time  -\n"
    assert printed({}) == "step time  -\n"


@pytest.mark.parametrize("part", ["workload", "totals", "memory", "coverage", "time_by_bound_s", "rules"])
def test_a_part_of_nulls_prints(document, part):
    document[part] = dict.fromkeys(document[part])
    assert "100 ms" in printed(document)


def test_rows_of_nulls_print(document):
    document["ops"] = [dict.fromkeys(row) for row in document["ops"]]
    document["memory"]["at_peak"] = [{"bytes": None}]
    assert "Top ops by time (1 of 1)" in printed(document)


def test_names_are_shown_as_they_are(document):
    document["ops"][0].update(op="lib.[red]a:smile:", module="\x1b[31mevil\nline")
    text = printed(document, width=160)
    assert "lib.[red]a:smile:" in text
    assert "\\x1b[31mevil\\nline" in text


def test_an_encoding_without_the_letters_shows_escapes(document):
    document["ops"][0]["op"] = "lib.\u7b97\u5b50"
    assert "lib.\\u7b97\\u5b50" in printed(document, width=160, encoding="ascii")
    assert "lib.\u7b97\u5b50" in printed(document, width=160)


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("a.b", 9, "a.b"),
        ("model.layers.*.mlp.up_proj", 20, "model.layers.*.mlp.\nup_proj"),
        ("aten._scaled_dot_product.default", 14, "aten._scaled_\ndot_product.\ndefault"),
        ("", 5, ""),
    ],
)
def test_a_name_breaks_behind_its_dots(name, width, lines):
    assert break_name(name, width) == lines


def test_the_package_loads_neither_torch_nor_rich():
    code = (
        "import sys, tensor_cast.report.tables, tensor_cast.report.sweep; print({'torch', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_standard_output_is_80_columns_wide_where_it_is_no_terminal(document, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_report(document, 10, FILES)
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "30")
    print_report(document, 10, ())
    assert max(map(len, capsys.readouterr().out.split("\n"))) <= 72
