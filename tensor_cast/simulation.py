"""A graph priced on a device: times, memory, who priced what; and the doors to it from Python and from a config."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from tensor_cast.device import DeviceProfile, device_names, load_device
from tensor_cast.document import make_document, make_registry_rows
from tensor_cast.errors import UserError, did_you_mean
from tensor_cast.memory.profile import MemoryProfile, profile
from tensor_cast.models import huggingface
from tensor_cast.models.program import Program
from tensor_cast.models.workload import build_program
from tensor_cast.passes.attention import FUSED, unfused_attention
from tensor_cast.performance_model.loading import load_modules, process_rules
from tensor_cast.performance_model.model import PerformanceModel
from tensor_cast.performance_model.pricing import Price, price_call
from tensor_cast.performance_model.registry import Registry, Settings, builtin_rules, check_devices
from tensor_cast.performance_model.roofline import MODELS
from tensor_cast.timeline import Timeline, in_order
from tensor_cast.tracing.graph import Graph
from tensor_cast.tracing.program import trace_program

VIEW_SHARE = 0.25  # assumed: of the host's time for an op that launches no kernel
HOST_ERROR = 0.3  # assumed: of the time that the device waits for the host
EXECUTIONS = ("graph", "eager")


@dataclass
class Facts:
    """What the report says of a run besides its prices."""

    model: Any = None
    workload: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    tokens: int | None = None
    samples: int | None = None
    notes: list[str] = field(default_factory=list)
    strict: bool = False
    dtype: str | None = None
    execution: str = "graph"


class Simulation:
    """One step on one device. prices: one a distinct call of the graph."""

    def __init__(
        self,
        graph: Graph,
        device: DeviceProfile,
        registry: Registry,
        model: PerformanceModel,
        prices: list[Price],
        facts: Facts,
    ) -> None:
        self.graph, self.device, self.registry, self.performance_model = graph, device, registry, model
        self.prices, self.facts = prices, facts
        calls = np.fromiter((op.call for op in graph.ops), dtype=np.int64, count=len(graph.ops))
        time_s = np.array([price.time_s for price in prices], dtype=np.float64)
        duration_s = time_s[calls] if len(calls) else np.zeros(0)
        self.timeline: Timeline = in_order(duration_s, self._host_s(duration_s) if facts.execution == "eager" else None)
        self._memory: MemoryProfile | None = None
        self._document: dict[str, Any] | None = None
        self._registry_rows: list[dict[str, Any]] | None = None

    def _host_s(self, duration_s: np.ndarray) -> np.ndarray:
        """What eager PyTorch's host takes to issue each op; one without a kernel (a view) takes a share."""
        return self.device.host_launch_s * np.where(duration_s > 0, 1.0, VIEW_SHARE)

    @property
    def step_time_s(self) -> float:
        """Seconds that the step takes."""
        return self.timeline.step_time_s

    @property
    def step_time_error(self) -> float | None:
        """The relative error that the step's time may have; None where no price says one.

        The errors of one family's calls come from one fit and add up; those of different families are independent.
        """
        by_family: dict[str, float] = defaultdict(float)
        for times, price in zip(self.graph.times_made, self.prices, strict=True):
            if price.error is not None:
                by_family[price.family] += times * price.time_s * price.error
        if not by_family or not self.step_time_s:
            return None
        by_family["host"] = self.timeline.wait_s * HOST_ERROR
        return math.hypot(*by_family.values()) / self.step_time_s

    @property
    def memory(self) -> MemoryProfile:
        if self._memory is None:
            self._memory = profile_of(self.graph)
        return self._memory

    def report(self) -> dict[str, Any]:
        """The document of report.json."""
        if self._document is None:
            self._document = make_document(self)
        return self._document

    def registry_rows(self) -> list[dict[str, Any]]:
        """Every rule: where it came from, and whether it won, lost, or was never asked for."""
        if self._registry_rows is None:
            self._registry_rows = make_registry_rows(self)
        return self._registry_rows

    def events(self) -> Iterator[dict[str, Any]]:
        """Each op in time order, for the timeline's file."""
        shapes = [call.shapes() for call in self.graph.calls]
        names = [call.operator for call in self.graph.calls]
        for op, start_s, duration_s in zip(
            self.graph.ops, self.timeline.start_s.tolist(), self.timeline.duration_s.tolist(), strict=True
        ):
            if not duration_s:
                continue
            price = self.prices[op.call]
            yield {
                "name": names[op.call],
                "module": op.module,
                "phase": op.phase,
                "stream": "communication" if price.bound == "communication" else "device",
                "start_s": start_s,
                "duration_s": duration_s,
                "bound": price.bound,
                "priced_by": price.priced_by,
                "rule": price.rule,
                "shapes": shapes[op.call],
            }

    def memory_timeline(self) -> list[tuple[float, int]]:
        """(seconds, live bytes) whenever the live bytes change."""
        ends = np.concatenate([[0.0], self.timeline.start_s + self.timeline.duration_s])
        live = self.memory.live_bytes
        changed = np.flatnonzero(np.diff(live, prepend=-1))
        return [(float(ends[i]), int(live[i])) for i in changed]


