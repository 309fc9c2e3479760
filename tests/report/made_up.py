"""A document of round numbers that add up, and a simulation that holds it."""

import copy

GIB = 2**30

# 100 ms: 60 + 30 + 5 + 5, of which 4 ms are launches.
DOCUMENT = {
    "schema_version": 1,
    "device": {"name": "round_numbers"},
    "model": "llama",
    "workload": {"kind": "prefill", "batch_size": 1, "seq_len": 4096, "context_len": 0, "dtype": "bfloat16"},
    "config": {"device": "round_numbers", "custom_op": {"modules": ["my_ops"], "disable": []}},
    "versions": {"torch": "2.13.0"},
    "performance_model": "analytic",
    "step_time_s": 0.1,
    "tokens_per_s": 40960.0,
    "samples_per_s": None,
    "time_by_bound_s": {"mma": 0.058, "gp": 0.0, "memory": 0.033, "communication": 0.0, "launch": 0.004,
                        "given": 0.005},
    "totals": {
        "mma_ops": 5e13, "gp_ops": 1e9, "read_bytes": 24 * GIB, "write_bytes": 3 * GIB, "communication_bytes": 0,
        "model_flops": 5.2e13, "executed_flops": 5e13, "mfu": 0.52, "hfu": 0.5,
    },
    "ops": [
        {"op": "aten.mm.default", "module": "model.layers.*.mlp.up_proj", "phase": "forward", "calls": 32,
         "time_s": 0.04, "mma_ops": 4e13, "gp_ops": 0, "read_bytes": 8 * GIB, "write_bytes": GIB,
         "communication_bytes": 0, "bound": "mma", "priced_by": "builtin_properties", "rule": "matmul:mm",
         "shapes": ["bf16[4096, 4096]", "bf16[4096, 14336]"]},
        {"op": "aten.mm.default", "module": "model.layers.*.mlp.up_proj", "phase": "forward", "calls": 32,
         "time_s": 0.02, "mma_ops": 1e13, "gp_ops": 0, "read_bytes": 8 * GIB, "write_bytes": GIB,
         "communication_bytes": 0, "bound": "mma", "priced_by": "builtin_properties", "rule": "matmul:mm",
         "shapes": ["bf16[4096, 14336]", "bf16[14336, 4096]"]},
        {"op": "aten._scaled_dot_product_flash_attention_for_cpu.default", "module": "model.layers.*.self_attn",
         "phase": "forward", "calls": 32, "time_s": 0.03, "mma_ops": 0, "gp_ops": 1e9, "read_bytes": 4 * GIB,
         "write_bytes": GIB, "communication_bytes": 0, "bound": "memory", "priced_by": "builtin_properties",
         "rule": "attention:sdpa", "shapes": []},
        {"op": "mylib.gate.default", "module": "", "phase": "forward", "calls": 1, "time_s": 0.005, "mma_ops": 0,
         "gp_ops": 0, "read_bytes": 0, "write_bytes": 0, "communication_bytes": 0, "bound": "given",
         "priced_by": "user_estimator", "rule": "my_ops:_@mylib::gate", "shapes": []},
        {"op": "mylib.odd[x].default", "module": "lm_head", "phase": "forward", "calls": 1, "time_s": 0.005,
         "mma_ops": 0, "gp_ops": 0, "read_bytes": 4 * GIB, "write_bytes": 0, "communication_bytes": 0,
         "bound": "memory", "priced_by": "default", "rule": None, "shapes": []},
    ],
    "coverage": {"override": 0.0, "user_estimator": 0.05, "builtin_estimator": 0.0, "user_properties": 0.0,
                 "builtin_properties": 0.9, "measured": 0.0, "default": 0.05},
    "unpriced_ops": ["mylib.odd[x].default"],
    "memory": {
        "peak_bytes": 21 * GIB, "weights_bytes": 16 * GIB, "kv_cache_bytes": 2 * GIB, "activations_bytes": 3 * GIB,
        "gradients_bytes": 0, "optimizer_bytes": 0, "reserved_bytes": 24 * GIB, "capacity_bytes": 32 * GIB,
        "fits": True,
        "at_peak": [{"bytes": GIB, "op": "aten.mm.default", "module": "lm_head", "category": "activations"}],
    },
    "rules": {"unused": ["my_ops:slow"], "disabled": ["my_ops:old"]},
    "warnings": ["integer rates are assumed"],
}  # fmt: skip

REGISTRY_ROWS = [
    {"rule": "my_ops:_@mylib::gate", "operator": "mylib::gate", "device": None, "level": "user_estimator",
     "file": "my, ops.py", "line": 7, "outcome": "won", "calls": 1, "time_s": 0.005, "note": None},
]  # fmt: skip


class Simulation:
    """Answers as a simulation does, from what it was given."""

    def __init__(self, document=DOCUMENT, events=(), memory_timeline=()):
        self._document, self._events, self._memory_timeline = copy.deepcopy(document), events, memory_timeline

    def report(self):
        return self._document

    def registry_rows(self):
        return REGISTRY_ROWS

    def events(self):
        return iter(self._events)

    def memory_timeline(self):
        return list(self._memory_timeline)


def events(num, duration_s=1e-6):
    """``num`` ops one behind the other, of a model with 32 layers."""
    return [
        {"name": "aten.mm.default", "module": f"model.layers.{i % 32}.mlp", "phase": "forward", "stream": "device",
         "start_s": i * duration_s, "duration_s": duration_s, "bound": "mma", "priced_by": "builtin_properties",
         "rule": "matmul:mm", "shapes": ["bf16[2, 3]", "bf16[3, 5]"]}
        for i in range(num)
    ]  # fmt: skip
