"""Tracing: one op list on every route, module paths, phases, lifetimes, and a program left as it was."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tensor_cast
from tensor_cast.errors import UserError


def operators(graph, phase=None):
    return [graph.calls[op.call].operator for op in graph.ops if phase in (None, op.phase)]


def kernels(graph):
    return [name for name in operators(graph) if not getattr(_op(name), "is_view", False)]


def _op(name):
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


MLP = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))
X = torch.randn(2, 5)


def under(mode, function):
    def run(*args):
        with mode():
            return function(*args)

    return run


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_one_op_list_on_every_route(mode):
    program = nn.ModuleDict({"mha": nn.MultiheadAttention(8, 2, batch_first=True), "norm": nn.LayerNorm(8)}).eval()

    def run(x):
        return program["norm"](program["mha"](x, x, x, need_weights=False)[0])

    x = torch.randn(2, 3, 8)
    assert operators(tensor_cast.trace(under(mode, run), x)) == operators(tensor_cast.trace(run, x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_is_one_op(mode, device):
    q = torch.empty(1, 12, 64, 64, device=device, requires_grad=True)
    graph = tensor_cast.trace(under(mode, F.scaled_dot_product_attention), q, q, q)
    assert operators(graph) == ["tensor_cast.attention.default"]


def test_attention_is_one_op_in_an_encoder_layer():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    assert operators(tensor_cast.trace(layer, torch.randn(2, 3, 8))).count("tensor_cast.attention.default") == 1


def test_module_paths_and_phases():
    graph = tensor_cast.trace(MLP, X, optimizer=torch.optim.SGD)
    products = [
        (graph.calls[op.call].operator, op.module, op.phase)
        for op in graph.ops
        if "mm" in graph.calls[op.call].operator
    ]
    assert products == [
        ("aten.addmm.default", "0", "forward"),
        ("aten.addmm.default", "2", "forward"),
        ("aten.mm.default", "2", "backward"),
        ("aten.mm.default", "2", "backward"),
        ("aten.mm.default", "0", "backward"),
    ]  # the first layer's input needs no gradient
    assert {op.phase for op in graph.ops} == {"forward", "backward", "optimizer"}


def test_recompute_is_shown_as_recompute():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    graph = tensor_cast.trace(Checkpointed(), torch.randn(2, 5), backward=True)
    assert operators(graph, "recompute").count("aten.addmm.default") == 1
    assert {op.module for op in graph.ops if op.phase == "recompute"} == {"inner.0", "inner.1", "inner.2"}


def test_the_program_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensor_cast.trace(model, X, optimizer=torch.optim.AdamW)
    assert model.training and all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.is_inference_mode_enabled() is False


WEIGHT = torch.randn(5, 7)


def _captures():
    local = torch.randn(5, 7)
    layer = nn.Linear(5, 7)
    return {
        "closure": lambda x: x @ local,
        "global": lambda x: x @ WEIGHT,
        "module in a closure": lambda x: layer(x),
        "partial": functools.partial(torch.mm, mat2=local),
        "bound method": layer.forward,
        "default": lambda x, w=local: x @ w,
    }


@pytest.mark.parametrize("kind", _captures())
def test_what_a_callable_captures_counts_as_meta(kind):
    graph = tensor_cast.trace(_captures()[kind], X)
    assert any("mm" in name for name in operators(graph))


def test_what_is_no_data_is_shared_with_the_copy():
    import threading

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.lock, self.code, self.operator = threading.Lock(), functools, torch.ops.aten.relu.default
            self.random = torch.Generator()

        def forward(self, x):
            with self.lock:
                return self.operator(x)

    assert operators(tensor_cast.trace(Holder(), X)) == ["aten.relu.default"]


def test_a_captured_module_trains():
    layer = nn.Linear(5, 7)
    graph = tensor_cast.trace(lambda x: layer(x).sum(), X, backward=True)
    assert "backward" in {op.phase for op in graph.ops} and layer.weight.grad is None


def test_keyword_arguments_and_containers():
    def program(batch, scale=1.0):
        return batch["x"] * scale

    assert operators(tensor_cast.trace(program, {"x": X}, kwargs={"scale": 2.0})) == ["aten.mul.Tensor"]


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_trace(kind):
    graph = tensor_cast.trace(kind(5, 7, batch_first=True), torch.randn(2, 3, 5), backward=True)
    assert {op.phase for op in graph.ops} == {"forward", "backward"}


def _own_step():
    layer = nn.Linear(5, 5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def run(x):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    return run


def test_a_step_of_the_programs_own_is_taken_by_a_copy():
    layer = nn.Linear(5, 5)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    layer(X).sum().backward()
    before = layer.weight.grad.clone(), layer.weight.clone()

    def run(x):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    names = operators(tensor_cast.trace(run, X))
    assert any("addcdiv" in name for name in names)
    assert torch.equal(layer.weight.grad, before[0]) and torch.equal(layer.weight, before[1]) and not optimizer.state


def _packed(x):
    lengths = torch.tensor([3, 2])
    return nn.LSTM(5, 7, batch_first=True)(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0].data


def _padded(x):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 2).eval()
    with torch.no_grad():
        return encoder(x, src_key_padding_mask=torch.zeros(2, 3, dtype=torch.bool))


ODD = {
    "a step of its own": (_own_step(), X, "aten._foreach_add_.List"),
    "packed sequences": (_packed, torch.randn(2, 3, 5), "aten._pack_padded_sequence.default"),
    "a padded encoder": (_padded, torch.randn(2, 3, 6), "tensor_cast.attention.default"),
    "in-place views": (lambda x: x.clone().t_().unsqueeze_(0).squeeze_() + 1, X, "aten.add.Tensor"),
    "a double backward": (
        lambda x: torch.autograd.grad(torch.autograd.grad((x**3).sum(), x, create_graph=True)[0].sum(), x),
        X.clone().requires_grad_(),
        "aten.pow.Tensor_Scalar",
    ),
    "a loop over rows": (lambda x: [row * 2 for row in x], X, "aten.mul.Tensor"),
    "a function's gradient": (lambda x: torch.func.jacrev(lambda row: (row * row).sum())(x), X, "aten.mul.Tensor"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_programs_trace(name):
    program, x, operator = ODD[name]
    graph = tensor_cast.trace(program, x)
    assert operator in operators(graph) and not any("profiler" in name for name in operators(graph))
    assert tensor_cast.price(graph, "a100_sxm_80g").report()["unpriced_ops"] == []


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_traces():
    exported = torch.export.export(nn.Linear(5, 3), (X,)).module()
    assert kernels(tensor_cast.trace(exported, X)) == ["aten.addmm.default"]


@pytest.mark.parametrize("optimizer", ["ASGD", "Muon", "NAdam", "RAdam", "Rprop", "Adadelta", "Adamax", "RMSprop"])
def test_optimizers_step(optimizer):
    graph = tensor_cast.trace(nn.Linear(5, 5, bias=False), X, optimizer=getattr(torch.optim, optimizer))
    assert any(op.phase == "optimizer" for op in graph.ops)


def test_a_value_that_a_trace_lacks_is_named_with_its_place():
    class Gate(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(
        UserError,
        match=r"in module 'gate', .*test_program\.py:\d+, op aten\.\S+.*depends on a tensor's values.*hints\.item\.gate=3",
    ):
        tensor_cast.trace(_Outer(Gate()), X)


class _Outer(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, x):
        return self.gate(x)


def test_a_wrong_shape_is_told_in_one_sentence():
    with pytest.raises(UserError, match=r"cannot be traced: in module '0', .*op aten\.addmm\.default.*reduction dim"):
        tensor_cast.trace(MLP, torch.randn(2, 6))


def peak(program, *args, **kwargs):
    return tensor_cast.simulate(program, *args, device="a100_sxm_80g", **kwargs).memory.peak_bytes


def test_inputs_and_result_are_alive_together():
    x = torch.empty(1024, 1024, dtype=torch.bfloat16)
    assert peak(lambda x: (x + 1) * 2, x) == 6 * 2**20


def test_a_chain_keeps_two_and_the_input():
    def chain(x):
        for _ in range(10):
            x = torch.relu(x)
        return x

    assert peak(chain, torch.empty(1024, 1024, dtype=torch.bfloat16)) == 6 * 2**20  # the caller's x, one in, one out


def test_results_that_are_dropped_at_once_are_freed():
    def program(x):
        for _ in range(5):
            x.exp()

    assert peak(program, torch.empty(1024, 1024)) == 2 * 4 * 2**20


def test_what_backward_needs_stays_alive_and_checkpointing_frees_it():
    class Block(nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            self.up, self.down, self.checkpointed = nn.Linear(256, 1024), nn.Linear(1024, 256), checkpointed

        def forward(self, x):
            if self.checkpointed:
                return checkpoint(lambda x: self.down(F.gelu(self.up(x))), x, use_reentrant=False)
            return self.down(F.gelu(self.up(x)))

    def tower(checkpointed):
        return nn.Sequential(*(Block(checkpointed) for _ in range(8)))

    x = torch.empty(1024, 256)
    kept, freed = peak(tower(False), x, backward=True), peak(tower(True), x, backward=True)
    assert kept > 8 * 9_437_184 and freed < kept - 40e6


def test_the_hundredth_run_says_what_the_first_said():
    answers = {(s := tensor_cast.simulate(MLP, X, device="h20")).step_time_s + s.memory.peak_bytes for _ in range(60)}
    assert len(answers) == 1


MOVES = [
    (lambda x: x.to("cuda"), []),
    (lambda x: x.cuda(), []),
    (lambda x: x.to(torch.device("cuda", 1)), []),
    (lambda x: x.to(device="npu:0", dtype=torch.bfloat16), ["aten._to_copy.default"]),
    (lambda x: x.cpu(), ["aten._to_copy.default"]),
]


@pytest.mark.parametrize(("move", "expected"), MOVES)
def test_the_programs_tensors_are_on_the_device_already(move, expected):
    assert operators(tensor_cast.trace(move, X)) == expected
    assert "to" not in vars(torch.Tensor) and not hasattr(torch.Tensor, "npu")


def test_an_assertion_of_the_program_is_the_users():
    def program(x):
        assert x.shape[0] == 3, "three rows"

    with pytest.raises(UserError, match=r"test_program\.py:\d+.*AssertionError: three rows"):
        tensor_cast.trace(program, X)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_users_own_hugging_face_model(implementation):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, attn_implementation=implementation)).eval()
    ids, mask = torch.zeros(2, 7, dtype=torch.long), torch.ones(2, 7, dtype=torch.long)
    graph = tensor_cast.trace(model, ids, attention_mask=mask, position_ids=torch.arange(7)[None], use_cache=False)
    assert operators(graph).count("tensor_cast.attention.default") == 2
    assert model.config._attn_implementation == implementation


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.LayerNorm(8)

    def forward(self, x):
        for _ in range(3):
            x = self.norm(self.layer(x)) * 2.0 + x.topk(2, dim=-1)[0].sum()
        return x.chunk(2, dim=-1)[0] * torch.arange(4)


@pytest.mark.parametrize("how", [{}, {"backward": True}, {"optimizer": torch.optim.AdamW}])
def test_a_call_made_again_is_written_down_as_if_it_had_run(how, monkeypatch):
    from tensor_cast.tracing import tracer

    def written(graph):
        calls = [(call.operator, call.args, call.kwargs, call.out) for call in graph.calls]
        return calls, graph.ops, graph.storages

    torch.manual_seed(0)
    fast = written(tensor_cast.trace(Twice(), torch.randn(2, 3, 8), **how))
    monkeypatch.setattr(tracer, "_is_pure", lambda func: False)
    assert written(tensor_cast.trace(Twice(), torch.randn(2, 3, 8), **how)) == fast


def test_reserved_bytes_are_those_of_blocks():
    memory = tensor_cast.simulate(lambda x: x + 1, torch.empty(100), device="l4").memory
    assert (memory.peak_bytes, memory.reserved_bytes) == (2 * 400, 2 * 512)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_program_is_traced_as_it_is():
    block = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))
    expected = operators(tensor_cast.trace(block, X, backward=True))

    @torch.compile(fullgraph=True)
    def function(x):
        return block(x)

    def compiles_inside(x):
        return torch.compile(block)(x)

    for program in (torch.compile(block), torch.compile(block, fullgraph=True), function, compiles_inside):
        assert operators(tensor_cast.trace(program, X, backward=True)) == expected


def test_a_convolutions_training_step_is_three_forwards_and_two_in_the_first_layer():
    tower = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Conv2d(5, 7, 3, bias=False))
    first, second = 2 * 2 * 9 * 9 * 5 * 3 * 9, 2 * 2 * 7 * 7 * 7 * 5 * 9
    totals = tensor_cast.simulate(tower, torch.randn(2, 3, 11, 11), device="l4", backward=True).report()["totals"]
    assert totals["mma_ops"] == 2 * first + 3 * second
    x = torch.randn(2, 3, 11, 11, requires_grad=True)
    totals = tensor_cast.simulate(tower, x, device="l4", backward=True).report()["totals"]
    assert totals["mma_ops"] == 3 * first + 3 * second
