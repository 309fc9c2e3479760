"""A trace beside a real run on this CPU: the same operators on the same shapes, the same aliases, as often as the profiler saw."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import tensor_cast


class Recorder(TorchDispatchMode):
    """What a real run dispatches: operator, shapes of its results, and whether the first shares its first input's memory."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.detach.default:
            self.seen.append((str(func), *self.described(args, out)))
        return out

    @staticmethod
    def described(args, out):
        outs = [each for each in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(each, torch.Tensor)]
        first = next((each for each in args if isinstance(each, torch.Tensor)), None)
        shares = bool(outs) and first is not None and outs[0].untyped_storage()._cdata == first.untyped_storage()._cdata
        return [tuple(each.shape) for each in outs], shares


def real(program, *args):
    with Recorder() as recorder:
        out = program(*args)
        if out.requires_grad:
            out.sum().backward() if out.dim() else out.backward()
    return recorder.seen


def traced(program, *args):
    graph = tensor_cast.trace(program, *args)
    infos = [graph.calls[op.call].info() for op in graph.ops]
    return [(info.operator, *Recorder.described(info.args, info.out)) for info in infos]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Bottleneck(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )

    def forward(self, x):
        return self.body(x).flatten(1)


def shuffle(x):
    y = x.view(2, 3, 2, 2).transpose(1, 2).reshape(-1, 3)
    y = torch.cat([y[:2], y[2:] * 2], dim=0)
    y[0] += 1
    return y.unfold(0, 2, 1).sum(-1)


PROGRAMS = {
    "residual block": (Residual(), torch.randn(2, 3, 12)),
    "convolutions": (Bottleneck(), torch.randn(2, 3, 8, 8)),
    "views and writes": (shuffle, torch.randn(2, 12)),
    "embedding": (nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 4), nn.Softmax(-1)), torch.randint(10, (2, 3))),
    "einsum": (lambda x: torch.einsum("bij,bkj->bik", x, x).softmax(-1), torch.randn(2, 3, 4)),
    "gathers": (lambda x: x.gather(1, x.argsort(dim=1)).index_select(0, torch.tensor([1, 0, 1])), torch.randn(2, 5)),
    "losses": (
        lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)) + F.mse_loss(x, x * 2),
        torch.randn(4, 5),
    ),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), torch.randn(1, 2, 4, 4)),
    "in place": (lambda x: x.clone().mul_(2).add_(1).clamp_(0, 3).t(), torch.randn(3, 4)),
    "group norm": (nn.GroupNorm(2, 6), torch.randn(2, 6, 5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_operators_shapes_and_aliases(name):
    program, x = PROGRAMS[name]
    here = [item for item in real(lambda x: program(x).detach(), x) if "lift_fresh" not in item[0]]
    there = [item for item in traced(program, x) if "lift_fresh" not in item[0]]
    assert there == here


@pytest.mark.parametrize("name", ["residual block", "convolutions", "embedding", "group norm"])
def test_as_often_as_the_profiler_saw(name):
    program, x = PROGRAMS[name]
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        program(x).sum().backward()
    times = Counter(event.name for event in profiled.events())
    graph = tensor_cast.trace(program, x, backward=True)
    ours = Counter(f"aten::{graph.calls[op.call].operator.split('.')[1]}" for op in graph.ops)
    kernels = (
        "aten::mm", "aten::addmm", "aten::convolution", "aten::convolution_backward", "aten::native_layer_norm",
        "aten::native_layer_norm_backward", "aten::native_batch_norm", "aten::native_group_norm", "aten::embedding",
        "aten::embedding_dense_backward", "aten::silu", "aten::silu_backward", "aten::_softmax", "aten::max_pool2d_with_indices",
    )  # fmt: skip
    assert {name: ours[name] for name in kernels} == {name: times[name] for name in kernels}