class _ByGraph:
    """What was made of the last graphs: a sweep asks again for each device."""

    def __init__(self, make: Callable[[Graph], Any]) -> None:
        self._make = make
        self._made: dict[int, tuple[Graph, Any]] = {}

    def __call__(self, graph: Graph) -> Any:
        known = self._made.get(id(graph))
        if known is None or known[0] is not graph:
            while len(self._made) >= 4:
                self._made.pop(next(iter(self._made)))
            known = self._made[id(graph)] = (graph, self._make(graph))
        return known[1]


profile_of = _ByGraph(profile)
_written_out = _ByGraph(unfused_attention)


def _as_run(graph: Graph, device: DeviceProfile, registry: Registry) -> Graph:
    """The graph with the kernels that the device has: attention fused, or written out where no rule of the user's prices it."""
    if device.fused_attention or any(registry.is_users(str(operator), device.name) for operator in FUSED):
        return graph
    written_out: Graph = _written_out(graph)
    return written_out


def trace(
    program: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = False,
    optimizer: Callable[..., Any] | None = None,
    custom_op: Sequence[str] | str = (),
    hints: Mapping[str, Any] | None = None,
    **named: Any,
) -> Graph:
    """The graph of one step of a program: no device, no price.

    Args:
        program: a module or any callable; args, kwargs: what it is called with (shapes, strides, dtypes and requires_grad
            matter). Further keywords go to the program too.
        backward, optimizer: add the backward of the summed float outputs, and a step of a torch.optim class or factory.
        custom_op: modules to load first (they may define operators that the program calls).
        hints: the values that shapes and branches of the program depend on, as {"nonzero": 0.5, "item": {"gate": 3}}; see
            ``tensor_cast.tracing.hints``.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UserError(f"kwargs= is a mapping from names to values; got {kwargs!r}.")
    _load(custom_op)
    return trace_program(
        program,
        args,
        {**(kwargs or {}), **named},
        backward=backward,
        optimizer=optimizer,
        prepare=huggingface.prepare,
        within=huggingface.values_unknown,
        hints=hints,
    )


def price(
    graph: Graph,
    device: str | Path | Mapping[str, Any] | DeviceProfile,
    *,
    custom_op: Sequence[str] | str = (),
    performance_model: str | PerformanceModel = "analytic",
    params: Mapping[str, Any] | None = None,
    disable: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    strict: bool = False,
    scan: bool = True,
    kernels: str | None = None,
    execution: str = "graph",
    data: Sequence[str | Path] | str | Path = (),
) -> Simulation:
    """A graph on a device. The keywords are those of the config's ``custom_op`` and ``performance_model``."""
    if not isinstance(graph, Graph):
        raise UserError(f"price() takes a graph, as tensor_cast.trace() makes one; got {type(graph).__name__}.")
    for name, value in (("params", params), ("overrides", overrides)):
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{name}= is a mapping; got {value!r}.")
    patterns = [disable] if isinstance(disable, str) else list(disable)
    settings = Settings(dict(params or {}), patterns, dict(overrides or {}))
    registry = _registry(_load(custom_op, scan), settings)
    if execution not in EXECUTIONS:
        raise UserError(f"execution: there is no choice {execution!r}.{did_you_mean(execution, EXECUTIONS)}")
    model = _model(performance_model, data=[data] if isinstance(data, (str, Path)) else data)
    chosen = load_device(device).with_kernels(kernels)
    return _price(graph, chosen, registry, model, Facts(strict=strict, execution=execution))


