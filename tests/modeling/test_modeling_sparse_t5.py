# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForTextEncoding,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5Model,
)

from helpers import randomize
from sparsight import (
    MixedActivation,
    SparseT5Config,
    SparseT5EncoderModel,
    SparseT5ForConditionalGeneration,
    SparseT5Model,
)


INPUT_IDS = torch.tensor([[5, 6, 7, 8, 9, 1], [11, 12, 13, 1, 0, 0]])
LABELS = torch.tensor([[21, 22, 23, 24, 1], [31, 32, 1, -100, -100]])
BATCH = {"input_ids": INPUT_IDS, "attention_mask": INPUT_IDS.ne(0).long(), "labels": LABELS}


def zeroth_bias_keys(num_layers: int = 2) -> set[str]:
    return {
        f"{side}.block.{layer}.layer.{index}.DenseReluDense.zeroth_bias.weight"
        for side, index in (("encoder", 1), ("decoder", 2))
        for layer in range(num_layers)
    }


def feed_forwards(model) -> list[nn.Module]:
    return [block.layer[-1] for stack in (model.encoder, model.decoder) for block in stack.block]


# --- checkpoints of T5 -----------------------------------------------------------------------------------------------


# T5 and T5 v1.1 / Flan-T5 as they lie on the Hub: the latter have an output matrix of their own and unscaled logits.
FORMATS = {
    "v1.0": {"feed_forward_proj": "relu"},
    "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}


@pytest.fixture(params=FORMATS)
def vanilla_checkpoint(request, tmp_path, tiny_t5):
    """A folder with a checkpoint that transformers wrote, and the parent model."""
    parent = T5ForConditionalGeneration(T5Config(**tiny_t5, **FORMATS[request.param]))
    if request.param == "v1.1":
        parent.lm_head.weight = nn.Parameter(torch.empty_like(parent.lm_head.weight))
    randomize(parent).save_pretrained(tmp_path)
    keys = load_file(tmp_path / "model.safetensors").keys()
    assert ("lm_head.weight" in keys) == (request.param == "v1.1")
    return tmp_path, T5ForConditionalGeneration.from_pretrained(tmp_path).eval()


@pytest.mark.parametrize("zeroth_bias", [True, False])
def test_vanilla_checkpoint_gives_the_parents_logits(vanilla_checkpoint, zeroth_bias):
    folder, parent = vanilla_checkpoint
    model, info = SparseT5ForConditionalGeneration.from_pretrained(
        folder, zeroth_bias=zeroth_bias, output_loading_info=True
    )
    assert set(info["missing_keys"]) == (zeroth_bias_keys() if zeroth_bias else set())
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert all(not model.state_dict()[key].any() for key in info["missing_keys"])
    assert model.config.scale_decoder_outputs == parent.config.scale_decoder_outputs
    model.eval()
    torch.testing.assert_close(model(**BATCH).logits, parent(**BATCH).logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(**BATCH).loss, parent(**BATCH).loss, atol=1e-5, rtol=0)
    prompt = {"input_ids": INPUT_IDS, "attention_mask": BATCH["attention_mask"], "max_new_tokens": 8}
    assert torch.equal(model.generate(**prompt), parent.generate(**prompt))


def test_vanilla_checkpoint_becomes_sparse(vanilla_checkpoint):
    folder, parent = vanilla_checkpoint
    activation = "gated-jsrelu" if parent.config.is_gated_act else "jsrelu"
    model, info = SparseT5ForConditionalGeneration.from_pretrained(
        folder, feed_forward_proj=activation, output_loading_info=True
    )
    assert set(info["missing_keys"]) == zeroth_bias_keys()
    assert all(isinstance(block.DenseReluDense.act, MixedActivation) for block in feed_forwards(model))
    for name, parameter in parent.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, rtol=0, atol=0)
    # Before anything is mixed in, a ReLU checkpoint still is what it was.
    if not parent.config.is_gated_act:
        model.activation_mix = 0.0
        torch.testing.assert_close(model.eval()(**BATCH).logits, parent(**BATCH).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_stay_tied_or_untied(tiny_t5, tmp_path, tied):
    model = SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, tie_word_embeddings=tied))
    if not tied:
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    randomize(model).save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert loaded.encoder.embed_tokens.weight is loaded.shared.weight
    assert loaded.decoder.embed_tokens.weight is loaded.shared.weight
    assert (loaded.lm_head.weight is loaded.shared.weight) == tied
    torch.testing.assert_close(loaded(**BATCH).logits, model(**BATCH).logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("auto_class", "own_class", "parent_class"),
    [
        (AutoModel, SparseT5Model, T5Model),
        (AutoModelForSeq2SeqLM, SparseT5ForConditionalGeneration, T5ForConditionalGeneration),
        (AutoModelForTextEncoding, SparseT5EncoderModel, T5EncoderModel),
    ],
)
def test_auto_classes_round_trip(auto_class, own_class, parent_class, tiny_t5, tmp_path):
    model = randomize(auto_class.from_config(SparseT5Config(**tiny_t5, num_decoder_layers=1)))
    assert type(model) is own_class
    assert isinstance(model, parent_class)
    model.save_pretrained(tmp_path)
    loaded, info = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is own_class
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    inputs = {"input_ids": INPUT_IDS}
    if own_class is not SparseT5EncoderModel:
        inputs["decoder_input_ids"] = INPUT_IDS[:, :3]
    torch.testing.assert_close(loaded.eval()(**inputs)[0], model(**inputs)[0], rtol=0, atol=0)


