"""A device: facts about it, each with its source. One loader for the command line and for Python."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tensor_cast.efficiency import FAMILIES, RELATIVES, Efficiency, LinkEfficiency, parameters_of, switches_of
from tensor_cast.errors import UserError, did_you_mean
from tensor_cast.paths import data_dir, user_dirs

SOURCE_KINDS = ("datasheet", "measured", "fitted", "assumed")
TOPOLOGIES = ("switch", "mesh", "ring", "pcie")


@dataclass(frozen=True)
class Interconnect:
    """One level of links: how many devices it joins, what each device sends in one direction, and a step's latency."""

    name: str
    num_devices: int
    bandwidth_bytes_per_s: float
    latency_s: float
    topology: str = "switch"
    efficiency: LinkEfficiency = field(default_factory=LinkEfficiency)


@dataclass(frozen=True)
class DeviceProfile:
    """What a device can do. Rates are dense peaks, a multiply-add is two operations; what is not known is absent.

    matrix_ops_per_s, vector_ops_per_s: by dtype name (torch's names, and tfloat32, int4). cache_bytes: the last level that
    can hold a working set. launch_s: one kernel's launch on the device. host_launch_s: what the host takes to issue one op in
    eager PyTorch. context_bytes: what the runtime takes of memory. interconnect: nearest level first. efficiency: family, or
    "family.dtype" -> what it reaches; kernels: the same by kernel library, over it. sources: dotted key -> "kind: reference".
    aliases: what tables of measured times call it.
    """

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    matrix_ops_per_s: Mapping[str, float] = field(default_factory=dict)
    vector_ops_per_s: Mapping[str, float] = field(default_factory=dict)
    vendor: str = ""
    architecture: str = ""
    cache_bytes: float | None = None
    cache_bandwidth_bytes_per_s: float | None = None
    num_cores: int | None = None
    launch_s: float = 0.0
    host_launch_s: float = 1.0e-5
    context_bytes: float = 0.0
    fused_attention: bool = True
    interconnect: tuple[Interconnect, ...] = ()
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Efficiency]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    def efficiency_of(self, family: str, dtype: str | None = None) -> Efficiency:
        """That of a family in a type ("matmul.float32") where there is one, else the family's, else its relative's,
        else the default."""
        found = self.efficiency.get(f"{family}.{dtype}") or self.efficiency.get(family)
        if found is None and family in RELATIVES:
            return self.efficiency_of(RELATIVES[family], dtype)
        return found or FAMILIES[family]()

    def with_kernels(self, library: str | None) -> DeviceProfile:
        """The device with the kernels of a library, as far as its fits go; None: those of ``efficiency``.

        Raises:
            UserError: a library that this device has no fit of.
        """
        if library is None:
            return self
        if library not in self.kernels:
            known = ", ".join(self.kernels) or "none"
            raise UserError(
                f"performance_model.kernels={library}: device {self.name} has fits of the kernel libraries: {known}."
                f"{did_you_mean(library, self.kernels)} Leave it out for the device's own."
            )
        return replace(self, efficiency={**self.efficiency, **self.kernels[library]})

    def matrix_rate(self, dtype: str) -> float:
        """The matrix unit's dense peak in a dtype; UserError with the device's types where it has none."""
        rate = self.matrix_ops_per_s.get(dtype)
        if rate is None:
            types = ", ".join(sorted(self.matrix_ops_per_s))
            raise UserError(
                f"device {self.name} has no matrix peak for {dtype}; it has {types}."
                f" Choose workload.dtype among them, or give device.matrix_ops_per_s.{dtype}=OPERATIONS_PER_S."
            )
        return rate

    def vector_rate(self, dtype: str) -> float:
        """The vector unit's peak in a dtype; float32's where the device names none (integers and narrow floats)."""
        rate = self.vector_ops_per_s.get(dtype) or self.vector_ops_per_s.get("float32")
        if rate is None:
            raise UserError(
                f"device {self.name} has no vector peak: give device.vector_ops_per_s.float32=OPERATIONS_PER_S."
            )
        return rate


def device_names() -> list[str]:
    """The devices of the shipped conf/device and of the user's."""
    folders = [data_dir("conf") / "device", *(folder / "device" for folder in user_dirs("conf"))]
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def load_device(device: str | Path | Mapping[str, Any] | DeviceProfile) -> DeviceProfile:
    """A device by its name in conf/device, by the path of a YAML file, or from the mapping that such a file holds.

    Raises:
        UserError: no such device or file, a key or type that does not exist, a figure out of range.
    """
    if isinstance(device, DeviceProfile):
        return device
    if isinstance(device, Mapping):
        where = f"device {device.get('name', device.get('like', ''))}".strip()
        return _profile(_inherit(dict(device), where, ()), where)
    path = _find(device)
    data = _inherit(_read(path), str(path), ())
    data.setdefault("name", path.stem)
    return _profile(data, str(path))


