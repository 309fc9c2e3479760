"""Whole steps against measured ones: python tests/benchmarks/accuracy/steps.py end_to_end.csv.gz [WORDS ...]

Two kinds of rows of such a table on one device each: steps of float32 models in eager PyTorch (source NeuSight:label; training is forward and
backward), and batches served from the first to the last token (source LLM-Inference-Bench, float16): a prefill and a decode step at the
middle of the output, once for each token of it. Prints a row each, and the mean and median error of each source and kind. The table is not
part of the project.
"""

import csv
import gzip
import statistics
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore

from tensor_cast.config import schema, validate
from tensor_cast.errors import UserError
from tensor_cast.paths import data_dir
from tensor_cast.simulation import simulate_config

DEVICES = {
    "A100-PCIE-40GB": "a100_pcie_40g", "A100-PCIE-80GB": "a100_pcie_80g", "A100-SXM4-40GB": "a100_sxm_40g", "H100-SXM5-80GB": "h100_sxm",
    "L4": "l4", "P4": "p4", "T4": "t4", "V100-PCIE-32GB": "v100", "MI100": "mi100",
}  # fmt: skip
# as NeuSight has it: wider than the model of that name in the paper
GPT3_XL = "model=gpt2_large model.config.n_embd=3072 model.config.n_layer=24 model.config.n_head=24 model.config.n_positions=2048"
MODELS = {
    "bert_large": "model=bert_large", "gpt2_large": "model=gpt2_large", "gpt3_xl": GPT3_XL, "opt_13": "model=opt_1_3b",
    "meta-llama/Meta-Llama-3-8B": "model=llama",
    "mistralai/Mistral-7B-v0.1": "model=llama model.config.vocab_size=32000",
}  # fmt: skip
KERNELS = {"vLLM": "vllm", "TensorRT-LLM": "trtllm"}


def step_s(*overrides: str) -> float:
    """The predicted seconds of one step, without its optimizer."""
    simulation = simulate_config(validate(compose("config", overrides=["report.files=false", *overrides])))
    optimizer_s = sum(row["time_s"] for row in simulation.report()["ops"] if row["phase"] == "optimizer")
    return simulation.step_time_s - optimizer_s


def eager_step_s(row: dict[str, str], device: str, model: list[str]) -> float:
    """One forward, or forward and backward, of a float32 model in eager PyTorch; attention as products and softmax."""
    train = row["kind"] == "training"
    settings = [
        f"device={device}", *model, "fusion=none", "workload=train" if train else "workload=forward", "workload.dtype=float32",
        f"workload.batch_size={int(float(row['batch']))}", f"workload.seq_len={int(float(row['in_len']))}",
        "performance_model.execution=eager", "device.fused_attention=false",
    ]  # fmt: skip
    return step_s(*settings)


def served_s(row: dict[str, str], device: str, model: list[str]) -> float:
    """From the first to the last token of a batch: a prefill, then a decode step for each token of the output."""
    batch, read, written = (int(float(row[name])) for name in ("batch", "in_len", "out_len"))
    common = [f"device={device}", *model, f"workload.batch_size={batch}", "workload.dtype=float16"]
    if KERNELS[row["framework"]] != "vllm":
        common.append(f"performance_model.kernels={KERNELS[row['framework']]}")
    prefill_s = step_s(*common, "workload=prefill", f"workload.seq_len={read}")
    decode_s = step_s(*common, "workload=decode", f"workload.context_len={read + written // 2}")
    return prefill_s + written * decode_s


def main(path: str, words: list[str]) -> None:
    with gzip.open(path, "rt") as file:
        rows = [
            row for row in csv.DictReader(file) if all(any(word in value for value in row.values()) for word in words)
        ]
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    ConfigStore.instance().store(name="schema", node=schema())
    with initialize_config_dir(str(data_dir("conf").resolve()), version_base=None):
        for row in rows:
            device, model = DEVICES.get(row["device"]), MODELS.get(row["model"])
            if device is None or model is None or float(row["n_dev"] or 1) != 1:
                continue
            measured_s = float(row["value"]) * (1e-3 if row["metric"] == "step_ms" else 1.0)
            if row["source"] == "NeuSight:label" and "fusion" not in row["note"]:
                predict = eager_step_s
            elif row["metric"] == "e2e_latency_s" and row["framework"] in KERNELS:
                predict = served_s
            else:
                continue
            try:
                predicted_s = predict(row, device, model.split())
            except UserError as error:
                print(row["device"], row["model"], f"refused: {error}")
                continue
            errors[row["source"], row["kind"], row["framework"]].append(predicted_s / measured_s - 1)
            what = f"{row['device']} {row['model']} {row['kind']} {row['framework']} batch {row['batch']}, {row['in_len']}, {row['out_len']}"
            print(
                f"{what}: measured {measured_s:.4g} s, predicted {predicted_s:.4g} s, {predicted_s / measured_s - 1:+.1%}",
                flush=True,
            )
    for (source, kind, framework), found in errors.items():
        size = [abs(error) for error in found]
        bias = statistics.mean(found)
        print(
            f"{source}, {kind}, {framework}: mean {statistics.mean(size):.1%}, median {statistics.median(size):.1%}, bias {bias:+.1%} of"
            f" {len(found)}"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
