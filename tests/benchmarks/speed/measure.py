"""Speed, as paired ratios in one run: ``python tests/benchmarks/speed/measure.py [pairs]``.

- the whole command against its floor: a script that imports torch and the model's class, builds it on meta and runs one
  bare forward;
- tracing against the bare forward of the same model on meta;
- pricing one more device, and what a sweep adds to a job.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FLOOR = """
import yaml, torch
from transformers import {cls}, AttentionInterface
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
config = yaml.safe_load(open({path!r}))["config"]
config = CONFIG_MAPPING[config.pop("model_type")](**config)
torch.set_default_dtype(torch.bfloat16)
with torch.device("meta"):
    model = {cls}(config).eval()
def attention(module, q, k, v, mask, **kwargs):
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]), None
AttentionInterface.register("stub", attention)
model.set_attn_implementation("stub")
with torch.no_grad():
    model(torch.zeros(1, 1024, dtype=torch.long, device="meta"), use_cache=False)
"""


def seconds(command: list[str], folder: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return time.perf_counter() - start


def whole_command(model: str, cls: str, pairs: int) -> None:
    floor = FLOOR.format(cls=cls, path=str(ROOT / "conf" / "model" / f"{model}.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "tensor_cast.run", "device=ascend910b", f"model={model}"]
        times = [(seconds(run, folder), seconds([sys.executable, "-c", floor], folder)) for _ in range(pairs + 1)][1:]
    ratio = statistics.median(ours / floor for ours, floor in times)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{model}: {statistics.median(t[0] for t in times):.2f} s, {ratio:.2f} of the floor, at most {memory:.0f} MiB"
    )


def in_process(pairs: int) -> None:
    sys.path.insert(0, str(ROOT))
    import torch
    from omegaconf import OmegaConf

    from tensor_cast import simulation
    from tensor_cast.config import Kind, ModelConfig, WorkloadConfig
    from tensor_cast.device import device_names, load_device
    from tensor_cast.models.workload import build_program
    from tensor_cast.report.files import write_files
    from tensor_cast.tracing.program import trace_program

    for model in ("llama", "deepseek_v3"):
        settings = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "model" / f"{model}.yaml"))
        workload = WorkloadConfig(kind=Kind.forward, seq_len=1024)
        program = build_program(ModelConfig(**settings), workload, "vendor")
        ratios = []
        for _ in range(pairs + 1):
            start = time.perf_counter()
            with torch.no_grad():
                program.run(**program.inputs)
            middle = time.perf_counter()
            graph = trace_program(program.run, (), program.inputs, modules=[program.module])
            ratios.append((time.perf_counter() - middle) / (middle - start))
        print(f"{model}: tracing takes {statistics.median(ratios[1:]):.2f} of the bare forward, {len(graph)} ops")
        if model == "llama":
            devices = [load_device(name) for name in device_names()]
            devices = [device for device in devices if "bfloat16" in device.matrix_ops_per_s]
            start = time.perf_counter()
            priced = [simulation.price(graph, device) for device in devices]
            each = (time.perf_counter() - start) / len(devices)
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                for result in priced:
                    write_files(result, Path(folder))
                files = (time.perf_counter() - start) / len(devices)
            print(f"llama: {each * 1e3:.1f} ms to price a device, {files * 1e3:.1f} ms for its document and files")


def training(pairs: int) -> None:
    """Tracing a training step, paired with the bare step on meta."""
    import torch
    from omegaconf import OmegaConf

    from tensor_cast.config import Kind, ModelConfig, WorkloadConfig
    from tensor_cast.models.workload import build_program
    from tensor_cast.tracing.program import trace_program

    for model in ("bert_large", "llama"):
        settings = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "model" / f"{model}.yaml"))
        times = []
        for _ in range(pairs + 1):
            program = build_program(ModelConfig(**settings), WorkloadConfig(kind=Kind.train, seq_len=512), "vendor")
            start = time.perf_counter()
            graph = trace_program(
                program.run, (), program.inputs, modules=[program.module], backward=True, optimizer=program.optimizer
            )
            middle = time.perf_counter()
            program = build_program(ModelConfig(**settings), WorkloadConfig(kind=Kind.train, seq_len=512), "vendor")
            begun = time.perf_counter()
            program.run(**program.inputs).backward()
            torch.optim.AdamW(program.module.parameters(), foreach=True).step()
            times.append((middle - start, time.perf_counter() - begun))
        traced = statistics.median(each for each, _ in times[1:])
        ratio = statistics.median(each / bare for each, bare in times[1:])
        print(f"{model}: a training step of {len(graph)} ops is traced in {traced:.2f} s, {ratio:.2f} of the bare step")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    in_process(count)
    training(count)
    whole_command("llama", "LlamaForCausalLM", count)
    whole_command("deepseek_v3", "DeepseekV3ForCausalLM", count)
