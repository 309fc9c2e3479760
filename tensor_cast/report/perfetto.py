"""The timeline as a Chrome trace, to open in https://ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (Google, 2016): complete events ``X`` for ops, counter events ``C`` for live memory,
metadata events ``M`` for names. Times there are microseconds; they are written in whole nanoseconds, so that neighbours
on a stream touch and never overlap by a rounding error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

STREAMS = ("device", "communication", "host")

_ARGS = ("module", "phase", "bound", "priced_by", "rule")


def chrome_trace(
    events: Iterable[Mapping[str, Any]], memory_timeline: Iterable[tuple[float, int]], title: str = "tensor_cast"
) -> str:
    """The JSON text of a trace.

    Args:
        events: one mapping an op in time order: ``name``, ``module``, ``phase``, ``stream``, ``start_s``,
            ``duration_s``, ``bound``, ``priced_by``, ``rule``, ``shapes`` (list of str). A stream beyond ``STREAMS``
            gets a row of its own.
        memory_timeline: (time in seconds, live bytes), in time order; drawn as the counter ``memory``.
        title: the name of the process row.
    """
    quote = lru_cache(maxsize=None)(_quote)
    threads = {stream: tid for tid, stream in enumerate(STREAMS)}
    ends_ns: dict[str, int] = {}
    lines: list[str] = []
    for event in events:
        stream = event["stream"]
        tid = threads.setdefault(stream, len(threads))
        start_s, duration_s = event["start_s"], event["duration_s"]
        assert math.isfinite(start_s) and math.isfinite(duration_s), f"{event['name']}: {start_s} s for {duration_s} s"
        assert duration_s >= 0, f"{event['name']}: takes {duration_s} s"
        start_ns, end_ns = round(start_s * 1e9), round((start_s + duration_s) * 1e9)
        last_ns = ends_ns.get(stream, 0)
        if start_ns == last_ns - 1:
            start_ns = last_ns
        end_ns = ends_ns[stream] = max(start_ns, end_ns)
        name, phase = quote(event["name"]), event.get("phase")
        args = ",".join([f'"{key}":{quote(event.get(key))}' for key in _ARGS])
        shapes = quote(", ".join(event.get("shapes") or ()))
        lines.append(
            f'{{"ph":"X","pid":0,"tid":{tid},"ts":{start_ns / 1000},"dur":{(end_ns - start_ns) / 1000},"name":{name}'
            f',"cat":{quote(phase or "op")},"args":{{"op":{name},{args},"shapes":{shapes}}}}}'
        )
    for time_s, live_bytes in memory_timeline:
        assert math.isfinite(time_s) and math.isfinite(live_bytes), f"memory: {live_bytes} bytes at {time_s} s"
        ts = round(time_s * 1e9) / 1000
        lines.append(f'{{"ph":"C","pid":0,"ts":{ts},"name":"memory","args":{{"live_bytes":{live_bytes}}}}}')
    used = threads if not ends_ns else {stream: tid for stream, tid in threads.items() if stream in ends_ns}
    names = [_metadata("process_name", 0, name=title)]
    for stream, tid in used.items():
        names += [_metadata("thread_name", tid, name=stream), _metadata("thread_sort_index", tid, sort_index=tid)]
    return '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(names + lines) + "\n]}\n"


def _quote(value: str | None) -> str:
    return json.dumps(value, ensure_ascii=False)


def _metadata(kind: str, tid: int, **args: object) -> str:
    return json.dumps({"ph": "M", "pid": 0, "tid": tid, "name": kind, "args": args}, ensure_ascii=False)
