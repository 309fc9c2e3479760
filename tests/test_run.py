"""The command line: exit codes, one sentence for each mistake, files, sweeps, and what is not imported."""

import csv
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from tensor_cast import run
from tensor_cast.paths import data_dir

SMALL = ["model.config.num_hidden_layers=2", "workload.seq_len=16"]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command line in an empty folder; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["tensor_cast", *args])
        code = run.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def choices(group):
    return sorted(path.stem for path in (data_dir("conf") / group).glob("*.yaml"))


def test_the_main_job_prints_its_report_and_writes_its_files(command, tmp_path):
    code, out, _ = command("device=ascend910b", "model=llama", *SMALL)
    assert code == 0
    assert all(word in out for word in ("ascend910b", "llama", "step time", "tokens/s", "Fits"))
    (folder,) = (tmp_path / "outputs").glob("*/*")
    assert {path.name for path in folder.iterdir()} >= {"report.json", "ops.csv", "trace.json", "registry.csv"}
    document = json.loads((folder / "report.json").read_text())
    assert sum(row["time_s"] for row in document["ops"]) == pytest.approx(document["step_time_s"])
    assert sum(document["time_by_bound_s"].values()) == pytest.approx(document["step_time_s"])
    assert sum(document["coverage"].values()) == pytest.approx(1.0)
    assert document["tokens_per_s"] == pytest.approx(16 / document["step_time_s"])
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    with (folder / "registry.csv").open(newline="") as file:
        outcomes = {row["outcome"] for row in csv.DictReader(file)}
    assert {"won", "unused"} <= outcomes


MISTAKES = [
    (["device=ascend910"], "ascend910", "ascend910c"),
    (["model=lama"], "lama", "llama"),
    (["devcie=h20"], "devcie", "device"),
    (["workload.batchsize=2"], "workload.batchsize", "workload.batch_size"),
    (["+workload.batchsize=2"], "workload.batchsize", "workload.batch_size"),
    (["workload.batch_size=-1"], "workload.batch_size", "at least 1"),
    (["workload.context_len=-1"], "workload.context_len", "at least 0"),
    (["workload.batch_size=many"], "workload.batch_size", "whole number"),
    (["workload.dtype=bf16"], "bf16", "bfloat16"),
    (["device=/tmp/npu.yaml"], "/tmp/npu.yaml", "./conf/device/npu.yaml"),
    (["parallel.tp=2"], "parallel.tp=2", "not built"),
    (["model=hf"], "model", "model.config=PATH"),
    (["model=hf", "model.config=absent.json"], "absent.json", "config.json"),
    (["model=module", "model._target_=torch.nn.Lineer"], "torch.nn.Lineer", "package.module.Class"),
    (["device=t4", *SMALL], "bfloat16", "float16"),
    (["custom_op=[flash_atention]"], "flash_atention", "flash_attention"),
    (["custom_op.modules=[absent]"], "absent", "custom_op.modules"),
    (["custom_op.modules=[empty]"], "empty", "declares no rule"),
    (["custom_op.disable=[nothing_like_it]"], "nothing_like_it", "custom_op.disable"),
    (["custom_op.overrides.aten.mmm.default.scale=2", *SMALL], "aten.mmm.default", "mm"),
    (["custom_op.overrides.aten.mm.default.sclae=2"], "sclae", "scale"),
    (["custom_op=flash_attention", "custom_op.params.flash_attention.share=1", *SMALL], "share", "matrix_share"),
    (["model=bert_large", "workload=decode"], "workload=decode", "workload=forward"),
    (["model=t5_large", "workload=decode"], "workload.encoder_len", "encoder"),
]


