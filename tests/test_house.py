"""The shape of the program: who imports whom, what stands at the top, what the guide says of our operators."""

import ast
from pathlib import Path

import pytest
import torch

import tensor_cast
import tensor_cast.ops
from tensor_cast.paths import data_dir

PACKAGE = Path(tensor_cast.__file__).parent
LAYERS = [  # each may import itself and what stands above it
    {"errors", "paths", "units", "dtypes", "efficiency", "device"},
    {"ops"},
    {"performance_model"},
    {"measurements"},
    {"tracing"},
    {"passes", "timeline", "memory"},
    {"models", "parallel"},
    {"document", "simulation"},
    {"report"},
    {"config", "refusals", "job", "search_path", "run"},
    {"commands", "calibrate", "validate"},
]


def imports(source):
    """The rooms of the package that a file imports, type checking aside."""
    tree = ast.parse(source)
    guarded = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
               for inner in ast.walk(node)}  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tensor_cast":
            names = [node.module] if "." in node.module else [f"tensor_cast.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("tensor_cast.")]
        else:
            continue
        yield from (name.split(".")[1] for name in names)


def layer(room):
    return next(number for number, rooms in enumerate(LAYERS) if room in rooms)


def upward(room, source):
    return [other for other in imports(source) if layer(other) > layer(room)]


FILES = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_room_imports_one_above_it(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert upward(room, path.read_text()) == []


def test_the_plan_can_fail():
    assert upward("ops", "from tensor_cast.report.tables import print_report") == ["report"]
    assert upward("report", "from tensor_cast import simulation") == []


def imports_hydra(source):
    return any(
        name.split(".")[0] == "hydra"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    )


def test_hydra_stays_at_the_door():
    users = {str(path.relative_to(PACKAGE)) for path in FILES if imports_hydra(path.read_text())}
    assert users == {"run.py", "refusals.py", "search_path.py"}
    assert imports_hydra("def f():\n    from hydra.errors import HydraException")
    assert not imports_hydra("from tensor_cast import hydra_like")


def test_nothing_else_stands_at_the_top():
    top = data_dir("conf").parent
    named = {path.name for path in top.iterdir() if not path.name.startswith(".")}
    assert named - {"outputs", "multirun", "build", "dist"} <= {
        "pyproject.toml", "README.md", "LICENSE", "CONTRIBUTING.md", "conf", "tensor_cast", "custom_op", "tests"
    }  # fmt: skip


def test_the_package_of_rules_is_empty_and_the_doors_are_there():
    assert (PACKAGE / "performance_model" / "__init__.py").read_text() == ""
    assert callable(tensor_cast.simulate) and callable(tensor_cast.trace) and callable(tensor_cast.price)
    assert {"simulate", "trace", "price"} <= set(tensor_cast.__all__)


def test_the_guide_lists_every_operator_with_its_schema():
    guide = (data_dir("custom_op") / "README.md").read_text()
    names = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("tensor_cast::")
    }
    assert names
    for name in names:
        schema = str(getattr(torch.ops.tensor_cast, name).default._schema).removeprefix("tensor_cast::")
        assert schema in guide, schema
        arguments = [argument.name for argument in getattr(torch.ops.tensor_cast, name).default._schema.arguments]
        (line,) = [line for line in guide.splitlines() if line.startswith(f"| {name} |")]
        assert [cell.strip() for cell in line.strip("|").split("|")][1 : len(arguments) + 1] == arguments
