"""What a run can choose: names, types and ranges of every key, and the plain values that the simulator gets.

``schema()`` is what the composed config is checked against, key by key; ``validate()`` turns a composed config into a
``RunConfig``, a tree of plain dataclasses, or raises a ``UserError`` that names the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, get_type_hints

from tensor_cast.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Kind(StrEnum):
    """What one step of the workload does."""

    prefill = "prefill"
    decode = "decode"
    train = "train"
    forward = "forward"


class Logits(StrEnum):
    """Which positions the output head computes."""

    last = "last"
    all = "all"


class Execution(StrEnum):
    """Whether a captured graph runs its kernels back to back, or PyTorch's host issues each op."""

    graph = "graph"
    eager = "eager"


class Dtype(StrEnum):
    """The torch dtypes that weights and activations can have, by their names."""

    float64 = "float64"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e4m3fnuz = "float8_e4m3fnuz"
    float8_e5m2 = "float8_e5m2"
    float8_e5m2fnuz = "float8_e5m2fnuz"


@dataclass
class DeviceConfig:
    """A device file as composed. Any key may be absent: ``like`` inherits it, and the device's loader checks the rest."""

    name: str | None = None
    like: str | None = None
    efficiency_like: str | None = None
    vendor: str | None = None
    architecture: str | None = None
    matrix_ops_per_s: dict[str, float | None] = field(default_factory=dict)
    vector_ops_per_s: dict[str, float | None] = field(default_factory=dict)
    memory_bytes: int | float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    cache_bytes: int | float | None = None
    cache_bandwidth_bytes_per_s: float | None = None
    num_cores: int | None = None
    launch_s: float | None = None
    context_bytes: int | float | None = None
    fused_attention: bool | None = None
    interconnect: list[Any] | None = None
    host_launch_s: float | None = None
    efficiency: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    aliases: list[str] | None = None


@dataclass
class ModelConfig:
    """A Hugging Face config (a mapping, or the path of a config.json), or a class with its arguments and inputs."""

    name: str | None = None
    source: str | None = None
    config: Any = field(default_factory=dict)
    _target_: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)


@dataclass
class WorkloadConfig:
    """One step. Lengths are in tokens: ``seq_len`` new ones a sequence, ``context_len`` already in the KV cache."""

    kind: Kind = Kind.forward
    batch_size: int = 1
    seq_len: int = 128
    context_len: int = 0
    encoder_len: int | None = None
    dtype: Dtype = Dtype.bfloat16
    logits: Logits = Logits.all
    optimizer: str | None = None


@dataclass
class ParallelConfig:
    """Ranks along each axis: tensor, pipeline, data, expert, context."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1


@dataclass
class QuantConfig:
    name: str = "none"


@dataclass
class ChosenConfig:
    """What one choice of ``custom_op`` brings. ``overrides``: operator -> {time_s, scale or estimator}."""

    modules: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    disable: list[str] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass
class CustomOpConfig(ChosenConfig):
    """The user's own rules, and those of the choices in the order given."""

    scan: bool = True
    strict: bool = False
    chosen: dict[str, ChosenConfig] = field(default_factory=dict)


@dataclass
class PerformanceModelConfig:
    """kernels: the kernel library, of those that the device has fits of (None: the device's own). data: files of
    measured times, for the measured model."""

    name: str = "analytic"
    allow_tf32: bool = False
    kernels: str | None = None
    execution: Execution = Execution.graph
    data: list[str] = field(default_factory=list)


@dataclass
class FusionConfig:
    name: str = "vendor"


@dataclass
class ReportConfig:
    name: str = "default"
    top: int = 15
    files: bool = True