def test_encoder_of_a_whole_checkpoint(sparse_t5, tmp_path):
    sparse_t5.save_pretrained(tmp_path)
    encoder = SparseT5EncoderModel.from_pretrained(tmp_path).eval()
    expected = sparse_t5.encoder(input_ids=INPUT_IDS).last_hidden_state
    torch.testing.assert_close(encoder(INPUT_IDS).last_hidden_state, expected)


# --- the feed-forward block ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_against_the_equation(tiny_t5, gated):
    """y = x + W₂ σ(W₁(RMSNorm(x) + D)), a token at a time in float64; positions 4…8 of which the last have no bias."""
    activation = "gated-jsrelu" if gated else "jsrelu"
    config = SparseT5Config(**tiny_t5, feed_forward_proj=activation, num_zeroth_bias_positions=7)
    block = randomize(SparseT5EncoderModel(config)).double().encoder.block[1].layer[1]
    dense = block.DenseReluDense
    x = torch.randn(1, 5, 32, dtype=torch.float64)
    expected = torch.empty_like(x)
    for token, position in enumerate(range(4, 9)):
        row = x[0, token]
        normed = row / (row.pow(2).mean() + config.layer_norm_epsilon).sqrt() * block.layer_norm.weight
        if position < 7:
            normed = normed + dense.zeroth_bias.weight[position]
        pre = (dense.wi_0 if gated else dense.wi).weight @ normed
        post = torch.where(pre > 0, ((pre + 1) ** 2 - 1) / 2, 0)
        if gated:
            post = post * (dense.wi_1.weight @ normed)
        expected[0, token] = row + dense.wo.weight @ post
    # T5LayerNorm takes the variance in float32.
    torch.testing.assert_close(block(x, torch.arange(4, 9)), expected, rtol=1e-6, atol=1e-6)


def test_only_the_feed_forward_block_differs_from_t5(tiny_t5):
    model = randomize(SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, feed_forward_proj="relu")))
    t5 = T5ForConditionalGeneration(T5Config(**tiny_t5, feed_forward_proj="relu")).eval()
    report = t5.load_state_dict(model.state_dict(), strict=False)
    assert set(report.unexpected_keys) == zeroth_bias_keys()
    assert not report.missing_keys
    for ours, theirs in zip(feed_forwards(model), feed_forwards(t5), strict=True):
        bias = ours.zeroth_bias.weight
        theirs.DenseReluDense.register_forward_pre_hook(
            lambda module, args, bias=bias: (args[0] + bias[: args[0].shape[1]],)
        )
    torch.testing.assert_close(model(**BATCH).logits, t5(**BATCH).logits)


def test_encoder_and_decoder_have_their_own_numbers_of_positions(tiny_t5):
    config = SparseT5Config(**tiny_t5, num_zeroth_bias_positions=5, num_decoder_zeroth_bias_positions=3)
    model = SparseT5ForConditionalGeneration(config)
    assert [block.zeroth_bias.weight.shape[0] for block in feed_forwards(model)] == [5, 5, 3, 3]


@pytest.mark.parametrize("activation", ["relu", "gated-gelu"])
def test_fresh_model_is_initialised_as_t5_is(tiny_t5, activation):
    fields = {**tiny_t5, "d_model": 256, "d_ff": 512, "feed_forward_proj": activation}
    t5 = dict(T5ForConditionalGeneration(T5Config(**fields)).named_parameters())
    for name, parameter in SparseT5ForConditionalGeneration(SparseT5Config(**fields)).named_parameters():
        if "zeroth_bias" in name:
            assert not parameter.any()
        elif "layer_norm" in name:
            assert (parameter == 1).all()
        else:
            assert parameter.std().item() == pytest.approx(t5[name].std().item(), rel=0.25), name