def simulate(
    program: Callable[..., Any],
    *args: Any,
    device: str | Path | Mapping[str, Any] | DeviceProfile,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = False,
    optimizer: Callable[..., Any] | None = None,
    custom_op: Sequence[str] | str = (),
    performance_model: str | PerformanceModel = "analytic",
    fusion: str = "vendor",
    hints: Mapping[str, Any] | None = None,
    kernels: str | None = None,
    execution: str = "graph",
    data: Sequence[str | Path] | str | Path = (),
    **named: Any,
) -> Simulation:
    """Trace one step of a program and price it on a device; see ``trace`` and ``price``."""
    _known_fusion(fusion)
    profile_of_device = load_device(device)
    graph = trace(
        program, *args, kwargs=kwargs, backward=backward, optimizer=optimizer, custom_op=custom_op, hints=hints, **named
    )
    simulation = price(
        graph,
        profile_of_device,
        custom_op=custom_op,
        performance_model=performance_model,
        kernels=kernels,
        execution=execution,
        data=data,
    )
    simulation.facts.model = getattr(program, "__name__", type(program).__name__)
    return simulation


_graphs: dict[str, tuple[Graph, Program]] = {}


def simulate_config(config: Any) -> Simulation:
    """The simulation of a composed, checked config. Jobs that share model, workload and layout are traced once."""
    settings_of_model = config.performance_model
    device = load_device(config.device).with_kernels(settings_of_model.kernels)
    _known_fusion(config.fusion.name)
    model = _model(settings_of_model.name, settings_of_model.allow_tf32, settings_of_model.data)
    chosen = [config.custom_op, *config.custom_op.chosen.values()]
    modules = list(dict.fromkeys(name for choice in reversed(chosen) for name in choice.modules))
    rules = _load(modules, config.custom_op.scan)
    settings = Settings()
    for choice in reversed(chosen):
        for name, values in choice.params.items():
            settings.params[name] = {**settings.params.get(name, {}), **_mapping(values, f"custom_op.params.{name}")}
        settings.disable += choice.disable
        settings.overrides |= choice.overrides
    registry = _registry(rules, settings)
    graph, program = _traced(config, modules)
    facts = Facts(
        config.model.name or config.model._target_,
        plain(config.workload),
        plain(config),
        program.tokens,
        program.samples,
        list(program.notes),
        config.custom_op.strict,
        str(config.workload.dtype),
        str(settings_of_model.execution),
    )
    return _price(graph, device, registry, model, facts)


