"""Files of measured times: what each kind is read as, and the sentence for what cannot be read."""

import gzip
import json

import numpy as np
import pytest
import torch

from tensor_cast.errors import UserError
from tensor_cast.measurements.calls import call_on_meta, parse_shapes
from tensor_cast.measurements.csv_tables import read_rows
from tensor_cast.measurements.files import read_measurements


def only(path):
    (rows,) = read_measurements([path])
    return rows


def test_a_product_by_hand(tmp_path):
    path = tmp_path / "gemm.csv"
    path.write_text("source,device,dtype,m,n,k,latency_us\nlab:x-1.0,card,bfloat16,128,4096,1024,12.5\n")
    rows = only(path)
    assert (rows.device, rows.source, rows.family, rows.dtype) == ("card", "lab:x-1.0", "matmul", "bfloat16")
    assert rows.time_s == pytest.approx([12.5e-6])
    assert rows.mma_ops == pytest.approx([2 * 128 * 4096 * 1024])
    assert rows.num_bytes == pytest.approx([2 * (128 * 1024 + 1024 * 4096 + 128 * 4096)])


@pytest.mark.parametrize(
    ("dtype", "rate", "num_bytes", "narrowed"),
    [
        ("fp8", "float8_e4m3fn", 8 * 16 + 16 * 32 + 2 * 8 * 32, 1),
        ("int8_wo", "bfloat16", 2 * 8 * 16 + 16 * 32 + 2 * 8 * 32, 0),
        ("float32", "float32", 4 * (8 * 16 + 16 * 32 + 8 * 32), 0),
    ],
)
def test_types_of_products(tmp_path, dtype, rate, num_bytes, narrowed):
    path = tmp_path / "gemm.csv"
    path.write_text(f"dtype,m,n,k,latency_us\n{dtype},8,32,16,1\n")
    rows = only(path)
    assert rows.dtype == rate and rows.num_bytes == pytest.approx([num_bytes]) and rows.geometry.narrowed == narrowed


ATTENTION = "device,dtype,kv_dtype,kind,phase,causal,batch,q_len,kv_len,n_heads,n_kv_heads,head_dim,v_head_dim,window,latency_us"


@pytest.mark.parametrize(
    ("row", "family", "pairs", "seen", "num_bytes"),
    [
        # every query of a causal prefill sees itself and those before: 256 * 257 / 2
        ("c,bfloat16,bfloat16,mha_gqa,prefill,1,2,256,256,8,2,64,64,0,9", "attention", 256 * 257 / 2, 256,
         2 * 2 * 256 * 2 * 128 + 2 * 8 * 256 * (2 * 64 + 2 * 64)),
        # 100 new tokens after 156: the first sees 157
        ("c,bfloat16,bfloat16,mha_gqa,prefill,1,1,100,256,8,8,64,64,0,9", "attention", 100 * 157 + 99 * 100 / 2, 256,
         2 * 256 * 8 * 128 + 8 * 100 * 256),
        # a window of 128 keys
        ("c,bfloat16,fp8,mha_gqa,decode,1,4,1,4096,8,2,128,128,128,9", "decode_attention", 128, 128,
         4 * 128 * 2 * 256 + 4 * 8 * (2 * 128 + 2 * 128)),
        # absorbed: values are a part of the keys
        ("c,bfloat16,bfloat16,mla,decode,1,4,1,4096,16,1,576,512,0,9", "latent_attention", 4096, 4096,
         2 * 4 * 4096 * 576 + 4 * 16 * (2 * 576 + 2 * 512)),
    ],
)  # fmt: skip
def test_attention_by_hand(tmp_path, row, family, pairs, seen, num_bytes):
    path = tmp_path / "attention.csv"
    path.write_text(f"{ATTENTION}\n{row}\n")
    rows = only(path)
    assert (
        rows.family == family
        and rows.geometry.pairs == pytest.approx([pairs])
        and rows.geometry.seen == pytest.approx([seen])
    )
    assert rows.num_bytes == pytest.approx([num_bytes])


def test_a_layer_of_experts_and_a_message(tmp_path):
    path = tmp_path / "moe.csv"
    path.write_text(
        "device,dtype,part,tokens,hidden,inter,topk,experts,tp,ep,distribution,latency_us\n"
        "c,bfloat16,full(2 gemm),64,4096,1536,8,128,2,4,power_law_1.2,100\n"
    )
    rows = only(path)
    assert (
        rows.family == "grouped_matmul"
        and rows.layer.inter == [768]
        and rows.layer.ranks == [4]
        and rows.layer.uneven == [True]
    )
    path = tmp_path / "links.csv"
    path.write_text(
        "device,op,dtype,world_size,nodes,bytes,latency_us\nc,alltoall,half,8,1,1024,5\nc,all_reduce,half,8,2,1024,5\nc,all_gather,half,1,1,10,5\n"
    )
    rows = only(path)  # two nodes and a group of one are left out
    assert rows.family == "collective" and rows.kinds.tolist() == ["all_to_all"]


