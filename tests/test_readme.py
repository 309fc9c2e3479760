"""What the README says is true: its Python runs, its choices exist, and each limit names the test that shows it."""

import re

import pytest

from tensor_cast.paths import data_dir

README = (data_dir("conf").parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
LIMITS = re.split(r"\n- ", README.partition("## What is not modelled")[2].partition("\n## ")[0])[1:]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[2])
def test_its_python_runs(block, capsys, monkeypatch):
    from tensor_cast.performance_model import declarations

    monkeypatch.setattr(
        declarations, "_declared", {name: list(rules) for name, rules in declarations._declared.items()}
    )
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit[:40])
def test_each_limit_names_its_test(limit):
    named = re.findall(r"`(tests/[\w/]+\.py)`", limit)
    assert named and all((data_dir("conf").parent / name).is_file() for name in named)


@pytest.mark.parametrize("group", ["device", "model", "workload", "performance_model", "fusion", "custom_op"])
def test_its_table_of_choices_is_complete(group):
    (row,) = re.findall(rf"^\| `{group}` \|(.*)\|$", README, re.MULTILINE)
    for path in (data_dir("conf") / group).glob("*.yaml"):
        name = re.sub(r"_.*" if group == "device" else "$", "", path.stem)
        assert name in row or re.sub(r"\d$", "", path.stem) in row, path.stem