@dataclass
class _Choices:
    """What the composed config and the simulator's share: all but the device."""

    model: ModelConfig = field(default_factory=ModelConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    quant: QuantConfig = field(default_factory=QuantConfig)
    custom_op: CustomOpConfig = field(default_factory=CustomOpConfig)
    performance_model: PerformanceModelConfig = field(default_factory=PerformanceModelConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    hints: dict[str, Any] = field(default_factory=dict)


@dataclass
class Schema(_Choices):
    """What a composed config may hold."""

    device: DeviceConfig = field(default_factory=DeviceConfig)


@dataclass
class RunConfig(_Choices):
    """What the simulator gets. ``device``: the keys that were given, for ``tensor_cast.device.load_device``."""

    device: dict[str, Any] = field(default_factory=dict)


GROUPS = (*sorted(f.name for f in dataclasses.fields(Schema) if f.name != "hints"), "experiment")
# Mappings that take new keys on the command line; their names are checked by who reads them.
_OPEN = (
    "custom_op.params", "custom_op.overrides", "custom_op.chosen", "model.config", "model.args", "model.inputs",
    "device.matrix_ops_per_s", "device.vector_ops_per_s", "device.efficiency", "device.kernels", "device.sources", "hints",
)  # fmt: skip
_AT_LEAST = {
    "workload.batch_size": 1, "workload.seq_len": 1, "workload.context_len": 0, "workload.encoder_len": 1,
    "parallel.tp": 1, "parallel.pp": 1, "parallel.dp": 1, "parallel.ep": 1, "parallel.cp": 1, "report.top": 0,
}  # fmt: skip
_AXES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "ep": "expert", "cp": "context"}
# What an override of an operator may set: an operator's dots are joined up to one of these words.
_OVERRIDE_WORDS = ("time_s", "scale", "estimator")


def schema() -> DictConfig:
    """The schema as a config node, with the open mappings open."""
    from omegaconf import OmegaConf

    node = OmegaConf.structured(Schema)
    for key in _OPEN:
        OmegaConf.set_struct(OmegaConf.select(node, key), False)
    return node


def validate(cfg: DictConfig) -> RunConfig:
    """The plain values of a composed config.

    Raises:
        UserError: a key that does not exist, a value of the wrong type or out of range, or a choice that is not built.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from tensor_cast.refusals import explain_value

    try:
        missing = sorted(str(key) for key in OmegaConf.missing_keys(cfg))
        if missing:
            raise UserError(f"no value for {', '.join(missing)}: write {missing[0]}=VALUE.")
        plain = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(plain, dict)
        _check_keys(plain, Schema)
        if OmegaConf.get_type(cfg) is not Schema:
            plain = OmegaConf.to_container(OmegaConf.merge(schema(), plain))
            assert isinstance(plain, dict)
    except OmegaConfBaseException as error:
        raise UserError(explain_value(error)) from error
    device = {key: value for key, value in plain.pop("device").items() if value is not None and value != {}}
    config = RunConfig(
        device=device, **{str(name): _build(_class_at(str(name)), value) for name, value in plain.items()}
    )
    if not config.model.config:
        config.model.config = None
    _join_overrides(config.custom_op)
    _check_values(config)
    return config


def _check_keys(plain: Mapping[Any, Any], cls: type, prefix: str = "") -> None:
    """Refuses keys that the classes lack: composing lets them pass where they were added by force."""
    hints = get_type_hints(cls)
    for name, value in plain.items():
        if name not in hints:
            raise UserError(unknown_key(f"{prefix}{name}"))
        if dataclasses.is_dataclass(hints[name]):
            if not isinstance(value, Mapping):
                raise UserError(f"{prefix}{name} is a group of keys, it cannot be {value!r}.")
            _check_keys(value, _class_at(f"{prefix}{name}"), f"{prefix}{name}.")
    if cls is CustomOpConfig:
        for choice, value in (plain.get("chosen") or {}).items():
            if not isinstance(value, Mapping):
                raise UserError(f"{prefix}chosen.{choice} is a group of keys, it cannot be {value!r}.")
            _check_keys(value, ChosenConfig, f"{prefix}chosen.{choice}.")


def _build(cls: type | None, plain: Mapping[str, Any]) -> Any:
    if cls is None:
        return dict(plain)
    value = cls(**plain)
    if isinstance(value, CustomOpConfig):
        value.chosen = {name: ChosenConfig(**chosen) for name, chosen in plain["chosen"].items()}
    return value


def _check_values(config: RunConfig) -> None:
    if not config.device:
        raise UserError("no device: write device=NAME, a file of conf/device.")
    for key, least in _AT_LEAST.items():
        group, name = key.split(".")
        value = getattr(getattr(config, group), name)
        if value is not None and value < least:
            raise UserError(f"{key} must be at least {least}, got {value}.")
    for axis, word in _AXES.items():
        if (size := getattr(config.parallel, axis)) != 1:
            raise UserError(
                f"parallel.{axis}={size}: {word} parallelism is not built yet, only parallel.{axis}=1 runs."
            )
    if config.quant.name != "none":
        raise UserError(f"quant.name={config.quant.name}: quantisation is not built yet, only quant=none runs.")
    if not isinstance(config.model.config, (Mapping, str, type(None))):
        raise UserError(f"model.config must be a path or a mapping, got {config.model.config!r}.")


def _join_overrides(custom_op: CustomOpConfig) -> None:
    custom_op.overrides = join_overrides(custom_op.overrides, "custom_op.overrides")
    for name, chosen in custom_op.chosen.items():
        chosen.overrides = join_overrides(chosen.overrides, f"custom_op.chosen.{name}.overrides")


def join_overrides(tree: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Operators with their dots joined: ``{aten: {mm: {scale: 2}}}`` becomes ``{"aten.mm": {"scale": 2}}``.

    Raises:
        UserError: a last word other than time_s, scale, estimator, or a value that it cannot have.
    """
    joined: dict[str, dict[str, Any]] = {}
    for operator, word, value in _leaves(tree, ""):
        where = ".".join(part for part in (key, operator, word) if part)
        if word not in _OVERRIDE_WORDS or not operator:
            raise UserError(
                f"{where}: an override ends in the operator's name and one of {', '.join(_OVERRIDE_WORDS)}, "
                f"as in {key}.aten.mm.default.scale=2.{did_you_mean(word, _OVERRIDE_WORDS) if operator else ''}"
            )
        if word == "estimator":
            if not isinstance(value, str):
                raise UserError(f"{where} must be the name of an estimator (module:function), got {value!r}.")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 <= value < math.inf):
            raise UserError(f"{where} must be a number that is not negative, got {value!r}.")
        joined.setdefault(operator, {})[word] = value
    return joined


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
        else:
            operator, _, word = (f"{prefix}.{name}" if prefix else str(name)).rpartition(".")
            yield operator, word, value


