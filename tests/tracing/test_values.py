"""Shapes and branches that depend on data: what a trace knows, what a hint says, and the error where neither does."""

import pytest
import torch
from torch import nn

import tensor_cast
from tensor_cast.errors import UserError
from tensor_cast.tracing.values import routed

X = torch.empty(4, 6)


def last(graph):
    return graph.calls[graph.ops[-1].call]


def outputs(graph):
    return [tuple(graph.calls[op.call].info().out.shape) for op in graph.ops
            if isinstance(graph.calls[op.call].info().out, torch.Tensor)]  # fmt: skip


SIZED = [
    # program, hints, the last op's (first) result
    (lambda x: x.nonzero() + 1, {"nonzero": 0.5}, (12, 2)),
    (lambda x: x.nonzero() + 1, {"nonzero": 5}, (5, 2)),
    (lambda x: torch.argwhere(x) + 1, {"nonzero": 0}, (0, 2)),
    (lambda x: torch.where(x > 0)[0] + 1, {"nonzero": 7}, (7,)),
    (lambda x: x[x > 0] + 1, {"index": 7}, (7,)),
    (lambda x: x[x[:, 0] > 0] + 1, {"index": 0.5}, (2, 6)),
    (lambda x: x[:, x[0] > 0] + 1, {"index": 0.5}, (4, 3)),
    (lambda x: x.masked_select(x > 0) + 1, {"masked_select": 1.0}, (24,)),
    (lambda x: torch.unique(x) + 1, {"unique": 3}, (3,)),
    (lambda x: torch.unique(x, return_inverse=True)[1] + 1, {"unique": 3}, (4, 6)),
    (lambda x: torch.unique(x, dim=1) + 1, {"unique": 3}, (4, 3)),
    (lambda x: torch.unique_consecutive(x) + 1, {"unique_consecutive": 9}, (9,)),
    (lambda x: torch.bincount(x[0].long()) + 1, {"bincount": 11}, (11,)),
    (lambda x: torch.repeat_interleave(x, x[:, 0].long(), dim=0) + 1, {"repeat_interleave": 2.5}, (10, 6)),
    (lambda x: x[: x.sum().item()] + 1, {"item": 3}, (3, 6)),
    (lambda x: x[: int(x.sum())] + 1, {"item": 3}, (3, 6)),
    (lambda x: x.split(x[:2, 0].long().tolist())[1] + 1, {"tolist": [1, 3]}, (3, 6)),
    (lambda x: x[:1] + 1 if (x > 0).all() else x[:2] + 1, {"item": True}, (1, 6)),
    (lambda x: x[:1] + 1 if (x > 0).all() else x[:2] + 1, {"item": False}, (2, 6)),
    (lambda x: x[:1] + 1 if torch.equal(x, x * 2) else x[:2] + 1, {"equal": False}, (2, 6)),
    (lambda x: torch.cond(x.sum() > 0, lambda x: x[:1] + 1, lambda x: x[:2] + 1, (x,)), {"item": True}, (1, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("program", "hints", "shape"), SIZED)
def test_a_hint_gives_the_size_or_the_value(program, hints, shape):
    out = last(tensor_cast.trace(program, X, hints=hints)).info().out
    assert tuple(out.shape) == shape


@pytest.mark.parametrize(("program", "hints", "shape"), SIZED)
def test_without_a_hint_the_error_names_place_op_and_hint(program, hints, shape):
    (operator,) = hints
    with pytest.raises(UserError, match=rf"test_values\.py:\d+, op \S+: its result depends.*'hints\.{operator}="):
        tensor_cast.trace(program, X)


KNOWN = [
    (lambda x: x[: int(torch.arange(5)[3])] + 1, (3, 6)),
    (lambda x: x[: torch.tensor([1, 2]).sum().item()] + 1, (3, 6)),
    (lambda x: x[torch.tensor([True, False, True, False])] + 1, (2, 6)),
    (lambda x: x.masked_select(torch.arange(6) > 3) + 1, (8,)),
    (lambda x: torch.repeat_interleave(x, torch.tensor([0, 1, 2, 3]), dim=0) + 1, (6, 6)),
    (lambda x: torch.ones_like(x).nonzero() + 1, (24, 2)),
    (lambda x: x.split(torch.full((2,), 2).tolist())[1] + 1, (2, 6)),
    (lambda x: x[: len(f"{torch.tensor(123)}")] + 1, (3, 6)),
]


@pytest.mark.parametrize(("program", "shape"), KNOWN)
def test_values_that_the_program_makes_are_known(program, shape):
    assert tuple(last(tensor_cast.trace(program, X)).info().out.shape) == shape


def test_writes_in_place_are_followed():
    def program(x):
        lengths = torch.zeros(4, dtype=torch.long)
        lengths[1] = 2
        lengths.add_(1)
        return x[: lengths[1].item()] + 1

    assert outputs(tensor_cast.trace(program, X))[-1] == (3, 6)


def test_what_an_unknown_value_was_written_into_is_unknown():
    def program(x):
        lengths = torch.zeros(4)
        lengths.copy_(x[:, 0])
        return x[: int(lengths[1].item())]

    with pytest.raises(UserError, match=r"hints\.item"):
        tensor_cast.trace(program, X)


def test_a_list_written_in_one_kernel_is_followed_or_forgotten():
    def program(x, alone):
        count = torch.zeros(2, dtype=torch.long)
        torch._foreach_add_([count] if alone else [x, count], 1)
        return x[: count[0].item()] + 1

    assert outputs(tensor_cast.trace(program, torch.empty(4, 6), True))[-1] == (1, 6)
    with pytest.raises(UserError, match=r"hints\.item"):
        tensor_cast.trace(program, torch.empty(4, 6, dtype=torch.long), False)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_values_of_arguments_do_not_matter(device):
    with pytest.raises(UserError, match=r"hints\.nonzero"):
        tensor_cast.trace(lambda x: x.nonzero(), torch.ones(3, device=device))


class Gate(nn.Module):
    def forward(self, x):
        return x[: x.sum().item()] + 1


@pytest.mark.parametrize(
    ("hints", "rows"),
    [
        ({"item": 2}, [2, 2]),
        ({"item": [3, 1]}, [3, 1]),
        ({"item": {"0": 3, "1": 1}}, [3, 1]),
        ({"item": {"*": 3}}, [3, 3]),
        ({"item": {"0": 3}, "nonzero": 1}, None),
    ],
)
def test_hints_go_by_module_and_by_call(hints, rows):
    if rows is None:
        with pytest.raises(UserError, match=r"in module '1', .*hints\.item\.1=3"):
            tensor_cast.trace(nn.Sequential(Gate(), Gate()), X, hints=hints)
        return
    graph = tensor_cast.trace(nn.Sequential(Gate(), Gate()), X, hints=hints)
    adds = [graph.calls[op.call] for op in graph.ops if "add" in graph.calls[op.call].operator]
    assert [call.out.shape[0] for call in adds] == rows


def test_a_hint_that_nothing_asks_for_is_a_warning():
    simulation = tensor_cast.simulate(nn.Linear(6, 3), X, device="h20", hints={"nonzero": {"a.b": 3}})
    assert simulation.report()["warnings"] == ["hints.nonzero.a.b was not asked for."]


@pytest.mark.parametrize(
    ("hints", "said"),
    [
        ({"nonzer": 3}, "hints.nonzer: there is no such hint. Did you mean 'nonzero'"),
        ({"nonzero": -1}, "hints.nonzero takes a number of results"),
        ({"nonzero": 1.5}, "a share of the elements"),
        ({"nonzero": "many"}, "got 'many'"),
        ({"item": [None]}, "hints.item takes a number or a truth value"),
        ({"tolist": 3}, "hints.tolist takes the list"),
        ({"experts": "even"}, "hints.experts takes uniform, zipf, or a list"),
        ({"experts": [0, 0]}, "hints.experts"),
        ({"zipf_exponent": -1}, "hints.zipf_exponent takes a number"),
        ({"nonzero": 25}, "hints.nonzero: 25 results of a tensor of 24 elements"),
        ({"nonzero": []}, "hints.nonzero has 0 values"),
    ],
)
def test_wrong_hints_are_told(hints, said):
    with pytest.raises(UserError, match=said.replace(".", r"\.").replace("[", r"\[")):
        tensor_cast.trace(lambda x: x.nonzero(), X, hints=hints)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "loads", "sizes"),
    [
        (1, 2, 8, None, [1, 1, 0, 0, 0, 0, 0, 0]),
        (16, 2, 4, None, [8, 8, 8, 8]),
        (2, 1, 4, None, [1, 1, 0, 0]),  # 4 (1 - (3/4)^2) = 1.75 experts
        (4, 1, 2, [0.75, 0.25], [3, 1]),
        (4, 2, 4, [0.5, 0.25, 0.25, 0.0], [4, 2, 2, 0]),
    ],
)
def test_tokens_spread_over_experts(tokens, top_k, experts, loads, sizes):
    chosen = routed(tokens, top_k, experts, loads)
    assert chosen.shape == (tokens, top_k)
    assert torch.bincount(chosen.flatten(), minlength=experts).tolist() == sizes
    assert all(len(set(row)) == top_k for row in chosen.tolist())


