"""The report's document: plain values, summed from the prices of a simulation."""

from __future__ import annotations

import platform
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tensor_cast.dtypes import rate_name
from tensor_cast.performance_model.declarations import Rule

if TYPE_CHECKING:
    from tensor_cast.simulation import Simulation

BOUNDS = ("mma", "gp", "memory", "communication", "launch", "given")
LEVELS = (
    "override",
    "user_estimator",
    "builtin_estimator",
    "user_properties",
    "builtin_properties",
    "measured",
    "default",
)


def make_document(simulation: Simulation) -> dict[str, Any]:
    """The dictionary that report.json holds; every number a sum over ops."""
    device, facts = simulation.device, simulation.facts
    rows = op_rows(simulation)
    step_time_s = simulation.step_time_s
    totals = _totals(simulation, step_time_s)
    unpriced = sorted({row["op"] for row in rows if row["priced_by"] == "default"})
    registry_rows = simulation.registry_rows()
    unused = [row["rule"] for row in registry_rows if row["outcome"] == "unused" and row["level"].startswith("user")]
    return {
        "schema_version": 1,
        "device": {"name": device.name, "sources": dict(device.sources)},
        "model": facts.model,
        "workload": facts.workload,
        "config": facts.config,
        "performance_model": getattr(simulation.performance_model, "name", type(simulation.performance_model).__name__),
        "versions": _versions(),
        "step_time_s": step_time_s,
        "step_time_error": simulation.step_time_error,
        "host_wait_s": simulation.timeline.wait_s,
        "execution": facts.execution,
        "tokens_per_s": facts.tokens / step_time_s if facts.tokens and step_time_s else None,
        "samples_per_s": facts.samples / step_time_s if facts.samples and step_time_s else None,
        "time_by_bound_s": _time_by_bound(simulation),
        "totals": totals,
        "ops": rows,
        "coverage": _coverage(rows),
        "unpriced_ops": unpriced,
        "memory": _memory(simulation),
        "rules": {
            "unused": unused,
            "disabled": [row["rule"] for row in registry_rows if row["outcome"] == "disabled"],
        },
        "warnings": _warnings(simulation, unpriced, unused, rows),
    }


def op_rows(simulation: Simulation) -> list[dict[str, Any]]:
    """Ops grouped by operator, module pattern, phase and price, the longest first."""
    graph, prices = simulation.graph, simulation.prices
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    spread: dict[int, float] = defaultdict(float)  # seconds that a row may be off
    for index, pattern, phase, calls in graph.tally:
        price, call = prices[index], graph.calls[index]
        properties = price.properties
        if (
            not price.time_s
            and not properties.read_bytes
            and not properties.write_bytes
            and price.priced_by == "builtin_properties"
        ):
            continue  # views and empty tensors
        key = (call.operator, pattern, phase, price.bound, price.priced_by, price.rule)
        row = groups.get(key)
        if row is None:
            row = groups[key] = {
                "op": call.operator,
                "module": pattern,
                "phase": phase,
                "calls": 0,
                "time_s": 0.0,
                "mma_ops": 0,
                "gp_ops": 0,
                "read_bytes": 0,
                "write_bytes": 0,
                "communication_bytes": 0,
                "bound": price.bound,
                "priced_by": price.priced_by,
                "rule": price.rule,
                "shapes": [],
                "error": None,
            }
        row["calls"] += calls
        row["time_s"] += calls * price.time_s
        if price.error is not None:
            spread[id(row)] += calls * price.time_s * price.error
        for name in ("mma_ops", "gp_ops", "read_bytes", "write_bytes", "communication_bytes"):
            row[name] += calls * getattr(properties, name)
        if len(row["shapes"]) < 4:
            shapes = ", ".join(call.shapes())
            if shapes not in row["shapes"]:
                row["shapes"].append(shapes)
    for row in groups.values():
        if id(row) in spread and row["time_s"]:
            row["error"] = spread[id(row)] / row["time_s"]
    return sorted(groups.values(), key=lambda row: -row["time_s"])


def make_registry_rows(simulation: Simulation) -> list[dict[str, Any]]:
    """One row a rule: its place and what became of it."""
    registry, graph = simulation.registry, simulation.graph
    asked: dict[tuple[str, str], tuple[int, float]] = {}
    priced_by: dict[str, str] = {}
    named: dict[str, list[str]] = defaultdict(list)
    for call, times, price in zip(graph.calls, graph.times_made, simulation.prices, strict=True):
        operator = call.operator
        before = asked.get((price.rule, operator), (0, 0.0))
        asked[price.rule, operator] = (before[0] + times, before[1] + times * price.time_s)
        if operator not in priced_by:
            for name in (operator, operator.rpartition(".")[0]):
                named[name].append(operator)
        priced_by[operator] = price.rule
    replaced = {id(old): new for old, new in registry.replaced}
    rows = []
    for rule in registry.kept:
        rule_id = registry.rule_id(rule)
        mine = named.get(rule.operator, [])
        won = [asked[rule_id, operator] for operator in mine if (rule_id, operator) in asked]
        calls, time_s = sum(part[0] for part in won), sum(part[1] for part in won)
        outcome, note = ("won", "") if won else _why_not(simulation, rule, mine, priced_by, replaced)
        rows.append(_row(simulation, rule, outcome, calls, time_s, note))
    for rule in registry.disabled:
        rows.append(_row(simulation, rule, "disabled", 0, 0.0, "custom_op.disable"))
    return rows


