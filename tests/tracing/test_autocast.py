"""Autocast and fused optimizers, which PyTorch's meta device does not know: the ops that a device would run."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tensor_cast

MODEL = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
X = torch.randn(2, 8)


def types(graph, word, phase=None):
    calls = [graph.calls[op.call] for op in graph.ops if phase in (None, op.phase)]
    return [call.args[0].dtype for call in calls if word in call.operator]


@pytest.mark.parametrize("device", ["cuda", "cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_are_narrow_and_norms_wide(device, dtype):
    def program(x):
        with torch.autocast(device, dtype=dtype):
            return MODEL(x)

    graph = tensor_cast.trace(program, X, backward=True)
    assert types(graph, "mm") == [dtype] * 5
    assert types(graph, "native_layer_norm") == [torch.float32] * 2


def test_agrees_with_pytorch_on_the_cpu():
    """The CPU's autocast keeps layer norms narrow, so products, losses and softmax are compared."""
    weight = torch.randn(4, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = F.linear(X, weight)
        expected = [product.dtype, (product + X[:, :4]).dtype, (product * 2).dtype, torch.cat([product, product]).dtype]

    def program(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            product = F.linear(x, weight)
            seen.extend(
                [product.dtype, (product + x[:, :4]).dtype, (product * 2).dtype, torch.cat([product] * 2).dtype]
            )
            return product

    seen = []
    tensor_cast.trace(program, X)
    assert seen == expected


WIDE = {
    "softmax": lambda x: x.softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(2, dtype=torch.long)),
    "sum": lambda x: x.sum(),
    "exp": lambda x: x.exp(),
    "pow": lambda x: x**2,
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "cumsum": lambda x: x.cumsum(0),
    "rsqrt": lambda x: x.rsqrt(),
}
SAME = {
    "relu": F.relu,
    "add": lambda x: x + x,
    "gelu": F.gelu,
    "max": lambda x: x.amax(),
    "view": lambda x: x.view(8, 2),
}


@pytest.mark.parametrize("name", [*WIDE, *SAME])
def test_what_runs_in_float32_and_what_as_it_comes(name):
    def program(x):
        with torch.autocast("cuda", dtype=torch.float16):
            out.append((WIDE | SAME)[name](x).dtype)
        return x

    out = []
    tensor_cast.trace(program, torch.empty(2, 8, dtype=torch.float16))
    assert out == [torch.float32 if name in WIDE else torch.float16]


def test_a_weights_cast_is_made_once_a_region():
    def program(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return layer(layer(x))

    layer = nn.Linear(8, 8)
    graph = tensor_cast.trace(program, X)
    assert len(types(graph, "_to_copy")) == 3  # x, weight, bias


def test_a_region_can_be_switched_off_inside():
    def program(x):
        with torch.autocast("cuda"), torch.autocast("cuda", enabled=False):
            return MODEL(x)

    assert types(tensor_cast.trace(program, X), "mm") == [torch.float32] * 2


def test_recomputation_runs_in_the_same_types():
    def program(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return checkpoint(MODEL, x, use_reentrant=False)

    graph = tensor_cast.trace(program, X, backward=True)
    assert types(graph, "addmm", "recompute") == [torch.bfloat16]  # the last layer's result is not needed again


def test_nothing_of_it_stays():
    before = torch.autocast.__enter__, torch.is_autocast_enabled
    tensor_cast.trace(lambda x: torch.autocast("cuda").__enter__() and x, X)
    assert (torch.autocast.__enter__, torch.is_autocast_enabled) == before
    assert torch.empty(2, 8, device="meta").matmul(torch.empty(8, 3, device="meta")).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert MODEL(X).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("optimizer", "kernel"),
    [
        (torch.optim.AdamW, "aten._fused_adamw_.default"),
        (torch.optim.Adam, "aten._fused_adam_.default"),
        (torch.optim.SGD, "aten._fused_sgd_.default"),
        (torch.optim.Adagrad, "aten._fused_adagrad_.default"),
    ],
)
def test_a_fused_optimizer_is_one_kernel(optimizer, kernel):
    simulation = tensor_cast.simulate(
        MODEL, X, device="a100_sxm_80g", optimizer=lambda parameters: optimizer(parameters, lr=0.1, fused=True)
    )
    rows = [row for row in simulation.report()["ops"] if row["phase"] == "optimizer"]
    (row,) = [row for row in rows if row["op"] == kernel]
    numbers = sum(parameter.numel() for parameter in MODEL.parameters())
    assert row["calls"] == 1 and row["gp_ops"] >= numbers
    assert row["read_bytes"] >= 2 * 4 * numbers and row["write_bytes"] >= 4 * numbers