def test_rows_of_several_kinds_are_parted(tmp_path):
    path = tmp_path / "gemm.csv.gz"
    text = "device,dtype,m,n,k,latency_us\n" + "".join(
        f"{device},{dtype},8,{n},16,1\n" for device in "ab" for dtype in ("bfloat16", "fp8") for n in (32, 64, 96)
    )
    path.write_bytes(gzip.compress(text.encode()))
    found = read_measurements([path])
    assert [(rows.device, rows.words, len(rows)) for rows in found] == [
        ("a", "bfloat16", 3), ("a", "fp8", 3), ("b", "bfloat16", 3), ("b", "fp8", 3),
    ]  # fmt: skip
    kept = found[0].chosen(np.array([2, 0]))
    assert kept.geometry.columns.tolist() == [96, 32] and kept.geometry.operand_bytes == 2


def test_calls_by_name_and_shapes(tmp_path):
    path = tmp_path / "calls.csv"
    path.write_text(
        "op,shapes,dtypes,latency_us,arguments\n"
        "aten.mm,16x64;64x32,bfloat16,3,\n"
        'aten::_softmax,8x1024,float32,5,"{""dim"": -1, ""half_to_float"": false}"\n'
        '"aten.addmm","[[32], [16, 64], [64, 32]]",float16,4,\n'
        'tensor_cast.attention,"1x8x1x64;1x2x512x64;1x2x512x64",bfloat16,7,"{""is_causal"": true}"\n'
        'aten.cat,"4x8;4x8",float32,2,\n'
    )
    found = {rows.family: rows for rows in read_measurements([path]) if rows.dtype != "float16"}
    assert set(found) == {"matmul", "softmax", "decode_attention", "copy"}
    assert found["matmul"].mma_ops == pytest.approx([2 * 16 * 64 * 32]) and found["softmax"].geometry.rows == [8]
    assert found["decode_attention"].geometry.kv_heads == [2] and found["copy"].num_bytes == [2 * 2 * 4 * 8 * 4]


def test_kernel_details_of_an_ascend_profile(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_text(
        "Name,Type,Duration(us),Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats\n"
        'a,MatMulV2,45.2,"""1024,4096;4096,2048""",DT_BF16;DT_BF16,ND;ND,"""1024,2048""",DT_BF16,ND\n'
        'b,MatMulV2,15.2,"""16,4096;128,256,16,16""",DT_BF16;DT_BF16,ND;FRACTAL_NZ,"""16,2048""",DT_BF16,ND\n'
        'c,Add,9.1,"""1024,4096;1024,4096""",FLOAT;FLOAT,ND;ND,"""1024,4096""",FLOAT,ND\n'
        'd,RmsNorm,9.1,"""1024,4096;4096""",DT_BF16;DT_BF16,ND;ND,"""1024,4096;1024,1""",DT_BF16;FLOAT,ND;ND\n'
        'e,FusedInferAttentionScore,99,"""16,32,1,128""",DT_BF16,ND,"""16,32,1,128""",DT_BF16,ND\n'
        'f,GroupedMatmul,50,"""64,1024;8,1024,512""",DT_BF16;DT_BF16,ND;ND,"""64,512""",DT_BF16,ND\n'
    )
    found = {rows.family: rows for rows in read_measurements([path])}
    assert set(found) == {"matmul", "elementwise", "normalization", "grouped_matmul"}
    product = found["matmul"].geometry
    assert (
        product.rows.tolist() == [1024, 16]
        and product.columns.tolist() == [2048, 2048]
        and product.inner.tolist() == [4096, 4096]
    )
    assert found["matmul"].time_s == pytest.approx([45.2e-6, 15.2e-6])
    assert found["elementwise"].num_bytes == pytest.approx([3 * 1024 * 4096 * 4])
    assert found["normalization"].geometry.rows == [1024] and 7 < found["grouped_matmul"].geometry.hit[0] <= 8


def test_a_table_of_one_kind_of_kernel(tmp_path):
    path = tmp_path / "MatMulV2.csv"
    path.write_text(
        "OP State,Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Average Duration(us)\n"
        'static,"64,512;512,256",DT_BF16;DT_BF16,ND;ND,"64,256",DT_BF16,7.5\n'
    )
    rows = only(path)
    assert rows.family == "matmul" and rows.time_s == pytest.approx([7.5e-6])


@pytest.fixture
def trace(tmp_path):
    """A trace of this machine's own profiler."""
    layer = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512))
    query = torch.randn(2, 8, 64, 32)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled,
        torch.no_grad(),
    ):
        torch.softmax(layer(torch.randn(32, 256)), -1)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(path))
    return path


