"""Every type of transformers' tables, in its own default config, in every workload that fits it, or a reason why not.

A type that does not trace stands in REASONS, and one that stands there must not trace: the table cannot go stale. Training is left
out where a forward has over 20,000 ops (minutes each). No code of the package knows any of these models.
"""

import pytest

from tensor_cast import simulation
from tensor_cast.config import Kind, ModelConfig, RunConfig, WorkloadConfig
from tensor_cast.errors import UserError

TABLES = {  # transformers' table -> the workloads that fit it
    "CAUSAL_LM": ("prefill", "decode", "train"),
    "MASKED_LM": ("forward", "train"),
    "SEQ_TO_SEQ_CAUSAL_LM": ("prefill", "decode", "train"),
    "IMAGE_CLASSIFICATION": ("forward", "train"),
    "AUDIO_CLASSIFICATION": ("forward", "train"),
    "IMAGE_TEXT_TO_TEXT": ("forward",),  # its text; no images beside it
}
NOT_BUILT = "transformers itself cannot build it from its default config"
NEEDS_MORE = "it needs inputs besides tokens, images or samples"
LIBRARY = "it needs a library that is no dependency here"
REASONS = {
    # type: (what is wrong, a part of the message)
}


def types_of(table):
    from transformers.models.auto import modeling_auto

    return getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES")


def document(model_type, architecture, kind):
    config = RunConfig(
        device={"name": "h100_sxm", "like": "h100_sxm"},
        model=ModelConfig(name=model_type, config={"model_type": model_type, "architectures": [architecture]}),
        workload=WorkloadConfig(
            kind=Kind(kind),
            batch_size=2,
            seq_len=1 if kind == "decode" else 16,
            context_len=32 if kind == "decode" else 0,
            encoder_len=16,
        ),
    )
    simulation._graphs.clear()
    return simulation.simulate_config(config).report()


CASES = [(table, name) for table in TABLES for name in types_of(table)]


@pytest.mark.sweep
@pytest.mark.parametrize(("table", "model_type"), CASES, ids=lambda value: value)
def test_traces_in_every_workload_that_fits_or_has_its_reason(table, model_type):
    architecture = types_of(table)[model_type]
    architecture = architecture if isinstance(architecture, str) else architecture[0]
    for kind in TABLES[table]:
        reason = REASONS.get((table, model_type, kind)) or REASONS.get((table, model_type))
        if reason is not None:
            with pytest.raises(UserError, match=reason[1]):
                document(model_type, architecture, kind)
            continue
        said = document(model_type, architecture, kind)
        assert said["step_time_s"] > 0 and said["totals"]["executed_flops"] > 0
        assert said["memory"]["kv_cache_bytes"] > 0 or kind not in ("prefill", "decode") or said["warnings"]
        if sum(row["calls"] for row in said["ops"]) > 20_000:
            break


@pytest.mark.parametrize(("table", "share"), [("CAUSAL_LM", 180 / 196), *((name, 0.9) for name in list(TABLES)[1:5])])
def test_the_table_of_reasons_is_short(table, share):
    left_out = {key[1] for key in REASONS if key[0] == table and len(key) == 2}
    assert len(left_out) <= (1 - share) * len(types_of(table))