class LoopedExperts(nn.Module):
    """A mixture that loops over the experts that were hit, as many models do."""

    def __init__(self, num_experts=4, size=6):
        super().__init__()
        self.num_experts = num_experts
        self.router = nn.Linear(size, num_experts)
        self.experts = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(num_experts))

    def forward(self, x):
        chosen = self.router(x).topk(2, dim=-1).indices
        out = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, self.num_experts).permute(2, 1, 0)
        for expert in (mask.sum((1, 2)) > 0).nonzero():
            _, rows = torch.where(mask[expert[0]])
            out.index_add_(0, rows, self.experts[int(expert[0])](x[rows]))
        return out


@pytest.mark.parametrize(
    ("experts", "rows"),
    [("uniform", [16, 16, 16, 16]), ([3, 1, 0, 0], [48, 16]), ("zipf", [31, 15, 10, 8])],  # 64 / (25/12) / rank
)
def test_a_loop_over_experts_needs_no_hint(experts, rows):
    graph = tensor_cast.trace(LoopedExperts(), torch.empty(32, 6), hints={"experts": experts})
    products = [graph.calls[op.call] for op in graph.ops if op.module.startswith("experts.")]
    assert [call.out.shape[0] for call in products if "mm" in call.operator] == rows


def test_loads_for_another_number_of_experts_are_told():
    with pytest.raises(UserError, match=r"hints\.experts lists 3 loads, and a router .* 4 experts"):
        tensor_cast.trace(LoopedExperts(), torch.empty(32, 6), hints={"experts": [1, 1, 1]})


def test_while_loop_runs_as_often_as_its_values_say():
    def program(x):
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]

    graph = tensor_cast.trace(program, X)
    assert [call for call in (graph.calls[op.call].operator for op in graph.ops) if call == "aten.mul.Tensor"] == [
        "aten.mul.Tensor"
    ] * 3