def _mapping(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{key} takes NAME=value, a parameter of the rule and its value; got {value!r}.")
    return {str(name): item for name, item in value.items()}


def _traced(config: Any, modules: list[str]) -> tuple[Graph, Program]:
    key = json.dumps(
        [plain(config.model), plain(config.workload), plain(config.parallel), plain(config.quant), config.fusion.name]
        + [str(modules), plain(config.hints)],
        default=str,
        sort_keys=True,
    )
    if key not in _graphs:
        program = build_program(config.model, config.workload, config.fusion.name)
        graph = trace_program(
            program.run,
            (),
            program.inputs,
            backward=program.backward,
            optimizer=program.optimizer,
            modules=[program.module],
            resident=program.resident,
            within=huggingface.values_unknown,
            hints=config.hints,
            values=program.values,
        )
        program.run, program.inputs, program.resident = _spent, {}, tuple
        while len(_graphs) >= 4:  # a sweep's jobs come model by model or device by device
            _graphs.pop(next(iter(_graphs)))
        _graphs[key] = (graph, program)
    return _graphs[key]


def _spent(**_: Any) -> None:
    raise AssertionError("a program is traced once")


def _load(custom_op: Sequence[str] | str, scan: bool = True) -> list[Any]:
    if not isinstance(custom_op, (str, Path, Sequence)):
        raise UserError(f"custom_op= is a module's name or file, or a list of them; got {custom_op!r}.")
    names = [custom_op] if isinstance(custom_op, (str, Path)) else list(custom_op)
    return load_modules([str(name) for name in names], scan)


def _registry(rules: list[Any], settings: Settings) -> Registry:
    user = [*process_rules(), *rules]
    return Registry([*builtin_rules(), *user], settings)


def _model(name: str | PerformanceModel, allow_tf32: bool = False, data: Sequence[str | Path] = ()) -> PerformanceModel:
    if isinstance(name, PerformanceModel):
        return name
    if name == "measured":
        if not data:
            raise UserError(
                "performance_model=measured looks times up in files: give performance_model.data=[FILE,...] (data= in Python)."
            )
        return _measured(tuple(str(path) for path in data), allow_tf32)
    if name not in MODELS:
        raise UserError(f"performance_model: there is no model {name!r}.{did_you_mean(name, [*MODELS, 'measured'])}")
    if data:
        raise UserError(f"performance_model.data is read by performance_model=measured alone; this run's is {name}.")
    return MODELS[name](allow_tf32=allow_tf32)


def _measured(paths: tuple[str, ...], allow_tf32: bool) -> PerformanceModel:
    """The measured model of some files, which are read once a process while they stay as they are."""
    from tensor_cast.measurements.files import read_measurements
    from tensor_cast.measurements.table import Kernels
    from tensor_cast.performance_model.measured import Measured

    changed = tuple(Path(path).stat().st_mtime_ns if Path(path).exists() else 0 for path in paths)
    key = (paths, changed, allow_tf32)
    if key not in _measured_models:
        _measured_models.clear()
        tables = [table for table in read_measurements(paths) if isinstance(table, Kernels)]
        devices = sorted({table.device for table in tables if table.device})
        if len(devices) > 1:
            raise UserError(
                f"performance_model.data: the files hold times of several devices ({', '.join(devices)}); give those of one."
            )
        _measured_models[key] = Measured(tables, allow_tf32)
    return _measured_models[key]


_measured_models: dict[Any, PerformanceModel] = {}


def _known_fusion(name: str) -> None:
    if name not in ("none", "vendor"):
        raise UserError(f"fusion: there is no choice {name!r}.{did_you_mean(name, ('none', 'vendor'))}")


def _price(
    graph: Graph, device: DeviceProfile, registry: Registry, model: PerformanceModel, facts: Facts
) -> Simulation:
    graph = _as_run(graph, device, registry)
    check_devices((rule for rule in registry.kept if not rule.is_builtin), [*device_names(), device.name])
    prices = []
    for call in graph.calls:
        info = call.info()
        counted = registry.count(call)
        prices.append(price_call(info, counted, registry, model, device))
    if facts.strict:
        unpriced = sorted(
            {call.operator for call, price in zip(graph.calls, prices, strict=True) if price.priced_by == "default"}
        )
        if unpriced:
            raise UserError(
                f"custom_op.strict: no rule prices {', '.join(unpriced)}; write one with @register_op_estimator or"
                " @OpInvokeInfo.register_op_properties, or drop custom_op.strict=true."
            )
    return Simulation(graph, device, registry, model, prices, facts)


def plain(value: Any) -> Any:
    """Dataclasses and enums as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
