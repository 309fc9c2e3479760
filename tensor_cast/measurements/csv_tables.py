"""CSV tables of measured kernels (also .gz), one kernel a row, known by their columns.

    product       device dtype m n k latency_us [batch source note] attention     device dtype kv_dtype kind phase
    causal batch q_len kv_len n_heads n_kv_heads head_dim v_head_dim window latency_us experts       device dtype part
    tokens hidden inter topk experts tp ep distribution latency_us collective    device op dtype world_size nodes bytes
    latency_us element-wise  device op dtype rows cols bytes latency_us

All with source and note where there are any. kind: mha_gqa or mla (a decode step of mla is absorbed: one key head whose
values are part of its keys). window 0: all keys. bytes: of an element-wise kernel, the least it reads and writes; of
all_gather, the whole result.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from tensor_cast.errors import UserError
from tensor_cast.measurements.table import Kernels, Layers, Measurements, Messages, group_of
from tensor_cast.performance_model.builtin.attention import SOFTMAX_OPS
from tensor_cast.performance_model.builtin.pointwise import WEIGHTS
from tensor_cast.performance_model.families.attention import Attention
from tensor_cast.performance_model.families.experts import Layer
from tensor_cast.performance_model.families.products import Product
from tensor_cast.performance_model.families.streaming import Stream

Row = dict[str, str]

# a table's word for a type -> the rate's name, and bytes of an element of activations and weights, 1 where
# activations are narrowed inside
_PRODUCT_TYPES: Mapping[str, tuple[str, float, float, float]] = {
    "float64": ("float64", 8, 8, 0), "float32": ("float32", 4, 4, 0), "tfloat32": ("tfloat32", 4, 4, 0),
    "float16": ("float16", 2, 2, 0), "bfloat16": ("bfloat16", 2, 2, 0), "float8_e4m3fn": ("float8_e4m3fn", 1, 1, 0),
    "fp8": ("float8_e4m3fn", 1, 1, 1), "fp8_block": ("float8_e4m3fn", 1, 1, 1), "int8": ("int8", 1, 1, 1),
    "int8_smoothquant": ("int8", 1, 1, 1), "int8_wo": ("bfloat16", 2, 1, 0), "int4_wo": ("bfloat16", 2, 0.53, 0),
}  # fmt: skip
_LAYER_TYPES: Mapping[str, tuple[str, float, float]] = {
    "bfloat16": ("bfloat16", 2, 2), "float16": ("float16", 2, 2), "fp8": ("float8_e4m3fn", 1, 1),
    "fp8_block": ("float8_e4m3fn", 1, 1), "w4a16_mxfp4": ("bfloat16", 0.53, 2), "int4_wo": ("bfloat16", 0.53, 2),
}  # fmt: skip
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "float8_e4m3fn": 1, "int8": 1}
_ELEMENT_OPS = {  # operations an element of the result, and the family
    "layernorm": (8, "normalization"), "rmsnorm": (4, "normalization"), "rmsnorm/layernorm": (8, "normalization"),
    "softmax": (9, "softmax"), "rope": (3, "elementwise"), "silu_and_mul": (7, "elementwise"),
    "static_quant_fp8": (2, "elementwise"),
    "mulu": (1, "elementwise"), "addu": (1, "elementwise"), "divu": (2, "elementwise"), "powu": (8, "elementwise"),
}  # fmt: skip
_COLLECTIVES = {
    "all_reduce": "all_reduce", "all_reduce_custom": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all",
}  # fmt: skip


def read_rows(path: Path) -> tuple[set[str], list[Row]]:
    """The columns and rows of a CSV file.

    Raises:
        UserError: a file that cannot be read.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = {name.strip() for name in reader.fieldnames or () if name}
            return columns, [{(name or "").strip(): value for name, value in row.items()} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a CSV file, or one packed with gzip.") from error


def read_csv(path: Path, columns: set[str], rows: list[Row]) -> list[Measurements]:
    """The measurements of a table, by device, source, type and whatever else makes another kernel of them.

    Raises:
        UserError: a row that is no measurement.
    """
    group, make = next((group, make) for needed, group, make in SCHEMAS if needed <= columns)
    return list(_grouped(path, rows, group, make))


def _grouped(
    path: Path, rows: list[Row], group: Callable[[Row], str | None], make: Callable[[Table], Measurements | None]
) -> Iterator[Measurements]:
    kept: dict[tuple[str, str, str], list[tuple[int, Row]]] = defaultdict(list)
    for line, row in enumerate(rows, start=2):
        if None in row.values():
            raise UserError(f"{path}:{line}: the row is shorter than the header.")
        words = group(row)
        if words is not None:
            kept[row.get("device") or "", row.get("source") or path.stem.partition(".")[0], words].append((line, row))
    for (device, source, words), several in sorted(kept.items()):
        made = make(Table(path, device, source, words, several))
        if made is not None:
            yield made


class Table:
    """Rows of one device, source and kind of kernel, by column."""

    def __init__(self, path: Path, device: str, source: str, words: str, rows: list[tuple[int, Row]]) -> None:
        self.path, self.device, self.source, self.words, self.rows = path, device, source, words, rows

    def column(self, name: str, default: float | None = None, least: float = 0.0) -> np.ndarray:
        """The numbers of a column; UserError with file and line for what is none."""
        values = []
        for line, row in self.rows:
            text = (row.get(name) or "").strip()
            if not text and default is not None:
                values.append(default)
                continue
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not least <= value < math.inf or (name == "latency_us" and value == 0):
                what = f"a number of at least {least:g}" if name != "latency_us" else "a time above zero"
                raise UserError(f"{self.path}:{line}: {name} must be {what}, got {text!r}.")
            values.append(value)
        return np.array(values, dtype=np.float64)

    def texts(self, name: str) -> list[str]:
        return [row.get(name) or "" for _, row in self.rows]

    @property
    def time_s(self) -> np.ndarray:
        return self.column("latency_us") * 1e-6

    def head(
        self, family: str, dtype: str, *grouped: np.ndarray
    ) -> tuple[str, str, str, str, str, np.ndarray, np.ndarray]:
        """The first fields of the measurements: what, and times, and groups of equal ``grouped`` columns."""
        groups = np.array(
            [group_of(*row) for row in zip(*(part.tolist() for part in grouped), strict=True)], dtype=np.int64
        )
        return self.device, self.source, family, dtype, self.words, self.time_s, groups


def _product_words(row: Row) -> str | None:
    if row["dtype"] not in _PRODUCT_TYPES:
        return None
    return f"{row['dtype']} batched" if (row.get("batch") or "1") not in ("1", "1.0") else row["dtype"]


def _products(table: Table) -> Measurements:
    dtype, activation_bytes, weight_bytes, narrowed = _PRODUCT_TYPES[table.words.split(" ")[0]]
    M, N, K = (table.column(name, least=1) for name in "mnk")
    batch = table.column("batch", 1, least=1)
    weights = batch * N * K * weight_bytes
    num_bytes = weights + batch * (M * K * activation_bytes + M * N * max(activation_bytes, 2))
    geometry = Product(batch, M, N, K, weights, activation_bytes, narrowed)
    family = "batched_matmul" if table.words.endswith("batched") else "matmul"
    return Kernels(*table.head(family, dtype, N, K), geometry, 2 * batch * M * N * K, np.zeros(len(M)), num_bytes)


def _attention_words(row: Row) -> str | None:
    return (
        f"{row['kind']} {row['phase']} {row['dtype']} kv {row['kv_dtype']}"
        if row["dtype"] in _BYTES and row["kv_dtype"] in _BYTES
        else None
    )


def _attention(table: Table) -> Measurements:
    kind, phase, word, _, kv_word = table.words.split(" ")
    dtype = "float8_e4m3fn" if word == "fp8" else word
    B, S, T, H, kv_heads, D, value_dim = (
        table.column(name, least=1)
        for name in ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "v_head_dim")
    )
    window = table.column("window", 0)
    decode, absorbed = phase == "decode", kind == "mla" and phase == "decode"
    causal = np.array([text in ("1", "True", "true", "1.0") for text in table.texts("causal")]) | decode
    band = np.where(window > 0, np.minimum(window, T), T)
    first = np.maximum(T - S + 1, 1)
    growing = np.clip(band - first + 1, 0, S)
    pairs = np.where(causal, growing * first + growing * (growing - 1) / 2 + (S - growing) * band, S * band)
    seen = np.where(window > 0, np.minimum(T, window + S - 1), T)
    cache_bytes = B * seen * (D if absorbed else kv_heads * (D + value_dim)) * _BYTES[kv_word]
    num_bytes = cache_bytes + B * H * S * (_BYTES[word] * D + 2 * value_dim)
    geometry = Attention(
        B,
        H,
        kv_heads,
        S,
        T,
        value_dim,
        pairs,
        seen,
        cache_bytes,
        causal.astype(float),
        ((window > 0) & (window < T)).astype(float),
    )
    grouped = (H, kv_heads, D, B) if kind == "mla" else (H, kv_heads, D)
    family = "latent_attention" if absorbed else "decode_attention" if decode else "attention"
    head = table.head(family, dtype, *grouped)
    rows = Kernels(
        *head,
        geometry,
        2 * B * H * pairs * (D + value_dim),
        SOFTMAX_OPS * B * H * pairs,
        num_bytes,
        gp_dtype="bfloat16",
    )
    return rows.chosen(np.flatnonzero(T >= 128)) if decode else rows  # shorter caches: the launch alone


