# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The main job for T5 end to end, on a vanilla model that trains in a second."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from peft import PeftModel
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration, ViTConfig

from helpers import ROOT, TINY_T5_RECIPE, run_python
from sparsight import SparseT5ForConditionalGeneration
from sparsight.training import finetune_sparsity, training_run
from sparsight.training.finetune_tasks import TASKS
from sparsight.training.text_data import TextArguments, load_texts
from sparsight.training.text_examples import make_blocks, make_corruption


SCRIPT = ROOT / "training" / "finetune_sparsity.py"
COLUMNS = ("before", "lora", "recipe")
LAYERS = ["encoder 1", "encoder 2", "decoder 1", "decoder 2"]


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory) -> tuple[str, str]:
    """Recipes of a vanilla T5 and of its finetuning, small and quick."""
    folder = tmp_path_factory.mktemp("recipes")
    vanilla = yaml.safe_load(TINY_T5_RECIPE)
    vanilla["model"] |= {"feed_forward_proj": "relu", "zeroth_bias": False}
    (folder / "vanilla.yaml").write_text(yaml.safe_dump({**vanilla, "max_steps": 40}))
    finetune = {name: value for name, value in vanilla.items() if name not in ("model", "model_type")}
    finetune |= {"task": "t5", "lora_rank": 4, "mixing_steps": 4, "vanilla_recipe": str(folder / "vanilla.yaml")}
    (folder / "finetune.yaml").write_text(yaml.safe_dump(finetune))
    return str(folder / "vanilla.yaml"), str(folder / "finetune.yaml")