def test_hidden_states_and_attentions(sparse_t5):
    sparse_t5.set_attn_implementation("eager")
    outputs = sparse_t5(**BATCH, output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in outputs.encoder_hidden_states] == [(2, 6, 32)] * 3
    assert [tuple(state.shape) for state in outputs.decoder_hidden_states] == [(2, 5, 32)] * 3
    assert [tuple(attention.shape) for attention in outputs.cross_attentions] == [(2, 4, 5, 6)] * 2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(tiny_t5, use_reentrant):
    sparse_t5 = randomize(SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, dropout_rate=0.0)))

    def gradients():
        sparse_t5.zero_grad()
        sparse_t5(**BATCH).loss.backward()
        return {name: parameter.grad.clone() for name, parameter in sparse_t5.named_parameters()}

    sparse_t5.train()
    plain = gradients()
    sparse_t5.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert all(plain[key].any() for key in zeroth_bias_keys())
    torch.testing.assert_close(gradients(), plain)


def test_activation_mix(sparse_t5, tmp_path):
    """The portion changes the logits, and survives saving, loading and the meta device, in every stack's config."""
    logits = {}
    for portion in (0.0, 0.25, 1.0):
        sparse_t5.activation_mix = portion
        assert sparse_t5.config.activation_mix == portion
        assert sparse_t5.decoder.config.activation_mix == portion
        logits[portion] = sparse_t5(**BATCH).logits
    assert not torch.allclose(logits[0.0], logits[1.0])
    sparse_t5.activation_mix = 0.25
    sparse_t5.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()  # built on the meta device
    assert {block.DenseReluDense.act.portion.item() for block in feed_forwards(loaded)} == {0.25}
    torch.testing.assert_close(loaded(**BATCH).logits, logits[0.25])
    with pytest.raises(StrictDataclassError, match="activation_mix"):
        loaded.activation_mix = 1.5
    relu = SparseT5Model(SparseT5Config(d_model=8, d_ff=8, num_layers=1, feed_forward_proj="relu"))
    with pytest.raises(AttributeError, match="`feed_forward_proj`="):
        relu.activation_mix = 0.5


def test_linear_above_reaches_the_activation(tiny_t5):
    model = SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, jsrelu_linear_above=4.0))
    assert {block.DenseReluDense.act.linear_above for block in feed_forwards(model)} == {4.0}


# --- half precision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["jsrelu", "gated-jsrelu", "relu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(tiny_t5, dtype, activation, tmp_path):
    model = randomize(SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, feed_forward_proj=activation)))
    model.save_pretrained(tmp_path)
    half = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype).eval()
    if dtype == torch.float16:
        assert {block.DenseReluDense.wo.weight.dtype for block in feed_forwards(half)} == {torch.float32}
    assert {block.zeroth_bias.weight.dtype for block in feed_forwards(half)} == {dtype}
    logits, expected = half(**BATCH).logits, model(**BATCH).logits
    assert (logits.float() - expected).norm() < 0.1 * expected.norm()
    assert half.generate(INPUT_IDS, max_new_tokens=4).shape[1] <= 5


@pytest.mark.parametrize("gated", [False, True])
def test_float16_does_not_overflow_where_t5_does_not(tiny_t5, gated, tmp_path):
    """Pre-activations of some thousands: fine for ReLU in float16, and their squares must be for JSReLU."""
    prefix = "gated-" if gated else ""
    config = SparseT5Config(**tiny_t5, feed_forward_proj=f"{prefix}jsrelu")
    model = randomize(SparseT5ForConditionalGeneration(config))
    with torch.no_grad():
        for block in feed_forwards(model):
            (block.DenseReluDense.wi_0 if gated else block.DenseReluDense.wi).weight.mul_(5e3)
            block.DenseReluDense.wo.weight.mul_(1e-6)
    model.save_pretrained(tmp_path)
    half = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float16).eval()
    largest = []
    half.encoder.block[0].layer[1].DenseReluDense.act.register_forward_hook(
        lambda module, args, output: largest.append((args[0].abs().max().item(), output.max().item()))
    )
    logits, expected = half(**BATCH).logits, model(**BATCH).logits
    assert largest[0][0] > 1e3
    assert largest[0][1] > torch.finfo(torch.float16).max
    assert logits.isfinite().all()
    assert (logits.float() - expected).norm() < 0.1 * expected.norm()