def _layer_words(row: Row) -> str | None:
    return (
        f"{row['dtype']} {row.get('note') or row['part']}"
        if row["dtype"] in _LAYER_TYPES and row["part"].startswith("full")
        else None
    )


def _layers(table: Table) -> Measurements:
    dtype, weight_bytes, element_bytes = _LAYER_TYPES[table.words.split(" ")[0]]
    names = ("tokens", "hidden", "inter", "topk", "experts")
    tokens, hidden, inter, top_k, experts = (table.column(name, least=1) for name in names)
    tp, ranks = table.column("tp", 1, least=1), table.column("ep", 1, least=1)
    uneven = np.array([text != "balanced" for text in table.texts("distribution")])
    # Nemotron's experts (2688 -> 1856) square a ReLU and have no gate
    gates = np.where(((hidden == 2688) & (inter == 1856)) | ("nongated" in table.words), 1.0, 2.0)
    layer = Layer(tokens, hidden, inter / tp, gates, top_k, experts, ranks, uneven, weight_bytes, element_bytes)
    return Layers(*table.head("grouped_matmul", dtype, hidden, inter, top_k, experts), layer)


def _message_words(row: Row) -> str | None:
    if row["op"] not in _COLLECTIVES or (row.get("nodes") or "1") not in ("1", "1.0"):
        return None
    return f"all_reduce {row.get('note') or ''}".strip() if row["op"] == "all_reduce_custom" else "one node"


