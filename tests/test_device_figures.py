"""The figures of conf/device: each has a source, datasheets are met, orderings and physics hold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

FOLDER = Path(__file__).parents[1] / "conf" / "device"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
NOT_FIGURES = {"name", "aliases", "like", "vendor", "architecture", "sources"}
KINDS = {"datasheet", "measured", "fitted", "assumed"}
GIB = 2**30
MIB = 2**20
FP8 = "matrix_ops_per_s.float8_e4m3fn"
FP4 = "matrix_ops_per_s.float4_e2m1fn_x2"
FP16 = "matrix_ops_per_s.float16"
BF16 = "matrix_ops_per_s.bfloat16"
FP32 = "matrix_ops_per_s.float32"
INT8 = "matrix_ops_per_s.int8"
MEMORY = "memory_bytes"
BANDWIDTH = "memory_bandwidth_bytes_per_s"


def read(name: str) -> dict[str, Any]:
    """One file as it stands, nothing inherited."""
    loaded = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def merged(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    """child over parent: mappings deep, lists replaced."""
    both = dict(parent)
    for key, value in child.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def resolve(name: str) -> dict[str, Any]:
    """One file with what it inherits by `like`."""
    own = read(name)
    return merged(resolve(own["like"]), own) if "like" in own else own


def figures(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf by its dotted key; a list of links is one figure, and so are the efficiencies of a relative."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if key == "efficiency_like":
            leaves["efficiency.relative"] = value
        elif prefix or key not in NOT_FIGURES:
            leaves |= figures(value, f"{prefix}.{key}" if prefix else key)
    return leaves


def covers(source: str, figure: str) -> bool:
    """A list of links is one figure: what it is fitted to is said of a part of it."""
    return figure == source or figure.startswith(source + ".") or source == f"{figure}.efficiency"


DEVICES = {name: resolve(name) for name in NAMES}
FIGURES = {name: figures(device) for name, device in DEVICES.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_named_after_its_device(name: str) -> None:
    assert DEVICES[name]["name"] == name
    assert DEVICES[name]["vendor"] in {"nvidia", "amd", "huawei", "intel"}


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    sources = DEVICES[name]["sources"]
    assert [key for key in FIGURES[name] if not any(covers(source, key) for source in sources)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_source_names_a_figure_and_a_kind(name: str) -> None:
    for source, text in DEVICES[name]["sources"].items():
        assert any(covers(source, key) for key in FIGURES[name]), source
        kind, _, reference = text.partition(": ")
        assert kind in KINDS, text
        assert len(reference) > 10, text


@pytest.mark.parametrize("name", [name for name in NAMES if "like" in read(name)])
def test_what_a_relative_changes_it_also_sources(name: str) -> None:
    own = read(name)
    changed = {key.split(".")[0] for key in figures(own)}
    sourced = {source.split(".")[0] for source in own["sources"]}
    assert changed <= sourced


@pytest.mark.parametrize("name", [name for name in NAMES if "efficiency_like" in read(name)])
def test_a_relatives_efficiency_is_marked_as_assumed(name: str) -> None:
    assert read(read(name)["efficiency_like"])["efficiency"]
    assert DEVICES[name]["sources"]["efficiency"].startswith("assumed: ")
    from tensor_cast.device import load_device
    from tensor_cast.efficiency import FAMILIES

    for key, efficiency in load_device(name).efficiency.items():
        assert efficiency.error == FAMILIES[key.partition(".")[0]]().error, key


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_numbers_in_their_range(name: str) -> None:
    device = DEVICES[name]
    for key, value in FIGURES[name].items():
        if key in {"interconnect", "fused_attention", "efficiency.relative"} or (
            isinstance(value, bool) and key.startswith(("efficiency", "kernels"))
        ):
            continue
        assert isinstance(value, int | float) and not isinstance(value, bool), (key, value)
        assert value > 0 or (value == 0 and key.startswith(("efficiency", "kernels"))), key
    for key in ("memory_bytes", "cache_bytes", "num_cores"):
        assert isinstance(device[key], int), key
    assert isinstance(device["fused_attention"], bool)
    assert 1e-7 < device["launch_s"] < 1e-4
    assert 1e8 < device["context_bytes"] < 4e9


@pytest.mark.parametrize("name", NAMES)
def test_links_go_from_near_to_far(name: str) -> None:
    links = DEVICES[name]["interconnect"]
    assert links
    for link in links:
        assert set(link) - {"efficiency"} == {"name", "num_devices", "bandwidth_bytes_per_s", "latency_s", "topology"}
        assert link["topology"] in {"switch", "mesh", "ring", "pcie"}
        assert 5e-7 <= link["latency_s"] <= 1e-4
    for near, far in pairwise(links):
        assert near["num_devices"] < far["num_devices"]
        assert near["bandwidth_bytes_per_s"] >= far["bandwidth_bytes_per_s"]
        assert near["latency_s"] <= far["latency_s"]
    assert links[0]["bandwidth_bytes_per_s"] < DEVICES[name]["memory_bandwidth_bytes_per_s"]


# Dense peaks and memory as the datasheets print them; where they print sparse figures, half of those.
DATASHEET = [
    ("ascend910b", FP16, 376e12),  # the speed that is meant where none is named
    ("ascend910b", INT8, 752e12),
    ("ascend910b2", BF16, 24 * 8192 * 1.8e9),  # 24 cores, 16 x 16 x 16 multiply-adds a cycle
    ("ascend910b1", BF16, 24 * 8192 * 1.85e9),
    ("ascend910b3", FP16, 313e12),
    ("ascend910b3", BF16, 20 * 8192 * 1.8e9),
    ("ascend910b4", FP16, 280e12),
    ("ascend910b4", BF16, 20 * 8192 * 1.5e9),
    ("ascend910b4", MEMORY, 32 * GIB),
    ("ascend910b4", BANDWIDTH, 0.8e12),
    ("ascend910b2", BANDWIDTH, 1.6e12),
    ("ascend910b2", "cache_bytes", 192 * MIB),
    ("ascend910c", BF16, 752e12 / 2),  # one of two dies
    ("ascend910c", MEMORY, 64 * GIB),
    ("a100_sxm_80g", BF16, 312e12),
    ("a100_sxm_80g", FP32, 19.5e12),
    ("a100_sxm_80g", "matrix_ops_per_s.tfloat32", 156e12),
    ("a100_sxm_80g", BANDWIDTH, 2.039e12),
    ("a100_sxm_80g", MEMORY, 80 * GIB),
    ("a100_sxm_80g", "num_cores", 108),
    ("a100_sxm_40g", BANDWIDTH, 1.555e12),
    ("a100_pcie_40g", MEMORY, 40 * GIB),
    ("a100_pcie_80g", BANDWIDTH, 1.935e12),
    ("h100_sxm", BF16, 1979e12 / 2),
    ("h100_sxm", FP8, 3958e12 / 2),
    ("h100_sxm", "vector_ops_per_s.float32", 67e12),
    ("h100_sxm", BANDWIDTH, 3.35e12),
    ("h100_sxm", "num_cores", 132),
    ("h100_pcie", BF16, 1513e12 / 2),
    ("h100_pcie", BANDWIDTH, 2.0e12),
    ("h100_pcie", "num_cores", 114),
    ("h200_sxm", BF16, 1979e12 / 2),
    ("h200_sxm", BANDWIDTH, 4.8e12),
    ("h200_sxm", MEMORY, 141 * GIB),
    ("h800", BF16, 1979e12 / 2),
    ("h800", "matrix_ops_per_s.float64", 1e12),
    ("h20", BF16, 148e12),
    ("h20", FP8, 296e12),
    ("h20", BANDWIDTH, 4.0e12),
    ("h20", MEMORY, 96 * GIB),
    ("b200", BF16, 36e15 / 8 / 2),  # HGX B200: 36 PFLOP/s sparse for eight
    ("b200", FP8, 72e15 / 8 / 2),
    ("b200", FP4, 144e15 / 8 / 2),
    ("b200", MEMORY, 180 * GIB),
    ("gb200", FP4, 1440e15 / 72 / 2),  # NVL72: 1440 PFLOP/s sparse for seventy-two
    ("gb200", BANDWIDTH, 576e12 / 72),
    ("l4", BF16, 242e12 / 2),
    ("l4", FP8, 485e12 / 2),
    ("l4", BANDWIDTH, 300e9),
    ("l40s", BF16, 362.05e12),
    ("l40s", FP8, 1466e12 / 2),
    ("l40s", BANDWIDTH, 864e9),
    ("t4", FP16, 65e12),
    ("t4", INT8, 130e12),
    ("t4", BANDWIDTH, 320e9),
    ("v100", FP16, 112e12),
    ("v100", FP32, 14e12),
    ("v100", BANDWIDTH, 900e9),
    ("v100_sxm", FP16, 125e12),
    ("p100", "vector_ops_per_s.float16", 18.7e12),
    ("p100", BANDWIDTH, 732e9),
    ("p4", FP32, 5.5e12),
    ("p4", INT8, 22e12),
    ("p4", "vector_ops_per_s.float16", 5.5e12 / 64),
    ("rtx4090", BF16, 165.2e12),  # float32 accumulation
    ("rtx4090", BANDWIDTH, 1.008e12),
    ("rtx_pro_6000", FP4, 4030e12 / 2),
    ("rtx_pro_6000", BANDWIDTH, 1.792e12),
    ("mi100", FP16, 184.6e12),
    ("mi100", BF16, 92.3e12),
    ("mi210", BF16, 181e12),
    ("mi250", BF16, 362.1e12 / 2),  # one of two dies
    ("mi250", MEMORY, 64 * GIB),
    ("mi300x", BF16, 1307.4e12),
    ("mi300x", "matrix_ops_per_s.float8_e4m3fnuz", 2614.9e12),
    ("mi300x", BANDWIDTH, 5.325e12),
    ("mi355x", BF16, 2.5e15),
    ("mi355x", FP4, 10.1e15),
    ("mi355x", MEMORY, 288 * GIB),
    ("b60", INT8, 197e12),
    ("b60", BF16, 197e12 / 2),
    ("b60", BANDWIDTH, 456e9),
]


@pytest.mark.parametrize(("name", "key", "expected"), DATASHEET)
def test_figures_are_those_of_the_datasheet(name: str, key: str, expected: float) -> None:
    assert FIGURES[name][key] == pytest.approx(expected, rel=0.01)


NEAREST_LINK = [  # per device and direction: half of what datasheets print
    ("a100_sxm_80g", 600e9 / 2),
    ("h100_sxm", 900e9 / 2),
    ("h800", 400e9 / 2),
    ("h20", 900e9 / 2),
    ("b200", 1800e9 / 2),
    ("gb200", 1800e9 / 2),
    ("v100_sxm", 300e9 / 2),
    ("ascend910b", 392e9 / 2),
    ("mi300x", 7 * 128e9 / 2),
    ("l4", 31.5e9),
    ("t4", 15.75e9),
]


@pytest.mark.parametrize(("name", "expected"), NEAREST_LINK)
def test_link_bandwidth_is_of_one_direction(name: str, expected: float) -> None:
    assert DEVICES[name]["interconnect"][0]["bandwidth_bytes_per_s"] == pytest.approx(expected, rel=0.01)


ORDERINGS = [  # slower < faster
    (BF16, "a100_sxm_80g", "h100_pcie", "h100_sxm", "b200", "gb200"),
    (BF16, "l4", "h20", "rtx4090", "a100_sxm_80g", "l40s", "rtx_pro_6000", "h100_pcie"),
    (BF16, "ascend910b4", "ascend910b3", "ascend910b2", "ascend910b1"),
    (BF16, "mi100", "mi210", "mi300x", "mi355x"),
    (FP16, "p4", "p100", "t4", "v100", "v100_sxm", "a100_sxm_80g", "h100_sxm"),
    (FP8, "b60", "l4", "h20", "rtx4090", "l40s", "h100_sxm", "b200"),
    (FP4, "rtx_pro_6000", "b200", "gb200"),
    (FP32, "p4", "t4", "p100", "v100", "a100_sxm_80g", "l4", "h100_sxm"),
    (BANDWIDTH, "p4", "l4", "t4", "b60", "p100", "l40s", "v100", "rtx4090", "a100_sxm_40g", "a100_sxm_80g"),
    (BANDWIDTH, "a100_sxm_80g", "h100_sxm", "h20", "h200_sxm", "b200"),
    (BANDWIDTH, "ascend910b4", "ascend910b3"),
    (BANDWIDTH, "mi100", "mi210", "mi300x", "mi355x"),
    (MEMORY, "p4", "t4", "l4", "a100_sxm_40g", "l40s", "a100_sxm_80g", "h20", "h200_sxm", "b200", "mi300x", "mi355x"),
    ("cache_bytes", "p4", "p100", "v100", "a100_sxm_80g", "h100_sxm", "b200"),
]


@pytest.mark.parametrize("ordering", ORDERINGS, ids=lambda ordering: f"{ordering[0]}-{ordering[1]}")
def test_devices_stand_in_order(ordering: tuple[str, ...]) -> None:
    key, *names = ordering
    values = [FIGURES[name][key] for name in names]
    assert values == sorted(set(values)), dict(zip(names, values, strict=True))


def test_equal_silicon_has_equal_peaks() -> None:
    assert DEVICES["h200_sxm"]["matrix_ops_per_s"] == DEVICES["h100_sxm"]["matrix_ops_per_s"]
    assert DEVICES["ascend910b"]["matrix_ops_per_s"] == DEVICES["ascend910b2"]["matrix_ops_per_s"]
    for name in ("a100_sxm_40g", "a100_pcie_40g", "a100_pcie_80g"):
        assert DEVICES[name]["matrix_ops_per_s"] == DEVICES["a100_sxm_80g"]["matrix_ops_per_s"]


@pytest.mark.parametrize("name", NAMES)
def test_narrower_types_are_no_slower_on_matrix_units(name: str) -> None:
    matrix, vector = DEVICES[name]["matrix_ops_per_s"], DEVICES[name]["vector_ops_per_s"]
    chains = [
        ("float32", "tfloat32", "float16", "int8", "int4"),
        ("float64", "float32", "bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2"),
        ("bfloat16", "float8_e4m3fnuz"),
    ]
    for chain in chains:
        present = [matrix[dtype] for dtype in chain if dtype in matrix]
        assert present == sorted(present), chain
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        if dtype in matrix and dtype in vector:
            assert matrix[dtype] >= vector[dtype], dtype
    for e4m3, e5m2 in (("float8_e4m3fn", "float8_e5m2"), ("float8_e4m3fnuz", "float8_e5m2fnuz")):
        assert matrix.get(e4m3) == matrix.get(e5m2)


ABSENT = [  # what the hardware lacks is not there, so that asking for it is an error
    ("bfloat16", ["v100", "v100_sxm", "t4", "p100", "p4"]),
    ("tfloat32", ["v100", "t4", "p100", "p4", "mi210", "mi355x", "ascend910b"]),
    ("float8_e4m3fn", ["a100_sxm_80g", "t4", "v100", "mi210", "mi300x", "ascend910b", "ascend910c"]),
    ("int4", ["h100_sxm", "h200_sxm", "b200", "rtx_pro_6000"]),
    ("float4_e2m1fn_x2", ["h100_sxm", "l40s", "mi300x", "ascend910b"]),
    ("float64", ["ascend910b", "b60"]),
    ("int8", ["v100", "v100_sxm", "p100"]),
]


@pytest.mark.parametrize(("dtype", "names"), ABSENT)
def test_what_a_device_lacks_is_absent(dtype: str, names: list[str]) -> None:
    assert [name for name in names if dtype in DEVICES[name]["matrix_ops_per_s"]] == []


MEASURED = [  # the best that public timings show; no peak may be lower
    ("a100_sxm_80g", BF16, 299.0e12),
    ("a100_pcie_40g", FP32, 17.6e12),
    ("h100_sxm", BF16, 956.0e12),
    ("h100_sxm", FP8, 1566.5e12),
    ("h20", FP8, 281.7e12),
    ("l40s", BF16, 289.8e12),
    ("b60", BF16, 98.2e12),
    ("b60", FP8, 98.3e12),
    ("b60", BANDWIDTH, 455e9),
    ("v100", FP32, 14.0e12),
    ("ascend910b", BF16, 327e12),
    ("ascend910b", INT8, 593e12),
    ("mi355x", BF16, 1596.6e12),
    ("mi355x", FP4, 5751.7e12),
]


@pytest.mark.parametrize(("name", "key", "reached"), MEASURED)
def test_no_peak_is_below_what_was_measured(name: str, key: str, reached: float) -> None:
    assert reached <= FIGURES[name][key]


def test_attention_is_fused_where_a_kernel_exists() -> None:
    assert [name for name in NAMES if not DEVICES[name]["fused_attention"]] == ["mi100", "p100", "p4"]
