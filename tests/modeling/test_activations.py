# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import ViTConfig, ViTModel

from sparsight import JSReLU, MixedActivation


def reference(x: float, portion: float = 1.0, linear_above: float | None = None) -> tuple[float, float]:
    """Value and derivative as the paper writes them, one number at a time."""
    if x <= 0:
        return 0.0, 0.0
    if linear_above is not None and x > linear_above:
        at = ((linear_above + 1) ** 2 - 1) / 2
        js, js_slope = at + (linear_above + 1) * (x - linear_above), linear_above + 1
    else:
        js, js_slope = ((x + 1) ** 2 - 1) / 2, x + 1
    return (1 - portion) * x + portion * js, (1 - portion) + portion * js_slope


numbers = st.floats(-50, 50, allow_subnormal=False)
portions = st.sampled_from([0.0, 0.3, 1.0])
thresholds = st.sampled_from([None, 0.5, 4.0])


@settings(deadline=None, max_examples=100)
@given(st.lists(numbers, min_size=1, max_size=20), portions, thresholds)
def test_value_and_derivative(values, portion, linear_above):
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    y = MixedActivation(portion, linear_above).double()(x)
    y.sum().backward()
    expected = [reference(value, portion, linear_above) for value in values]
    torch.testing.assert_close(y, torch.tensor([e[0] for e in expected], dtype=torch.float64))
    torch.testing.assert_close(x.grad, torch.tensor([e[1] for e in expected], dtype=torch.float64))


def test_known_values():
    x = torch.tensor([-3.0, 0.0, 1.0, 4.0, 6.0], requires_grad=True)
    JSReLU()(x).sum().backward()
    assert JSReLU()(x).tolist() == [0, 0, 1.5, 12, 24]
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 0, 2, 5, 7]))
    # The authors' tame variant: value 12 and slope 5 at 4.
    assert JSReLU(linear_above=4)(x).tolist() == [0, 0, 1.5, 12, 22]


def test_mixture_ends_are_relu_and_jsrelu():
    x = torch.randn(100, dtype=torch.float64)
    torch.testing.assert_close(MixedActivation(0.0).double()(x), x.relu())
    torch.testing.assert_close(MixedActivation(1.0).double()(x), JSReLU()(x))


@pytest.mark.parametrize("activation", [JSReLU(), JSReLU(2.0), MixedActivation(0.4), MixedActivation(0.4, 2.0)])
def test_gradcheck(activation):
    x = (torch.randn(30, dtype=torch.float64) * 3).requires_grad_()
    activation = activation.double()
    assert torch.autograd.gradcheck(activation, (x,))
    assert torch.autograd.gradgradcheck(activation, (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("linear_above", [None, 4.0])
def test_finite_over_the_range_of_the_format(dtype, linear_above):
    # JSReLU(x) fits the format up to x = √(1 + 2·max) − 1, far beyond where (x + 1)² or 2·y would overflow in float16.
    largest = math.sqrt(1 + 2 * min(torch.finfo(dtype).max, 1e30)) - 1
    x = torch.linspace(-largest, 0.999 * largest, 2001, dtype=torch.float64).to(dtype).requires_grad_()
    y = JSReLU(linear_above)(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.dtype == dtype
    assert y.isfinite().all()
    expected = [reference(value, 1.0, linear_above) for value in x.tolist()]
    for got, index in ((y, 0), (gradient, 1)):
        wanted = torch.tensor([e[index] for e in expected], dtype=torch.float64)
        torch.testing.assert_close(got.double(), wanted, rtol=3 * torch.finfo(dtype).eps, atol=1e-6)


def test_backward_keeps_the_output_alone():
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    x = torch.randn(64, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = JSReLU()(x)
    assert [tensor.data_ptr() for tensor in saved] == [y.data_ptr()]


def test_changing_the_portion_recompiles_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), MixedActivation(0.1))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    x = torch.randn(4, 8)
    for portion in (0.1, 0.5, 1.0):
        model[1].portion.fill_(portion)
        x.requires_grad_()
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(model(x).sum(), x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("activation", [JSReLU(), JSReLU(2.0), MixedActivation(0.4), MixedActivation(0.4, 2.0)])
def test_traced_graph_is_saved_and_differentiable(activation, tmp_path):
    x, other = torch.randn(30), torch.randn(30) * 3
    torch.jit.trace(torch.nn.Sequential(activation), (x,)).save(tmp_path / "traced.pt")
    traced = torch.jit.load(tmp_path / "traced.pt")
    found, expected = other.clone().requires_grad_(), other.clone().requires_grad_()
    traced(found).square().sum().backward()
    activation(expected).square().sum().backward()
    torch.testing.assert_close(traced(other), activation(other), rtol=0, atol=0)
    torch.testing.assert_close(found.grad, expected.grad)


def test_any_transformers_model_can_name_it():
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=4, patch_size=2
    )
    config.hidden_act = "jsrelu"
    assert isinstance(ViTModel(config).layers[0].mlp.activation_fn, JSReLU)


@pytest.mark.parametrize("linear_above", [0, -1.0, math.inf, math.nan])
def test_nonsense_threshold(linear_above):
    with pytest.raises(ValueError, match="linear_above"):
        JSReLU(linear_above)
    with pytest.raises(ValueError, match="linear_above"):
        MixedActivation(0.5, linear_above)


@pytest.mark.parametrize("portion", [-0.1, 1.1, math.nan])
def test_nonsense_portion(portion):
    with pytest.raises(ValueError, match="portion"):
        MixedActivation(portion)