def finetune(recipes, output_dir: Path, *args: str) -> dict:
    finetune_sparsity.main(["--recipe", recipes[1], "--output_dir", str(output_dir), *args])
    return json.loads((output_dir / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(recipes, tmp_path_factory) -> Path:
    """The output folder of the whole job."""
    output_dir = tmp_path_factory.mktemp("job") / "out"
    finetune(recipes, output_dir)
    AcceleratorState._reset_state(reset_partial_state=True)
    return output_dir


@pytest.fixture(scope="module")
def eval_batch(finished) -> dict[str, torch.Tensor]:
    arguments = TextArguments(vocab_size=300, input_length=24, max_train_samples=4, max_eval_samples=2)
    tokenizer = AutoTokenizer.from_pretrained(finished / "merged")
    blocks = make_blocks(load_texts(arguments).eval, tokenizer, arguments)
    seeds = [(0, 0, index) for index in range(len(blocks))]
    inputs, targets = make_corruption(arguments, tokenizer)(blocks, seeds)
    return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(targets)}


def test_what_the_job_writes(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        "adapter", "arguments.json", "lora", "merged", "recipe", "results.json", "sparsity.png", "vanilla",
    ]  # fmt: skip
    results = json.loads((finished / "results.json").read_text())
    for column in COLUMNS:
        assert {"loss", "perplexity", "nonzero_share"} <= set(results[column])
        assert list(TASKS["t5"].layer_shares(results[column])) == LAYERS
    assert (finished / "sparsity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("column", "folder"), [("before", "vanilla/model"), ("recipe", "merged")])
def test_numbers_are_those_of_the_models_on_disk(finished, eval_batch, column, folder):
    results = json.loads((finished / "results.json").read_text())[column]
    model = AutoModelForSeq2SeqLM.from_pretrained(finished / folder).eval()
    loss = model(**eval_batch).loss
    assert results["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert results["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-5)


def test_the_merged_model_is_the_recipes(finished):
    merged = AutoModelForSeq2SeqLM.from_pretrained(finished / "merged")
    assert type(merged) is SparseT5ForConditionalGeneration
    config = merged.config
    assert (config.feed_forward_proj, config.activation_mix, config.zeroth_bias) == ("jsrelu", 1.0, True)
    assert merged.lm_head.weight is merged.shared.weight
    vanilla = AutoModelForSeq2SeqLM.from_pretrained(finished / "vanilla" / "model")
    old = dict(vanilla.named_parameters())
    for name, parameter in merged.named_parameters():
        if "zeroth_bias" in name:
            assert parameter.any()
            scale = merged.get_parameter(name.replace("DenseReluDense.zeroth_bias", "layer_norm"))
            assert (scale.abs() >= 1).all()
            assert (parameter.abs() <= 0.1 * scale.abs()).all()
            assert not torch.equal(scale, old[name.replace("DenseReluDense.zeroth_bias", "layer_norm")])
        elif any(f".{matrix}.weight" in name for matrix in TASKS["t5"].lora_targets):
            assert not torch.equal(parameter, old[name]), name
        elif name.replace("layer_norm", "DenseReluDense.zeroth_bias") not in dict(merged.named_parameters()):
            # All else stays: embeddings, and the norms before attention.
            torch.testing.assert_close(parameter, old[name], rtol=0, atol=0)


def test_merged_is_unmerged(finished, eval_batch):
    """The adapter on the vanilla checkpoint gives the merged model's logits: it holds all that the recipe changed."""
    fields = {"feed_forward_proj": "jsrelu", "zeroth_bias": True}
    base = SparseT5ForConditionalGeneration.from_pretrained(finished / "vanilla" / "model", **fields)
    unmerged = PeftModel.from_pretrained(base, finished / "adapter").eval()
    merged = AutoModelForSeq2SeqLM.from_pretrained(finished / "merged").eval()
    torch.testing.assert_close(unmerged(**eval_batch).logits, merged(**eval_batch).logits, atol=1e-5, rtol=1e-5)


def test_the_merged_model_fills_a_masked_span(finished):
    """By `generate`: transformers 5 has no pipeline for text to text."""
    tokenizer = AutoTokenizer.from_pretrained(finished / "merged")
    model = AutoModelForSeq2SeqLM.from_pretrained(finished / "merged").eval()
    inputs = tokenizer(["The <extra_id_0> is a name.", "A name <extra_id_0>."], return_tensors="pt", padding=True)
    filled = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert (filled[:, 0] == tokenizer.pad_token_id).all()
    assert "<extra_id_0>" in tokenizer.decode(filled[0])
    assert torch.equal(filled, model.generate(**inputs, max_new_tokens=8, do_sample=False, use_cache=False))


def test_table(finished, capsys):
    results = json.loads((finished / "results.json").read_text())
    table = finetune_sparsity.format_table(TASKS["t5"], {column: results[column] for column in COLUMNS})
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["", *COLUMNS]
    assert [row[0] for row in cells[2:]] == ["loss", "perplexity", "non-zero share", *LAYERS]
    assert cells[3][1:] == [f"{results[column]['perplexity']:.2f}" for column in COLUMNS]
    assert cells[7][3] == f"{results['recipe']['decoder_nonzero_share_per_layer'][0]:.2%}"


def test_task_is_recognised(finished, recipes, tmp_path):
    """From the checkpoint, from a recipe, from the command line, which goes first; images where nothing is said."""
    choose = finetune_sparsity.choose_task
    vanilla = str(finished / "vanilla" / "model")
    T5Config().save_pretrained(tmp_path / "t5")
    ViTConfig().save_pretrained(tmp_path / "vit")
    assert choose(["--model_name_or_path", vanilla]) is TASKS["t5"]
    assert choose([f"--model_name_or_path={tmp_path / 't5'}"]) is TASKS["t5"]
    assert choose(["--model_name_or_path", str(tmp_path / "vit")]) is TASKS["image"]
    assert choose(["--model_name_or_path", vanilla, "--task", "image"]) is TASKS["image"]
    assert choose(["--recipe", recipes[1]]) is TASKS["t5"]
    assert choose(["--model_name_or_path", "./nowhere"]) is TASKS["image"]
    assert choose([]) is TASKS["image"]


def test_options(recipes, finished, tmp_path):
    """Uplift at once, no baseline, a given checkpoint, packing, a stream and a field of the config."""
    args = ["--model_name_or_path", str(finished / "vanilla" / "model"), "--no_baseline", "--mixing_steps", "8"]
    args += ["--uplift_steps", "0", "--lora_dropout", "0.1", "--model.jsrelu_linear_above", "4", "--max_steps", "6"]
    args += ["--streaming", "--shuffle_buffer", "3", "--packing", "within_batch", "--packing_batch_size", "2"]
    results = finetune(recipes, tmp_path / "out", *args)
    assert "lora" not in results
    assert not (tmp_path / "out" / "vanilla").exists()
    merged = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "merged")
    assert merged.activation_mix == 6 / 8  # stopped before the end of mixing, and saved as it is
    assert merged.config.jsrelu_linear_above == 4


@pytest.mark.parametrize("activation", ["relu", "gated-gelu"])
def test_a_t5_of_transformers(recipes, finished, tmp_path, activation):
    config = T5Config(
        vocab_size=300, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0,
        feed_forward_proj=activation,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    AutoTokenizer.from_pretrained(finished / "merged").save_pretrained(tmp_path / "t5")
    results = finetune(recipes, tmp_path / "out", "--model_name_or_path", str(tmp_path / "t5"), "--max_steps", "3")
    gated = activation == "gated-gelu"
    assert (results["before"]["nonzero_share"] > 0.99) == gated
    assert results["recipe"]["nonzero_share"] < 0.9
    merged = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "merged")
    assert merged.config.feed_forward_proj == ("gated-jsrelu" if gated else "jsrelu")


def test_interrupted_and_resumed(recipes, finished, tmp_path, monkeypatch):
    """Stopped within each of the three trainings in turn, the job ends with the same merged model."""
    output_dir = tmp_path / "out"
    real = training_run.train
    stages = []

    def stop_once(*args, **kwargs):
        """Stop behind the first checkpoint of each training, once."""
        if kwargs["description"] in stages:
            return real(*args, **kwargs)
        stages.append(kwargs["description"])
        measured = []

        def evaluate_then_stop(model):
            if measured:
                raise KeyboardInterrupt
            measured.append(model)
            return kwargs["evaluate"](model)

        stopped = dataclasses.replace(args[3], eval_epochs=0.05)
        return real(*args[:3], stopped, *args[4:], **{**kwargs, "evaluate": evaluate_then_stop})

    monkeypatch.setattr(training_run, "train", stop_once)
    monkeypatch.setattr(finetune_sparsity, "train", stop_once)
    resume = []
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            finetune(recipes, output_dir, *resume)
        AcceleratorState._reset_state(reset_partial_state=True)
        resume = ["--resume_from_checkpoint", "latest"]
    finetune(recipes, output_dir, *resume)
    assert len(stages) == 3
    for name in ("vanilla/model", "merged"):
        assert (output_dir / name / "model.safetensors").read_bytes() == (
            finished / name / "model.safetensors"
        ).read_bytes(), name


def test_two_processes_give_the_same_counts(recipes, finished, tmp_path):
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    args = ["--model_name_or_path", finished / "vanilla" / "model", "--eval_batch_size", "30", "--no_baseline"]
    done = run_python(*launch, SCRIPT, "--recipe", recipes[1], "--output_dir", tmp_path / "out", *args)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("perplexity") == 1  # one table, from the main process
    one = json.loads((finished / "results.json").read_text())
    two = json.loads((tmp_path / "out" / "results.json").read_text())
    for name in ("loss", "nonzero_share", "num_examples", "num_target_tokens", "num_encoder_tokens"):
        assert two["before"][name] == pytest.approx(one["before"][name], rel=1e-4)
    assert two["recipe"]["num_decoder_tokens"] == one["recipe"]["num_decoder_tokens"]
    assert two["recipe"]["loss"] == pytest.approx(one["recipe"]["loss"], abs=1e-2)


BAD = {
    "missing model": (["--model_name_or_path", "./nowhere"], "--model_name_or_path: there is no folder ./nowhere"),
    "missing data": (["--dataset", "./nowhere"], "--model_name_or_path: give a T5 of ./nowhere"),
    "rank too large": (["--lora_rank", "17"], "--lora_rank: 17 is more than encoder.block.0.layer.0.SelfAttention.q"),
    "unknown task": (["--task", "text"], "--task: invalid choice: 'text'"),
    "argument of images": (["--mixup", "0.2"], "--mixup: unknown argument"),
    "no noise": (["--noise_density", "0"], "--noise_density: 0.0 is not in (0, 1)"),
    "unknown field": (["--model.hidden_act", "relu"], "--model.hidden_act: sparse_t5 has no such field"),
    "negative steps": (["--mixing_steps", "-1"], "--mixing_steps: -1 is negative"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, recipes, tmp_path, capsys, monkeypatch):
    args, message = BAD[case]
    if case == "unknown task":
        recipes = (recipes[0], str(tmp_path.parent / "no_task.yaml"))
        Path(recipes[1]).write_text("dataset: digits\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        finetune_sparsity.main(["--recipe", recipes[1], "--output_dir", "out", *args])
    assert exit_info.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(tmp_path.iterdir())


def test_a_t5_where_images_are_asked_for(recipes, finished, tmp_path, capsys):
    with pytest.raises(SystemExit):
        finetune_sparsity.main(
            [
                "--task",
                "image",
                "--model_name_or_path",
                str(finished / "merged"),
                "--output_dir",
                str(tmp_path / "out"),
            ]
        )
    assert "--model_name_or_path: cannot load" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
