"""This machine measured: a device that runs, with few and small calls."""

from pathlib import Path

import pytest
import torch
import yaml

import tensor_cast
from tensor_cast.commands import calibrate
from tensor_cast.device import load_device
from tensor_cast.measurements import local


@pytest.fixture
def few(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "_ROWS", (1, 4, 16, 32))
    monkeypatch.setattr(local, "_WEIGHTS", tuple((n, k) for n in (64, 128, 256) for k in (64, 256)))
    monkeypatch.setattr(local, "_STREAMS", ((1, 64), (8, 64), (16, 256), (64, 256)))
    monkeypatch.setattr(local, "_ATTENTION", ((1, 2, 2, 16, 16, 32),))
    monkeypatch.setattr(local, "_COLD_BYTES", 2**18)
    monkeypatch.setattr(local, "_MOST_RUNS", 3)
    monkeypatch.setattr(local, "_COPIED", 2**20)


def test_it_writes_a_device_that_runs(few, capsys):
    assert calibrate.main(["data=local"]) == 0
    content = yaml.safe_load(Path("conf/device/local.yaml").read_text())
    device = load_device("local")
    assert device.num_cores == torch.get_num_threads() and device.memory_bytes > 2**28
    assert {"matmul", "elementwise"} <= set(device.efficiency)
    assert content["sources"]["matrix_ops_per_s"].startswith("measured: this machine, torch")
    assert content["sources"]["efficiency.matmul"].startswith("fitted: this machine, torch")
    x = torch.empty(16, 256, dtype=torch.bfloat16)
    simulation = tensor_cast.simulate(lambda x: (x @ x.t()).softmax(-1), x, device="local")
    assert 0 < simulation.step_time_s < 1 and simulation.step_time_error > 0
    assert calibrate.main(["data=local"]) == 2
    assert "local.yaml exists" in capsys.readouterr().err


def test_every_case_runs_as_it_is_priced(few):
    for dtype in (torch.float32, torch.bfloat16):
        for case in local._cases(dtype):
            tensors = [torch.full(shape, 0.5, dtype=dtype) for shape in case.shapes]
            call = local._measure(case, dtype, "cpu")
            out = case.run(*tensors)
            priced = call.info.out[0] if isinstance(call.info.out, tuple) else call.info.out
            assert (out.shape, out.dtype) == (priced.shape, priced.dtype), case.operator
            assert call.time_s > 0