@pytest.mark.parametrize(
    ("args", "what", "way_out"), MISTAKES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_mistake_is_one_sentence_and_exit_code_2(command, tmp_path, args, what, way_out):
    (tmp_path / "custom_op").mkdir()
    (tmp_path / "custom_op" / "empty.py").write_text("x = 1")
    code, out, err = command(*args)
    assert code == 2 and out == ""
    assert what in err and way_out in err and "+" not in err.replace("+workload", "")
    assert not list(tmp_path.rglob("report.json"))


def test_a_folder_that_cannot_be_written(command, tmp_path):
    (tmp_path / "taken").write_text("")
    code, _, err = command("hydra.run.dir=taken/here", *SMALL)
    assert code == 2 and "taken" in err


def test_a_config_that_is_none(command, tmp_path):
    for text, words in (
        ("[1]", "object"),
        ("{", "not a JSON"),
        ("{}", "model_type"),
        ('{"model_type": "lama"}', "llama"),
    ):
        (tmp_path / "config.json").write_text(text)
        code, _, err = command("model=hf", "model.config=config.json")
        assert code == 2 and words in err


def test_a_users_own_files_are_found_where_they_stand(command, tmp_path):
    (tmp_path / "conf" / "device").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text("foreign: 1\n")
    (tmp_path / "conf" / "device" / "my_npu.yaml").write_text("name: my_npu\nlike: ascend910b\nlaunch_s: 0.0\n")
    code, out, _ = command("device=my_npu", *SMALL)
    assert code == 0 and "my_npu" in out
    (tmp_path / "conf" / "device" / "bad.yaml").write_text("name: bad\nlike: ascend910b\nlanch_s: 0.0\n")
    code, _, err = command("device=bad", *SMALL)
    assert code == 2 and "lanch_s" in err and "launch_s" in err


def test_a_device_file_takes_no_defaults_list(command, tmp_path):
    (tmp_path / "conf" / "device").mkdir(parents=True)
    (tmp_path / "conf" / "device" / "my_npu.yaml").write_text("defaults: [ascend910b]\nname: my_npu\n")
    code, _, err = command("device=my_npu")
    assert code == 2 and "like" in err


def test_a_sweep_traces_once_and_prints_one_table(command, tmp_path, monkeypatch):
    from tensor_cast import simulation

    traced = []
    original = simulation.trace_program
    monkeypatch.setattr(simulation, "trace_program", lambda *a, **k: traced.append(1) or original(*a, **k))
    monkeypatch.setattr(simulation, "_graphs", {})
    code, _, _ = command("-m", "device=ascend910b,h100_sxm,a100_sxm_80g", "model=llama,qwen3_8b", *SMALL)
    assert code == 0 and len(traced) == 2
    (folder,) = (tmp_path / "multirun").glob("*/*")
    rows = json.loads((folder / "sweep.json").read_text())
    assert [(row["device"], row["model"]) for row in rows] == [
        (device, model) for device in ("ascend910b", "h100_sxm", "a100_sxm_80g") for model in ("llama", "qwen3_8b")
    ]
    assert all(row["status"] == "ok" for row in rows)


def test_a_failed_job_is_one_row_and_the_rest_run(command, tmp_path):
    code, out, _ = command("-m", "device=t4,h100_sxm", "model=llama", *SMALL)
    assert code == 2 and "no matrix peak for bfloat16" in " ".join(out.split())
    (folder,) = (tmp_path / "multirun").glob("*/*")
    assert [row["status"] for row in json.loads((folder / "sweep.json").read_text())] == ["user_error", "ok"]


def test_a_typo_in_one_value_stops_a_sweep_before_its_first_job(command, tmp_path):
    code, _, err = command("-m", "device=h100_sxm,h10", *SMALL)
    assert code == 2 and "h10" in err
    assert not list(tmp_path.rglob("report.json"))


def test_custom_operators_from_the_config(command, tmp_path):
    (tmp_path / "custom_op").mkdir()
    (tmp_path / "custom_op" / "mine.py").write_text(
        textwrap.dedent("""
        import torch
        from tensor_cast.performance_model.model import PerformanceModel
        from tensor_cast.performance_model.op_estimator_registry import register_op_estimator

        @register_op_estimator(torch.ops.aten.mm.default, None, True)
        def price(op_invoke_info, device_profile, *, seconds: float = 1.0):
            return PerformanceModel.Result(seconds)
        """)
    )
    code, out, _ = command("custom_op.modules=[mine]", "custom_op.params.price.seconds=2", *SMALL)
    assert code == 0 and "30.0 s" in out  # 2 layers of 7 matrices, and the head
    code, out, _ = command("custom_op.modules=[mine]", r"custom_op.params={mine\:price:{seconds:4}}", *SMALL)
    assert code == 0 and "60.0 s" in out
    code, out, _ = command("custom_op=[fused_gate,flash_attention]", *SMALL)
    assert code == 0 and "fused_gate:fused_gate" in " ".join(out.split())


@pytest.mark.parametrize("args", [["--help"], ["--cfg", "job"]])
def test_help_and_the_config_come_without_torch(args, tmp_path):
    script = (
        "import sys; from tensor_cast.run import main; code = main(); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *args], cwd=tmp_path, capture_output=True, text=True,
        env={**__import__("os").environ, "PYTHONPATH": str(Path(run.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("group", ["device", "model", "workload", "parallel", "quant", "custom_op", "performance_model",
                                   "fusion", "report", "experiment"])  # fmt: skip
def test_every_file_of_conf_composes(command, group):
    for name in choices(group):
        code, out, err = command("--cfg", "job", f"{group}={name}" if group != "experiment" else f"experiment={name}")
        assert code == 0, err
        assert isinstance(yaml.safe_load(out), dict)