def _messages(table: Table) -> Measurements | None:
    num_bytes, ranks = table.column("bytes"), table.column("world_size", least=1)
    kinds = np.array([_COLLECTIVES[op] for op in table.texts("op")])
    mask = np.flatnonzero((num_bytes > 0) & (ranks > 1))
    numbers = np.unique(kinds, return_inverse=True)[1].astype(float)
    rows = Messages(*table.head("collective", "", numbers, num_bytes), kinds, num_bytes, ranks)
    return rows.chosen(mask) if len(mask) else None


def _element_words(row: Row) -> str | None:
    known = row["op"] in WEIGHTS or row["op"] in _ELEMENT_OPS or row["op"] in ("add", "mul", "relu", "sub")
    return (
        f"{_ELEMENT_OPS.get(row['op'], (1, 'elementwise'))[1]} {row['dtype']}"
        if known and row["dtype"] in _BYTES
        else None
    )


def _elements(table: Table) -> Measurements:
    family, dtype = table.words.split(" ")
    rows, columns, num_bytes = (
        table.column("rows", least=1),
        table.column("cols", least=1),
        table.column("bytes", least=1),
    )
    ops = np.array([_ELEMENT_OPS.get(op, (WEIGHTS.get(op, 1), ""))[0] for op in table.texts("op")], dtype=np.float64)
    by_row = family != "elementwise"
    geometry = Stream(rows * by_row, columns * by_row)
    return Kernels(
        *table.head(family, dtype, rows, columns),
        geometry,
        np.zeros(len(rows)),
        ops * rows * columns,
        num_bytes,
        gp_dtype=dtype,
    )


SCHEMAS: tuple[tuple[set[str], Callable[[Row], str | None], Callable[[Table], Measurements | None]], ...] = (
    ({"dtype", "m", "n", "k", "latency_us"}, _product_words, _products),
    (
        {
            "dtype",
            "kv_dtype",
            "kind",
            "phase",
            "batch",
            "q_len",
            "kv_len",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "v_head_dim",
            "latency_us",
        },
        _attention_words,
        _attention,
    ),
    ({"dtype", "part", "tokens", "hidden", "inter", "topk", "experts", "latency_us"}, _layer_words, _layers),
    ({"op", "world_size", "bytes", "latency_us"}, _message_words, _messages),
    ({"op", "dtype", "rows", "cols", "bytes", "latency_us"}, _element_words, _elements),
)