def _find(device: str | Path) -> Path:
    text = str(device)
    if isinstance(device, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        path = Path(text).expanduser()
        if not path.is_file():
            raise UserError(f"device {text}: there is no such file; give a YAML file or a name of conf/device.")
        return path
    for folder in [data_dir("conf"), *user_dirs("conf")]:
        path = folder / "device" / f"{text}.yaml"
        if path.is_file():
            return path
    raise UserError(f"there is no device {text!r}.{did_you_mean(text, device_names())}")


def _read(path: Path) -> dict[str, Any]:
    """The mapping of a device file. An unchanged file is parsed once a process."""
    try:
        return copy.deepcopy(_parsed(path, path.stat().st_mtime_ns))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error


@lru_cache(maxsize=256)
def _parsed(path: Path, changed_ns: int) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        data = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: a device file is a mapping of keys such as memory_bytes; got {type(data).__name__}.")
    return {str(key): value for key, value in data.items()}


def _inherit(data: dict[str, Any], where: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """The keys of ``data`` over those of the device that it is ``like``."""
    relative = data.pop("efficiency_like", None)
    if relative is not None:
        data = _with_efficiency_of(relative, data, where)
    like = data.pop("like", None)
    if like is None:
        return data
    data.setdefault("aliases", [])  # names of the relative are not its own
    if not isinstance(like, str):
        raise UserError(f"{where}: like must be the name of a device, got {like!r}.")
    if like in seen:
        raise UserError(f"{where}: like goes in a circle: {' -> '.join((*seen, like))}.")
    path = _find(like)
    parent = _inherit(_read(path), str(path), (*seen, like))
    own = parent.pop("name", None) if "name" in data else None
    merged = dict(parent)
    if _HARDWARE & set(
        data
    ):  # other hardware: what its relative reaches is a guess here, and its error a family's default
        merged |= {key: _without_errors(merged[key]) for key in ("efficiency", "kernels") if key in merged}
    for key, value in data.items():
        if value is None:
            continue
        base = merged.get(key)
        merged[key] = _merge(base, value) if isinstance(base, Mapping) and isinstance(value, Mapping) else value
    merged.setdefault("name", own or like)
    return merged


def _with_efficiency_of(relative: Any, data: dict[str, Any], where: str) -> dict[str, Any]:
    """The keys of ``data`` over what is fitted for a relative, in that one's own file; its errors are guesses here."""
    if not isinstance(relative, str):
        raise UserError(f"{where}: efficiency_like must be the name of a device, got {relative!r}.")
    found = _read(_find(relative))
    merged = dict(data)
    for key in ("efficiency", "kernels"):
        merged[key] = _merge(_without_errors(found.get(key) or {}), data.get(key) or {})
    return merged


_HARDWARE = {"matrix_ops_per_s", "memory_bandwidth_bytes_per_s", "num_cores", "cache_bytes"}


def _without_errors(tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    return {key: _without_errors(value) for key, value in tree.items() if key != "error"}


def _merge(base: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **value}
    for key, item in value.items():
        below = base.get(key)
        if isinstance(below, Mapping) and isinstance(item, Mapping):
            merged[key] = {**below, **item}
    return {key: item for key, item in merged.items() if item is not None}


def _profile(data: dict[str, Any], where: str) -> DeviceProfile:
    known = set(DeviceProfile.__dataclass_fields__)
    for key in data:
        if key not in known:
            raise UserError(
                f"{where}: there is no key {key!r} in a device.{did_you_mean(key, [*known, 'like', 'efficiency_like'])}"
            )
    values = {key: value for key, value in data.items() if value is not None}
    for key in ("name", "memory_bytes", "memory_bandwidth_bytes_per_s"):
        if key not in values:
            raise UserError(f"{where}: {key} is missing; give it, or name a device to inherit from with like: NAME.")
    if not values.get("vector_ops_per_s"):
        raise UserError(f"{where}: vector_ops_per_s is missing; give it at least for float32.")
    for key in (
        "memory_bytes",
        "memory_bandwidth_bytes_per_s",
        "cache_bytes",
        "cache_bandwidth_bytes_per_s",
        "num_cores",
    ):
        if key in values:
            values[key] = _number(values[key], f"{where}: {key}", positive=True)
    for key in ("launch_s", "host_launch_s", "context_bytes"):
        if key in values:
            values[key] = _number(values[key], f"{where}: {key}")
    for key in ("matrix_ops_per_s", "vector_ops_per_s"):
        values[key] = _rates(values.get(key, {}), f"{where}: {key}")
    if not isinstance(values.get("fused_attention", True), bool):
        raise UserError(f"{where}: fused_attention must be true or false, got {values['fused_attention']!r}.")
    values["interconnect"] = tuple(
        _interconnect(level, f"{where}: interconnect") for level in values.get("interconnect", ())
    )
    values["efficiency"] = _efficiencies(values.get("efficiency", {}), f"{where}: efficiency")
    values["kernels"] = _kernels(values.get("kernels", {}), f"{where}: kernels")
    values["aliases"] = _aliases(values.get("aliases", ()), f"{where}: aliases")
    values["sources"] = _sources(values.get("sources", {}), f"{where}: sources")
    return DeviceProfile(**values)


def _number(value: Any, key: str, positive: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{key} must be a number, got {value!r}.")
    if value < 0 or (positive and value == 0):
        raise UserError(f"{key} must be {'above zero' if positive else 'zero or more'}, got {value!r}.")
    return value


def _rates(value: Any, key: str) -> dict[str, float]:
    from tensor_cast.dtypes import RATE_NAMES

    if not isinstance(value, Mapping):
        raise UserError(f"{key} must be a mapping from dtype to operations per second, got {value!r}.")
    for dtype in value:
        if dtype not in RATE_NAMES:
            raise UserError(f"{key}: there is no dtype {dtype!r}.{did_you_mean(dtype, RATE_NAMES)}")
    return {
        dtype: float(_number(rate, f"{key}.{dtype}", positive=True))
        for dtype, rate in value.items()
        if rate is not None
    }


def _interconnect(level: Any, key: str) -> Interconnect:
    fields = Interconnect.__dataclass_fields__
    if not isinstance(level, Mapping):
        raise UserError(f"{key} must be a list of levels with {', '.join(fields)}; got {level!r}.")
    for name in level:
        if name not in fields:
            raise UserError(f"{key}: there is no key {name!r}.{did_you_mean(name, fields)}")
    for name in ("name", "num_devices", "bandwidth_bytes_per_s", "latency_s"):
        if name not in level:
            raise UserError(f"{key}: {name} is missing in {dict(level)!r}.")
    if level.get("topology", "switch") not in TOPOLOGIES:
        raise UserError(f"{key}.topology must be one of {', '.join(TOPOLOGIES)}, got {level['topology']!r}.")
    numbers = {
        "num_devices": int(_number(level["num_devices"], f"{key}.num_devices", positive=True)),
        "bandwidth_bytes_per_s": _number(level["bandwidth_bytes_per_s"], f"{key}.bandwidth_bytes_per_s", positive=True),
        "latency_s": _number(level["latency_s"], f"{key}.latency_s"),
    }
    efficiency = _efficiency(level.get("efficiency") or {}, LinkEfficiency, f"{key}.efficiency")
    return Interconnect(**{**level, **numbers, "efficiency": efficiency})


def _efficiencies(value: Any, key: str) -> dict[str, Efficiency]:
    from tensor_cast.dtypes import RATE_NAMES

    if not isinstance(value, Mapping):
        raise UserError(f"{key} must be a mapping from family to {{compute, memory}}, got {value!r}.")
    families = {}
    for family, values in value.items():
        kind, _, dtype = str(family).partition(".")
        if kind not in FAMILIES:
            raise UserError(f"{key}: there is no family {kind!r}.{did_you_mean(kind, FAMILIES)}")
        if dtype and dtype not in RATE_NAMES:
            raise UserError(f"{key}.{family}: there is no dtype {dtype!r}.{did_you_mean(dtype, RATE_NAMES)}")
        families[str(family)] = _efficiency(values, FAMILIES[kind], f"{key}.{family}")
    return families


def _efficiency(values: Any, kind: Any, key: str) -> Any:
    known = kind.__dataclass_fields__
    if not isinstance(values, Mapping) or not set(values) <= set(known):
        wrong = next((name for name in values if name not in known), "") if isinstance(values, Mapping) else ""
        raise UserError(f"{key} takes {', '.join(known)}; got {wrong or values!r}.{did_you_mean(wrong, known)}")
    ranges = {parameter.name: (parameter.least, parameter.most) for parameter in parameters_of(kind)}
    for name, number in values.items():
        if name in switches_of(kind):
            if not isinstance(number, bool):
                raise UserError(f"{key}.{name} must be true or false, got {number!r}.")
            continue
        if number is None:
            continue
        number = _number(number, f"{key}.{name}")
        least, most = ranges.get(name, (0.0, math.inf))
        if (name in ("compute", "memory", "vector", "share") and number == 0) or not least <= number <= most:
            raise UserError(f"{key}.{name} must lie between {least:g} and {most:g}; got {number!r}.")
    return kind(**{name: number for name, number in values.items() if number is not None})


def _kernels(value: Any, key: str) -> dict[str, dict[str, Efficiency]]:
    if not isinstance(value, Mapping):
        raise UserError(f"{key} must be a mapping from kernel library to efficiencies, got {value!r}.")
    return {str(library): _efficiencies(families, f"{key}.{library}") for library, families in value.items()}


def _aliases(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise UserError(f"{key} must be a list of names, got {value!r}.")
    return tuple(value)


def _sources(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise UserError(f"{key} must be a mapping from key to 'kind: reference', got {value!r}.")
    flat: dict[str, str] = {}
    for name, source in value.items():
        if not isinstance(source, str) or source.split(":")[0] not in SOURCE_KINDS:
            raise UserError(
                f"{key}.{name} must read 'kind: reference' with kind {', '.join(SOURCE_KINDS)}; got {source!r}."
            )
        flat[str(name)] = source
    return flat
