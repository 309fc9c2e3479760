"""What operators do: operations and bytes of single calls, worked by hand."""

import pytest
import torch

import tensor_cast.ops  # noqa: F401
from tensor_cast.performance_model.builtin.attention import Pairs, pairs_of
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
from tensor_cast.performance_model.registry import Registry, builtin_rules

aten, ours = torch.ops.aten, torch.ops.tensor_cast
REGISTRY = Registry(builtin_rules())
MiB = 2**20


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def long(*shape):
    return meta(*shape, dtype=torch.int64)


def counted(op, *args, **kwargs):
    return REGISTRY.properties(OpInvokeInfo(op, args, kwargs, op(*args, **kwargs)))


def bf16(*shape):
    return meta(*shape, dtype=torch.bfloat16)


MATRIX = [
    # op, args, operations
    (aten.mm.default, (meta(3, 5), meta(5, 7)), 2 * 3 * 5 * 7),
    (aten.addmm.default, (meta(7), meta(3, 5), meta(5, 7)), 2 * 3 * 5 * 7),
    (aten.bmm.default, (meta(2, 3, 5), meta(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
    (aten.baddbmm.default, (meta(2, 3, 7), meta(2, 3, 5), meta(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
    (aten.addbmm.default, (meta(3, 7), meta(2, 3, 5), meta(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
    (aten.mv.default, (meta(3, 5), meta(5)), 2 * 3 * 5),
    (aten.addmv.default, (meta(3), meta(3, 5), meta(5)), 2 * 3 * 5),
    (aten.dot.default, (meta(5), meta(5)), 2 * 5),
    (aten._int_mm.default, (meta(32, 8, dtype=torch.int8), meta(8, 16, dtype=torch.int8)), 2 * 32 * 8 * 16),
    # a complex multiply-add is four real ones
    (aten.mm.default, (meta(3, 5, dtype=torch.complex64), meta(5, 7, dtype=torch.complex64)), 8 * 3 * 5 * 7),
    (aten._grouped_mm.default, (meta(11, 8, dtype=torch.bfloat16), meta(3, 8, 16, dtype=torch.bfloat16), meta(3, dtype=torch.int32)),
     2 * 11 * 8 * 16),
    (aten._weight_int8pack_mm.default, (meta(3, 64, dtype=torch.bfloat16), meta(7, 64, dtype=torch.int8),
                                        meta(7, dtype=torch.bfloat16)), 2 * 3 * 64 * 7),
    # a triangle of 5 x 5 against 5 x 3: half of 2 * 5 * 5 * 3
    (aten.linalg_solve_triangular.default, (meta(5, 5), meta(5, 3)), 5 * 5 * 3),
    # Golub and Van Loan: n^3 / 3; 2 n^3; m n^2 - n^3 / 3; 14 m n^2 + 8 n^3 with vectors; 9 n^3
    (aten.linalg_cholesky_ex.default, (meta(6, 6),), 72),
    (aten.linalg_inv_ex.default, (meta(6, 6),), 432),
    (aten.linalg_lu_factor_ex.default, (meta(9, 6),), 9 * 36 - 72),
    (aten._linalg_svd.default, (meta(9, 6),), 14 * 9 * 36 + 8 * 216),
    (aten._linalg_eigh.default, (meta(2, 6, 6),), 2 * 9 * 216),
    # 11 rows, 3 experts: each row meets one expert
    (ours.grouped_matmul.default, (meta(11, 5), meta(3, 5, 7), long(3)), 2 * 11 * 5 * 7),
    (ours.grouped_matmul.default, (meta(5, 11), meta(11, 7), long(3)), 2 * 11 * 5 * 7),
    # output (2, 7, 9, 9), kernel 3 x 3, 5 input channels
    (aten.convolution.default, (meta(2, 5, 11, 11), meta(7, 5, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
     2 * 2 * 7 * 9 * 9 * 5 * 9),
    # two groups: half the input channels each
    (aten.convolution.default, (meta(2, 6, 11, 11), meta(8, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2),
     2 * 2 * 8 * 9 * 9 * 3 * 9),
    # transposed: the kernel is laid on the 4 input positions: 2 * 4 * 3 * 1 * 4
    (aten.convolution.default, (meta(1, 3, 2, 2), meta(3, 1, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1), 96),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "expected"), MATRIX, ids=lambda value: str(value)[:40])
def test_matrix_operations(op, args, expected):
    keywords = {"upper": True} if op is aten.linalg_solve_triangular.default else {}
    assert counted(op, *args, **keywords).properties.mma_ops == expected


VECTOR = [
    # name, op, args, kwargs, element-wise operations
    ("complex transform", aten._fft_c2c.default, (meta(3, 64, dtype=torch.complex64), [1], 0, True), {}, 5 * 3 * 64 * 6),
    ("real transform", aten._fft_r2c.default, (meta(3, 64), [1], 0, True), {}, 2.5 * 3 * 64 * 6),
    ("sort", aten.sort.default, (meta(3, 64),), {}, 3 * 64 * 6),  # n log2 n
    ("top-k", aten.topk.default, (meta(3, 64), 5), {}, 4 * 3 * 64),
    ("scatter_add_", aten.scatter_add_.default, (meta(5, 7), 0, long(3, 7), meta(3, 7)), {}, 3 * 7),
    ("index_add_", aten.index_add_.default, (meta(5, 7), 0, long(3), meta(3, 7)), {}, 3 * 7),
    ("index_put_ adding", aten.index_put_.default, (meta(50, 7), [long(3)], meta(3, 7), True), {}, 3 * 7),
    ("embedding backward", aten.embedding_dense_backward.default, (meta(3, 5, 7), long(3, 5), 50, -1, False), {}, 3 * 5 * 7),
    ("layer norm", aten.native_layer_norm.default, (meta(3, 7), [7], meta(7), meta(7), 1e-5), {}, 8 * 21),
    ("layer norm backward", aten.native_layer_norm_backward.default,
     (meta(3, 7), meta(3, 7), [7], meta(3, 1), meta(3, 1), meta(7), meta(7), [True] * 3), {}, 14 * 21),
    ("group norm", aten.native_group_norm.default, (meta(2, 6, 5), meta(6), meta(6), 2, 6, 5, 3, 1e-5), {}, 8 * 60),
    ("softmax", aten._softmax.default, (meta(3, 7), -1, False), {}, 9 * 21),
    ("softmax backward", aten._softmax_backward_data.default, (meta(3, 7), meta(3, 7), -1, torch.float32), {}, 4 * 21),
    ("mean", aten.mean.dim, (meta(3, 7), [1]), {}, 21),
    ("variance", aten.var_mean.correction, (meta(3, 7), [1]), {}, 3 * 21),
    ("cumulative sum", aten.cumsum.default, (meta(3, 7), 1), {}, 21),
    ("cross entropy's pick", aten.nll_loss_forward.default, (meta(3, 7), long(3), None, 1, -100), {}, 2 * 3),
    ("squared error", aten.mse_loss.default, (meta(3, 7), meta(3, 7)), {}, 3 * 21),
    ("max pool", aten.max_pool2d_with_indices.default, (meta(1, 2, 8, 8), [2, 2], [2, 2]), {}, 4 * 2 * 16),
    ("average pool", aten.avg_pool2d.default, (meta(1, 2, 8, 8), [2, 2], [2, 2]), {}, 4 * 2 * 16),
    ("adaptive pool", aten._adaptive_avg_pool2d.default, (meta(1, 2, 8, 8), [1, 1]), {}, 128),
    ("nearest", aten.upsample_nearest2d.default, (meta(1, 2, 4, 4), [8, 8]), {}, 2 * 128),
    ("bilinear", aten.upsample_bilinear2d.default, (meta(1, 2, 4, 4), [8, 8], False), {}, 2 * 4 * 128),
    ("dropout", aten.native_dropout.default, (meta(3, 7), 0.1, True), {}, 12 * 21),
    ("add", aten.add.Tensor, (meta(3, 7), meta(7)), {}, 21),
    ("complex add", aten.add.Tensor, (meta(3, 7, dtype=torch.complex64), meta(7, dtype=torch.complex64)), {}, 42),
    ("comparison", aten.gt.Tensor, (meta(3, 7), meta(7)), {}, 21),
    ("fused optimizer", aten._fused_adamw_.default,
     ([meta(21)], [meta(21)], [meta(21)], [meta(21)], [], [meta()]),
     {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": False}, 16 * 21),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "expected"), [row[1:] for row in VECTOR], ids=[row[0] for row in VECTOR]
)
def test_element_wise_operations(op, args, kwargs, expected):
    counts = counted(op, *args, **kwargs)
    assert counts.level == "builtin_properties" and counts.properties.gp_ops == expected


@pytest.mark.parametrize(("mask", "times"), [([True, True, False], 2), ([False, True, False], 1)])
def test_convolution_backward_is_two_forwards_or_one_where_the_input_needs_none(mask, times):
    x, w, grad = meta(2, 6, 11, 11), meta(8, 3, 3, 3), meta(2, 8, 9, 9)
    args = (grad, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2, mask)
    assert counted(aten.convolution_backward.default, *args).properties.mma_ops == times * 2 * 2 * 8 * 9 * 9 * 3 * 9


def test_packed_weights_count_as_stored():
    # 16 x 64 weights of four bits are 512 bytes; scales and zeros of two groups of 32
    left, packed, scales = bf16(3, 64), meta(2, 2, 32, 1, dtype=torch.int32), bf16(2, 16, 2)
    info = OpInvokeInfo(aten._weight_int4pack_mm.default, (left, packed, 32, scales), {}, bf16(3, 16))
    properties = REGISTRY.properties(info).properties
    assert properties.mma_ops == 2 * 3 * 64 * 16
    assert (properties.read_bytes, properties.write_bytes) == (2 * 3 * 64 + 512 + 2 * 64, 2 * 3 * 16)


def test_fp8_products_count_in_the_input_type():
    a, b = meta(32, 16, dtype=torch.float8_e4m3fn), meta(16, 16, dtype=torch.float8_e4m3fn).t()
    scale = meta()
    out = bf16(32, 16)
    info = OpInvokeInfo(aten._scaled_mm.default, (a, b, scale, scale), {"out_dtype": torch.bfloat16}, out)
    properties = REGISTRY.properties(info).properties
    assert {d: ops.mma_ops for d, ops in properties.compute_ops.items()} == {torch.float8_e4m3fn: 2 * 32 * 16 * 16}
    assert (properties.read_bytes, properties.write_bytes) == (32 * 16 + 16 * 16 + 4, 2 * 32 * 16)


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "window", "pairs"),
    [
        (4, 10, False, None, Pairs(40, 40)),
        (4, 4, True, None, Pairs(10, 16)),  # S (S + 1) / 2
        (4, 10, True, None, Pairs(34, 40)),  # S (T - S) + S (S + 1) / 2
        (1, 10, True, None, Pairs(10, 10)),
        (5, 5, True, 2, Pairs(9, 10)),  # 1 + 2 + 2 + 2 + 2
        (3, 10, True, 4, Pairs(12, 12)),
        (4, 10, True, 100, Pairs(34, 40)),
        (5, 3, True, None, Pairs(6, 15)),  # two queries before the first key
        (5, 3, True, 2, Pairs(5, 10)),
    ],
)
def test_visible_pairs(queries, keys, causal, window, pairs):
    assert pairs_of(queries, keys, causal, window) == pairs
    if causal:
        last = keys - queries
        seen = [[k for k in range(keys) if k <= last + q and (window is None or k > last + q - window)]
                for q in range(queries)]  # fmt: skip
        assert pairs.executed == sum(map(len, seen))


def test_attention_whole():
    q = meta(1, 12, 64, 64)
    assert counted(ours.attention.default, q, q, q).properties.mma_ops == 12_582_912  # 4 B H S T D


def test_causal_attention_from_the_bottom_right():
    properties = counted(
        ours.attention.default, meta(1, 1, 4, 8), meta(1, 1, 10, 8), meta(1, 1, 10, 16), None, True
    ).properties
    assert properties.mma_ops == 1632  # 2 * 34 * (8 + 16)
    assert properties.needed_mma_ops == 2 * 40 * (8 + 16)


def test_attention_bytes_are_each_operand_once():
    q, kv = bf16(1, 32, 1024, 128), bf16(1, 8, 1024, 128)
    properties = counted(ours.attention.default, q, kv, kv.clone(), None, True).properties
    assert properties.read_bytes == 8_388_608 + 2 * 2_097_152
    assert properties.write_bytes == 8_388_608


def test_latent_cache_is_read_once_whatever_the_heads():
    cache = bf16(3, 1000, 1, 576).transpose(1, 2)
    q = bf16(3, 128, 1, 576)
    out = ours.attention.default(q, cache, cache[..., :512])
    properties = REGISTRY.properties(
        OpInvokeInfo(ours.attention.default, (q, cache, cache[..., :512]), {}, out)
    ).properties
    assert properties.read_bytes == 3 * 1000 * 1152 + 2 * q.numel()


def test_a_window_reads_the_keys_it_shows():
    q, kv = bf16(1, 2, 1, 16), bf16(1, 2, 100, 16)
    properties = counted(ours.attention.default, q, kv, kv.clone(), None, True, None, 10).properties
    assert properties.read_bytes == 2 * (2 * 16) + 2 * (2 * 10 * 16 * 2)


def test_attention_backward():
    q = meta(2, 3, 5, 7)
    properties = counted(ours.attention_backward.default, q, q, q, q, q, None, True).properties
    assert properties.mma_ops == 2.5 * 2 * 2 * 3 * 15 * (7 + 7)
    assert properties.needed_mma_ops == 2 * 2 * 2 * 3 * 25 * (7 + 7)


TABLE = bf16(50_000, 1024)
BYTES = [
    # name, op, args, kwargs, read, written
    ("broadcast", aten.add.Tensor, (bf16(1024, 1024), bf16(1024).expand(1024, 1024)), {}, 2 * MiB + 2048, 2 * MiB),
    ("same tensor twice", aten.mul.Tensor, (x := meta(7, 11), x), {}, 308, 308),
    ("slice", aten.slice.Tensor, (TABLE, 0, 0, 8), {}, 0, 0),
    ("alias", aten.alias.default, (TABLE,), {}, 0, 0),
    ("view in place", aten.transpose_.default, (meta(5, 7), 0, 1), {}, 0, 0),
    ("detach", aten.detach.default, (TABLE,), {}, 0, 0),
    ("view", aten.view.default, (TABLE, [-1]), {}, 0, 0),
    ("view_as_real", aten.view_as_real.default, (meta(5, dtype=torch.complex64),), {}, 0, 0),
    ("empty", aten.empty.memory_format, ([64, 64],), {"device": "meta"}, 0, 0),
    ("new_empty", aten.new_empty.default, (TABLE, [64, 64]), {}, 0, 0),
    ("zeros", aten.zeros.default, ([64, 64],), {"device": "meta"}, 0, 64 * 64 * 4),
    ("full", aten.full.default, ([64, 64], 1.0), {"device": "meta"}, 0, 64 * 64 * 4),
    ("zeros_like", aten.zeros_like.default, (bf16(64, 64),), {}, 0, 64 * 64 * 2),
    ("cast", aten._to_copy.default, (bf16(64, 64),), {"dtype": torch.float32}, 8192, 16384),
    ("copy_", aten.copy_.default, (bf16(64, 64), meta(64, 1).expand(64, 64)), {}, 256, 8192),
    ("clone", aten.clone.default, (bf16(64, 64).t(),), {}, 8192, 8192),
    ("in place", aten.add_.Tensor, (meta(7, 11), meta(7, 11)), {}, 616, 308),
    ("fill_", aten.fill_.Scalar, (meta(7, 11), 0.0), {}, 0, 308),
    ("rows of a table", aten.index.Tensor, (TABLE, [long(8)]), {}, 16_384 + 64, 16_384),
    ("embedding", aten.embedding.default, (TABLE, long(8)), {}, 16_384 + 64, 16_384),
    ("index_select", aten.index_select.default, (TABLE, 0, long(8)), {}, 16_384 + 64, 16_384),
    ("gather", aten.gather.default, (TABLE, 1, long(8, 3)), {}, 8 * 3 * 2 + 8 * 3 * 8, 8 * 3 * 2),
    ("index_put_", aten.index_put_.default, (TABLE, [long(8)], bf16(8, 1024)), {}, 16_384 + 64, 16_384),
    ("index_put_ of one value", aten.index_put_.default, (TABLE, [long(8)], bf16()), {}, 2 + 64, 16_384),
    ("accumulate", aten.index_put_.default, (TABLE, [long(8)], bf16(8, 1024), True), {}, 2 * 16_384 + 64, 16_384),
    ("scatter_add_", aten.scatter_add_.default, (meta(5, 7), 0, long(3, 7), meta(3, 7)), {}, 84 + 168 + 84, 84),
    ("overlapping windows", aten.clone.default, (meta(10).unfold(0, 3, 1),), {}, 40, 96),
    ("zero size", aten.add.Tensor, (meta(0, 7), meta(0, 7)), {}, 0, 0),
    ("embedding backward", aten.embedding_dense_backward.default, (meta(3, 7), long(3), 50, -1, False), {}, 84 + 24 + 84,
     50 * 28 + 84),
    ("layer norm", aten.native_layer_norm.default, (meta(3, 7), [7], meta(7), meta(7), 1e-5), {}, 84 + 56, 84 + 24),
    ("picked probabilities", aten.nll_loss_forward.default, (meta(3, 7), long(3), None, 1, -100), {}, 24 + 12, 8),
    ("a mask over scores", aten.masked_fill.Scalar, (meta(3, 7), meta(7, dtype=torch.bool), 0.0), {}, 84 + 7, 84),
    ("nested views of one storage", aten.add.Tensor, ((whole := meta(10))[:6], whole[4:]), {}, 40, 24),
    ("concatenation", aten.cat.default, ([meta(3, 5), meta(4, 5)],), {}, 140, 140),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "read", "written"), [row[1:] for row in BYTES], ids=[r[0] for r in BYTES]
)
def test_bytes(op, args, kwargs, read, written):
    properties = counted(op, *args, **kwargs).properties
    assert (properties.read_bytes, properties.write_bytes) == (read, written)


def test_writing_new_tokens_into_a_cache_touches_those_tokens():
    key, cache, slots = bf16(3, 2, 8, 64), bf16(2, 3, 500, 8, 64), long(6)
    properties = counted(ours.reshape_and_cache.default, key, key.clone(), cache, slots).properties
    assert properties.read_bytes == 2 * 2 * key.numel() + 6 * 8
    assert properties.write_bytes == 2 * 2 * key.numel()


def test_experts_that_no_row_meets_are_not_read():
    rows, weights, ends = bf16(1, 16), bf16(8, 16, 32), long(8)
    properties = counted(ours.grouped_matmul.default, rows, weights, ends).properties
    assert properties.read_bytes == pytest.approx(2 * 16 + 2 * 16 * 32 + 64)  # one row, one expert


def test_foreach_reads_and_writes_each_tensor():
    lists = [meta(5), meta(7)]
    properties = counted(aten._foreach_add_.List, lists, [meta(5), meta(7)]).properties
    assert (properties.read_bytes, properties.write_bytes, properties.gp_ops) == (96, 48, 12)


def test_excluded_inputs_and_outputs_by_position_or_name():
    a, b = meta(3, 5), meta(5, 7)
    info = OpInvokeInfo(aten.mm.default, (a, b), {}, aten.mm.default(a, b))
    assert info.get_memory_access_properties(exclude_input_ids=[0]).memory_read_bytes == 140
    assert info.get_memory_access_properties(exclude_input_ids=["mat2"]).memory_read_bytes == 60
    assert info.get_memory_access_properties(exclude_output_ids=[0]).memory_write_bytes == 0


def test_properties_add_up():
    a, b = meta(3, 5), meta(5, 7)
    one = counted(aten.mm.default, a, b).properties
    both = one + one
    assert (both.mma_ops, both.read_bytes, both.needed_mma_ops) == (420, 2 * one.read_bytes, 420)


@pytest.mark.parametrize("op", [aten.relu.default, aten.gelu.default, aten.exp.default, aten.neg.default])
def test_pointwise_operators_are_known_by_their_tag(op):
    counts = counted(op, meta(7, 11))
    assert counts.level == "builtin_properties" and counts.properties.gp_ops >= 77
