"""Fits the shipped devices to public tables of measured times: python tests/benchmarks/accuracy/fit_profiles.py FOLDER [DEVICE ...]

Writes what it fits into conf/device/DEVICE.yaml: the keys efficiency, kernels and the first level of links, with their sources; all else
stays as it is. The tables are not part of the project; ``tensor_cast.measurements.csv_tables`` says what columns they have.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import yaml

from tensor_cast.commands.calibrate import assembled, efficiency_values, fit_tables, links_with, source_words
from tensor_cast.device import load_device
from tensor_cast.measurements.files import read_measurements

CONF = Path(__file__).resolve().parents[3] / "conf" / "device"
# device -> its name in the tables, and the library that is its own (the others become choices of kernels)
DEVICES = {
    "h100_sxm": ("H100-SXM5-80GB", "vllm"),
    "a100_sxm_80g": ("A100-SXM4-80GB", "vllm"),
    "l40s": ("L40S", "vllm"),
    "ascend910b": ("Ascend-910B", "vllm-ascend"),
    "b60": ("Intel-Arc-Pro-B60", "vllm"),
    "mi355x": ("MI355X", "aiter"),
    "h20": ("H20", "InferSim"),
    "h800": ("H800-SXM", "InferSim"),
    "a100_pcie_40g": ("A100-PCIE-40GB", "NeuSight"),
    "a100_pcie_80g": ("A100-PCIE-80GB", "SimuMax"),
    "v100": ("V100-PCIE-32GB", "NeuSight"),
    "t4": ("T4", "NeuSight"),
    "l4": ("L4", "NeuSight"),
    "p4": ("P4", "NeuSight"),
}
# rows that beat the memory's bandwidth
BEYOND_PHYSICS = ("trtllm-1.0.0", ("decode_attention", "latent_attention"))


def usable(table) -> bool:
    """Kernels of the types that a program names: no narrower cache or weights than the activations, no eager harness."""
    if BEYOND_PHYSICS[0] in table.source and table.family in BEYOND_PHYSICS[1]:
        return False
    if table.family == "latent_attention" and "vllm-0.14" in table.source:
        return False  # its launches of 140 us and more are the host's
    if table.family == "collective":
        return table.words == "one node"
    if "modeloptfp8moe_flashinfer" in table.words:
        return False  # an untuned kernel, three times as slow as the library's other one
    words = table.words.split(" ")
    other_cache = "attention" in table.family and words[-1] != words[2]
    return not other_cache and not any(word in table.words for word in ("_wo", "w4a16"))


def main(folder: str, names: list[str]) -> None:
    tables = [
        table for table in read_measurements([folder_file for folder_file in kernels_in(folder)]) if usable(table)
    ]
    for name in names or DEVICES:
        measured, own = DEVICES[name]
        device = load_device(name)
        print(f"{name}:")
        fits = fit_tables([table for table in tables if table.device == measured], device)
        write(name, device, {own: fits[own], **fits})


def kernels_in(folder: str) -> list[Path]:
    return [path for path in sorted(Path(folder).glob("*.csv.gz")) if not path.name.startswith("end_to_end")]


def write(name: str, device, fits) -> None:
    """Replaces the top-level blocks of the file that the fits make."""
    path = CONF / f"{name}.yaml"
    blocks = re.split(r"(?m)^(?=[a-z_]+:)", path.read_text(encoding="utf-8"))
    head, rest = blocks[0], {block.partition(":")[0]: block for block in blocks[1:]}
    own, kernels = assembled(fits)
    links = own.pop("collective", None)
    sources = yaml.safe_load(rest.pop("sources", "sources: {}"))["sources"] or {}
    sources = {
        key: text
        for key, text in sources.items()
        if not key.startswith(("efficiency", "kernels", "interconnect.efficiency"))
    }
    sources |= {f"efficiency.{key}": source_words(fit) for key, fit in own.items()}
    rest.pop("kernels", None)
    rest.pop("efficiency", None)
    if links:
        rest["interconnect"] = "interconnect:\n" + "".join(
            f"  - {flow(level)}\n" for level in links_with(device, links.efficiency)
        )
        sources["interconnect.efficiency"] = source_words(links)
    rest["efficiency"] = "efficiency:\n" + lines(
        {key: efficiency_values(fit.efficiency) for key, fit in own.items()}, "  "
    )
    rest["kernels"] = "kernels:\n" + "".join(
        f"  {library}:"
        + ("\n" + lines({k: efficiency_values(f.efficiency) for k, f in by_key.items()}, "    ") if by_key else " {}\n")
        for library, by_key in kernels.items()
    )
    sources |= {
        f"kernels.{lib}.{key}": source_words(fit) for lib, by_key in kernels.items() for key, fit in by_key.items()
    }
    rest["sources"] = yaml.safe_dump({"sources": sources}, sort_keys=False, width=118)
    path.write_text(head + "".join(rest.values()), encoding="utf-8")


def flow(values: dict) -> str:
    return yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10**6).strip()


def lines(by_key: dict, indent: str) -> str:
    """One flow mapping a key, broken at 118 columns."""
    text = ""
    for key, values in by_key.items():
        words = f"{indent}{key}: {flow(values)}"
        while len(words) > 118:
            cut = words.rfind(", ", 0, 117) + 1
            text, words = text + words[:cut] + "\n", indent + "  " + words[cut:].strip()
        text += words + "\n"
    return text


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