def _why_not(
    simulation: Simulation, rule: Rule, mine: list[str], priced_by: dict[str, str], replaced: dict[int, Rule]
) -> tuple[str, str]:
    """(outcome, note) of a rule that priced nothing."""
    if id(rule) in replaced:
        return "lost", f"replaced by {simulation.registry.rule_id(replaced[id(rule)])}"
    if rule.device is not None and rule.device != simulation.device.name:
        return "unused", f"for {rule.device} only"
    if mine:
        return "lost", f"{mine[0]} was priced by {priced_by[mine[0]]}"
    return "unused", "no op of the run asked for it"


def _row(simulation: Simulation, rule: Rule, outcome: str, calls: int, time_s: float, note: str) -> dict[str, Any]:
    return {
        "rule": simulation.registry.rule_id(rule),
        "operator": rule.operator,
        "device": rule.device or "",
        "level": rule.level,
        "file": rule.file,
        "line": rule.line,
        "outcome": outcome,
        "calls": calls,
        "time_s": time_s,
        "note": note,
    }


def _time_by_bound(simulation: Simulation) -> dict[str, float]:
    times = dict.fromkeys(BOUNDS, 0.0)
    for count, price in zip(simulation.graph.times_made, simulation.prices, strict=True):
        times["launch"] += count * price.launch_s
        times[price.bound] += count * (price.time_s - price.launch_s)
    times["launch"] += simulation.timeline.wait_s  # the device waits until the host has issued its next op
    return times


def _totals(simulation: Simulation, step_time_s: float) -> dict[str, Any]:
    names = ("mma_ops", "gp_ops", "read_bytes", "write_bytes", "communication_bytes")
    totals: dict[str, Any] = dict.fromkeys(names, 0)
    model_flops = busy_s = 0.0
    rates = simulation.device.matrix_ops_per_s
    for index, _, phase, times in simulation.graph.tally:
        properties = simulation.prices[index].properties
        for name in names:
            totals[name] += times * getattr(properties, name)
        if phase != "recompute":
            model_flops += times * properties.needed_mma_ops
        for dtype, ops in properties.compute_ops.items():
            rate = rates.get(rate_name(dtype))
            busy_s += times * ops.mma_ops / rate if rate else 0.0
    executed = totals["mma_ops"]
    hfu = busy_s / step_time_s if step_time_s and busy_s else None
    totals |= {
        "model_flops": model_flops,
        "executed_flops": executed,
        "mfu": hfu * model_flops / executed if hfu and executed else None,
        "hfu": hfu,
    }
    return totals


def _coverage(rows: list[dict[str, Any]]) -> dict[str, float]:
    times = dict.fromkeys(LEVELS, 0.0)
    for row in rows:
        times[row["priced_by"]] += row["time_s"]
    whole = sum(times.values())
    return {level: time_s / whole for level, time_s in times.items()} if whole else times


def _memory(simulation: Simulation) -> dict[str, Any]:
    memory, device = simulation.memory, simulation.device
    reserved = memory.reserved_bytes
    return {
        "peak_bytes": memory.peak_bytes,
        **{
            f"{name}_bytes": memory.by_category.get(name, 0)
            for name in ("weights", "kv_cache", "activations", "gradients", "optimizer", "inputs", "temporaries")
        },
        "reserved_bytes": reserved,
        "context_bytes": device.context_bytes,
        "capacity_bytes": device.memory_bytes,
        "fits": bool(reserved + device.context_bytes <= device.memory_bytes),
        "at_peak": [
            {
                "bytes": holder.num_bytes,
                "op": holder.op or holder.category,
                "module": holder.module or holder.name,
                "category": holder.category,
            }
            for holder in memory.at_peak
        ],
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("tensor_cast", "torch", "transformers", "hydra-core"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _warnings(
    simulation: Simulation,
    unpriced: list[str],
    unused: list[str],
    rows: list[dict[str, Any]],
) -> list[str]:
    warnings = [*simulation.facts.notes, *simulation.graph.notes]
    if unpriced:
        share = sum(row["time_s"] for row in rows if row["priced_by"] == "default") / (simulation.step_time_s or 1.0)
        warnings.append(
            f"{len(unpriced)} operators have no rule and were priced by their bytes alone ({share:.1%} of the time):"
            f" {', '.join(unpriced)}."
        )
    for rule in unused:
        warnings.append(f"the rule {rule} was never asked for: no op of the run is its operator on this device.")
    for operator in simulation.registry.overridden():
        names = {call.operator for call in simulation.graph.calls}
        if operator not in names and not any(name.rpartition(".")[0] == operator for name in names):
            warnings.append(f"custom_op.overrides.{operator}: no op of the run is that operator.")
    needed = simulation.memory.reserved_bytes + simulation.device.context_bytes
    if needed > simulation.device.memory_bytes:
        warnings.append("the step does not fit into the device's memory.")
    return warnings