def test_a_chrome_trace(trace):
    found = {rows.family: rows for rows in read_measurements([trace])}
    assert {"matmul", "elementwise", "normalization", "softmax", "attention"} <= set(found)
    assert found["matmul"].mma_ops == pytest.approx([2 * 32 * 256 * 512])
    assert found["attention"].geometry.pairs == pytest.approx([64 * 65 / 2])


def test_kernels_of_a_trace_belong_to_the_call_that_launched_them(trace):
    content = json.loads(trace.read_text())
    linear = next(event for event in content["traceEvents"] if event.get("name") == "aten::addmm")
    for number in (1, 2):
        kernel = {"ph": "X", "cat": "kernel", "name": f"gemm{number}", "ts": 1, "dur": 10.0 * number, "pid": 0, "tid": 7,
                  "args": {"External id": linear["args"]["External id"]}}  # fmt: skip
        content["traceEvents"].append(kernel)
    trace.write_text(json.dumps(content))
    rows = only(trace)
    assert rows.family == "matmul" and rows.time_s == pytest.approx([30e-6])


BAD = [
    ("x.csv", "a,b\n1,2\n", "its columns (a, b) are those of no known table"),
    ("x.csv", "", "its columns (none) are those of no known table"),
    ("x.csv", "dtype,m,n,k,latency_us\nbfloat16,8,8\n", "x.csv:2: the row is shorter than the header"),
    ("x.csv", "dtype,m,n,k,latency_us\nbfloat16,8,8,8,0\n", "x.csv:2: latency_us must be a time above zero"),
    ("x.csv", "dtype,m,n,k,latency_us\nbfloat16,8,8,8,nan\n", "x.csv:2: latency_us must be a time above zero"),
    ("x.csv", "op,shapes,dtypes,latency_us\naten.mmm,8x8;8x8,float32,1\n", "x.csv:2: there is no operator 'aten.mmm'"),
    ("x.csv", "op,shapes,dtypes,latency_us\naten.mm,8x8;9x8,float32,1\n", "x.csv:2: aten.mm does not take ((8, 8), (9, 8))"),
    ("x.csv", "op,shapes,dtypes,latency_us\naten.mm,8xq;8x8,float32,1\n", "x.csv:2: shapes read like"),
    ("x.csv", "op,shapes,dtypes,latency_us\naten.mm,8x8;8x8,floot,1\n", "x.csv:2: there is no dtype 'floot'"),
    ("x.csv", "op,shapes,dtypes,latency_us\naten.mm,8x8;8x8,float32,soon\n", "x.csv:2: latency_us must be a time above zero"),
    ("x.csv", 'op,shapes,dtypes,latency_us,arguments\naten.mm,8x8;8x8,float32,1,{x}\n', "x.csv:2: arguments must be JSON"),
    ("x.csv", "op,shapes,dtypes,latency_us\naten.mm,8x8;8x8,float32;float32;float32,1\n", "2 shapes and 3 dtypes"),
    ("x.json", "{]", "cannot be read as a Chrome trace"),
    ("x.json", "{}", "a Chrome trace has a list of traceEvents"),
    ("x.json", '{"traceEvents": []}', "record it with torch.profiler.profile(record_shapes=True)"),
    ("x.csv", "Type,Duration(us),Input Shapes\nMagic,1,\"8,8\"\n", "none of its kernels is of a kind"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), BAD, ids=[said for *_, said in BAD])
def test_mistakes_name_file_and_line(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        read_measurements([tmp_path / name])
    assert said in str(error.value)


def test_shapes_and_calls():
    assert (
        parse_shapes("4x8; 8x2", "here")
        == [(4, 8), (8, 2)]
        == parse_shapes("[[4, 8], [8, 2]]", "here")
        == parse_shapes('"4,8;8,2"', "here")
    )
    info = call_on_meta("aten.sum.dim_IntList", [torch.empty(4, 8, device="meta")], {"dim": [1]}, "here")
    assert tuple(info.out.shape) == (4,)


def test_a_file_with_a_mark_at_its_head(tmp_path):
    (tmp_path / "x.csv").write_text("\ufeffdtype,m,n,k,latency_us\nbfloat16,8,8,8,1\n", encoding="utf-8")
    assert "dtype" in read_rows(tmp_path / "x.csv")[0]
