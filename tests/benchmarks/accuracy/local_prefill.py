"""A Llama-8B prefill on this machine against its calibrated device: python tests/benchmarks/accuracy/local_prefill.py [TOKENS]

Where ``conf/device/local.yaml`` stands (python -m tensor_cast.calibrate data=local). Runs the real model with made-up weights (16 GB of memory).
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM

import tensor_cast
from tensor_cast.paths import data_dir

RUNS = 3


def main(tokens: int) -> None:
    text = OmegaConf.to_container(OmegaConf.load(data_dir("conf") / "model" / "llama.yaml"))
    config = LlamaConfig(**text["config"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.zeros((1, tokens), dtype=torch.int64)
    with torch.no_grad():
        simulation = tensor_cast.simulate(
            model, ids.to("meta"), device="local", kwargs={"logits_to_keep": 1, "use_cache": True}
        )
        model = model.to_empty(device="cpu")
        for parameter in (*model.parameters(), *model.buffers()):
            parameter.fill_(0.01)
        times = []
        for _ in range(RUNS + 1):
            start = time.perf_counter()
            model(ids, logits_to_keep=1, use_cache=True)
            times.append(time.perf_counter() - start)
    measured_s, predicted_s = statistics.median(times[1:]), simulation.step_time_s
    error = simulation.step_time_error or 0.0
    print(
        f"{tokens} tokens: measured {measured_s:.3f} s, predicted {predicted_s:.3f} s +- {error:.0%}, {predicted_s / measured_s - 1:+.1%}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
