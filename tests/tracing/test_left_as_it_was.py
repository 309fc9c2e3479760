"""Whatever a program captures counts as meta, wherever it is kept, and nothing of the caller's changes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensor_cast
from tensor_cast.errors import UserError

X = torch.empty(8, 6)
NET = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
OPTIMIZER = torch.optim.SGD(NET.parameters(), lr=0.1)
LIST, BY_NAME = [NET], {"net": NET}


def helper(x):
    return NET(x)


class Trainer:
    def __init__(self):
        self.net = nn.Linear(6, 6)

    def __call__(self, x):
        return self.net(x)

    def step(self, x):
        return self.net(x)


def own_step(x):
    NET(x).sum().backward()
    OPTIMIZER.step()
    OPTIMIZER.zero_grad()


WHOLE = (36 + 6 + 6 + 6 + 6 + 6) * 4 + 8
PROGRAMS = {
    "by a name": (lambda x: NET(x), WHOLE),
    "by a helper": (lambda x: helper(x), WHOLE),
    "in a list": (lambda x: LIST[0](x), WHOLE),
    "in a mapping": (lambda x: BY_NAME["net"](x), WHOLE),
    "in an object": (Trainer(), 42 * 4),
    "by a method": (Trainer().step, 42 * 4),
    "a step of its own": (own_step, WHOLE),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_captured_modules_count(name):
    program, weights = PROGRAMS[name]
    for parameter in NET.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {key: tensor.clone() for key, tensor in NET.state_dict().items()}
    simulation = tensor_cast.simulate(program, X, device="l4")
    assert simulation.report()["memory"]["weights_bytes"] == weights
    assert all(torch.equal(tensor, before[key]) for key, tensor in NET.state_dict().items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in NET.parameters()) and not OPTIMIZER.state


def _sum(x):
    total = torch.tensor(0.0)
    total += x.sum()
    return total.item()


def _buffer(x):
    buffer = torch.tensor([0.0, 0.0])
    buffer[1:].copy_(x[0, :1])
    return buffer.tolist()


def _running_mean(x):
    mean = torch.zeros(6)
    F.batch_norm(x, mean, torch.ones(6), training=True)
    return float(mean.sum())


def _out(x):
    values, indices = torch.zeros(8, 2), torch.zeros(8, 2, dtype=torch.long)
    torch.topk(x, 2, out=(values, indices))
    return indices[0, 0].item()


def _hook(x):
    flag, y = torch.zeros(1), torch.ones(8, 6, requires_grad=True)
    y.register_hook(lambda grad: (flag.add_(grad.sum()), None)[1])
    (y * x).sum().backward()
    return flag.item()


def _another_dimension(x):
    class Module(nn.Module):
        num_experts = 6

        def forward(self, x):
            return x.max(dim=0).indices.tolist()

    return Module()(x)


@pytest.mark.parametrize("program", [_sum, _buffer, _running_mean, _out, _hook, _another_dimension])
def test_no_stale_value_is_taken_for_known(program):
    with pytest.raises(UserError, match="depends on a tensor's values"):
        tensor_cast.trace(program, X)


def test_more_queries_than_keys_from_the_top_left():
    # PyTorch's rule: query s sees the keys up to s; 4 * 5 / 2 + 6 * 4 = 34 pairs
    q, k = torch.empty(1, 1, 10, 8), torch.empty(1, 1, 4, 8)
    totals = tensor_cast.simulate(
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), q, k, device="l4"
    ).report()["totals"]
    assert totals["executed_flops"] == 34 * 2 * 16


def test_a_gradient_of_a_gradient_is_no_recomputation():
    x = torch.empty(8, 8)
    totals = tensor_cast.simulate(lambda x: torch.func.grad(lambda a: (a @ a).sum())(x), x, device="l4").report()[
        "totals"
    ]
    assert totals["model_flops"] == totals["executed_flops"] == 3 * 2 * 8**3


def test_a_caught_exception_leaves_its_module():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Fails()

        def forward(self, x):
            try:
                self.child(x)
            except ValueError:
                return x + 1

    graph = tensor_cast.trace(nn.Sequential(Parent()), X)
    assert [op.module for op in graph.ops] == ["0"]


BAD = [
    (lambda: tensor_cast.trace("program", X), "the program is a module or a function"),
    (lambda: tensor_cast.trace(NET, X, optimizer="adam"), "optimizer= is a torch.optim class"),
    (lambda: tensor_cast.trace(NET, X, hints=[1]), "hints= is a mapping"),
    (lambda: tensor_cast.trace(NET, kwargs=[1]), "kwargs= is a mapping"),
    (lambda: tensor_cast.trace(torch.relu, torch.eye(3).to_sparse()), "sparse"),
    (lambda: tensor_cast.trace(nn.LazyLinear(3), X), "lazy modules|uninitialized|cannot be"),
    (lambda: tensor_cast.price("l4", NET), "price() takes a graph"),
]
GRAPH = tensor_cast.trace(lambda x: x @ x.t(), X)
for words, said in (
    ({"scale": -2}, "scale must be a number that is not negative"),
    ({"time_s": float("inf")}, "time_s must be a number"),
    ({"scale": "x"}, "scale must be a number"),
    (3, "takes time_s, scale or estimator"),
):
    BAD.append((lambda words=words: tensor_cast.price(GRAPH, "l4", overrides={"aten.mm.default": words}), said))


@pytest.mark.parametrize(("call", "said"), BAD, ids=[said for _, said in BAD])
def test_mistakes_are_one_sentence(call, said):
    with pytest.raises(UserError, match=said.replace("()", r"\(\)")):
        call()