def _class_at(key: str) -> Any:
    """The class that holds the keys below ``key`` ("" is the whole), None for a plain value or an open mapping."""
    cls: Any = Schema
    parts = key.split(".") if key else []
    if parts[:2] == ["custom_op", "chosen"] and len(parts) == 3:
        return ChosenConfig
    for part in parts:
        cls = get_type_hints(cls).get(part) if dataclasses.is_dataclass(cls) else None
    return cls if dataclasses.is_dataclass(cls) else None


def type_at(key: str) -> Any:
    """The type that a key's value has, None where the key does not exist or anything goes."""
    parent, _, name = key.rpartition(".")
    cls = _class_at(parent)
    return get_type_hints(cls).get(name) if cls else None


def is_open(key: str) -> bool:
    """Whether the key lies in a mapping that takes any name, or below an existing plain key."""
    return any(key == name or key.startswith(name + ".") for name in _OPEN)


def knows(key: str) -> bool:
    return is_open(key) or type_at(key) is not None or key.startswith("device.interconnect.")


def unknown_key(key: str, groups: tuple[str, ...] = GROUPS) -> str:
    """A sentence for a key that does not exist, with the nearest that do."""
    while (parent := key.rpartition(".")[0]) and _class_at(parent) is None:
        key = parent  # the first part of the path that does not exist
    parent, _, name = key.rpartition(".")
    siblings = [f.name for f in dataclasses.fields(_class_at(parent))] if parent else [*groups, "hints"]
    near = [f"{parent}.{match}" if parent else match for match in difflib.get_close_matches(name, siblings, 2, 0.6)]
    if not near:
        everywhere = {f"{group}.{child}": child for group in groups for child in _children(group)}
        close = difflib.get_close_matches(name, set(everywhere.values()), 2, 0.75)
        near = [full for full, child in everywhere.items() if child in close]
    if near:
        return f"there is no key {key!r}. Did you mean {' or '.join(map(repr, near))}?"
    return f"there is no key {key!r}. Keys{f' of {parent}' if parent else ''}: {', '.join(sorted(siblings))}."


def _children(group: str) -> list[str]:
    cls = _class_at(group)
    return [f.name for f in dataclasses.fields(cls)] if cls else []


def plain_value(value: object) -> Any:
    """A scalar as JSON has it; None for what is no scalar."""
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (str, int, float, bool)) else None
