# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
from transformers import CONFIG_MAPPING

from sparsight import CrateConfig
from sparsight.training import finetune_sparsity, pretrain_t5, train, train_image_classification
from sparsight.training.command_line.arguments import Settings, parse_arguments
from sparsight.training.command_line.errors import UsageError
from sparsight.training.command_line.recipes import RECIPES, load_recipe
from sparsight.training.data.pixels import ImageArguments
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments, check_model_fields, make_config
from sparsight.training.jobs import task_training
from sparsight.training.jobs.sparsity_finetuning import SPARSE_FORMS
from sparsight.training.tasks import TASKS
from sparsight.training.tasks.modular_addition import ModularAddition


NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
FINETUNING = [name for name in NAMES if name.endswith("_finetune")]
TRAINING = [name for name in NAMES if name not in FINETUNING]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_recipe_is_found_by_its_name_or_its_path(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text("batch_size: 3\nmodel:\n")
    assert load_recipe(str(path)) == {"batch_size": 3, "model": None}
    assert load_recipe(str(RECIPES / "vit_digits.yaml")) == load_recipe("vit_digits")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_sise: 3", "--recipe: {} has an unknown field 'batch_sise'; did you mean batch_size"),
        ("batch_size: many", "--recipe: {}: --batch_size/--batch-size: invalid int value: 'many' (see --help)"),
        ("batch_size: [1, 2]", "--recipe: {}: 2: unknown argument; "),
        ("command: mine", "--recipe: {}: --command: unknown argument; "),
        ("- batch_size", "--recipe: {} must hold a mapping of argument names to values"),
        ("", "--recipe: {} must hold a mapping of argument names to values"),
        ("model: 3", "--recipe: {}: `model` must hold a mapping of config fields to values"),
        ("batch_size: [", "--recipe: {} is not YAML (while parsing "),
        (b"\xff\xfe", "--recipe: {} is not YAML ("),
    ],
)
def test_bad_recipe(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as error:
        parse_arguments((ModelArguments, LoopArguments), ["--recipe", str(path)], "", lambda given: None)
    assert str(error.value).startswith(message.format(path))
    assert "\n" not in str(error.value)


# --- those that come with the scripts --------------------------------------------------------------------------------


class Parsed(Exception):
    """Ends a script where its work would begin."""


@pytest.fixture
def parsed(monkeypatch):
    """What a script makes of a command line."""

    def stop(*arguments):
        raise Parsed(*arguments)

    monkeypatch.setattr(task_training, "train_task", stop)
    monkeypatch.setattr(finetune_sparsity, "finetune", stop)

    def run(script, *args):
        with pytest.raises(Parsed) as error:
            script.main(list(args))
        return error.value.args

    return run


SCRIPTS = {"image": train_image_classification, "t5": pretrain_t5, "modular_addition": train}


def task_of(name: str) -> str:
    return load_recipe(name).get("task", "t5" if "t5" in name else "image")


def test_every_task_has_a_recipe():
    assert {task_of(name) for name in TRAINING} == SCRIPTS.keys() == TASKS.keys()
    assert {task_of(name) for name in FINETUNING} == SPARSE_FORMS.keys()


@pytest.mark.parametrize("name", TRAINING)
def test_recipe_for_training_fits_its_script(name, parsed):
    task = task_of(name)
    task_class, start, method_arguments, data_arguments, loop, _, more = parsed(SCRIPTS[task], "--recipe", name)
    assert task_class is TASKS[task]
    Settings(*more, start, method_arguments, data_arguments, loop).check()
    assert loop.output_dir == f"outputs/{name}"
    assert start.recipe == name
    recipe = load_recipe(name)
    config = make_config(task_class.families(), start.model_type, start.model)
    assert config.model_type == recipe["model_type"]
    assert start.model == recipe.get("model", {})
    assert {**config.to_dict(), **start.model} == config.to_dict()
    if method_arguments.restrict_layer_norms:
        assert hasattr(config, "zeroth_bias")
    if task == "t5":
        assert data_arguments.lengths.input_length == data_arguments.input_length


@pytest.mark.parametrize("name", TRAINING)
def test_recipe_for_training_fits_the_script_of_all_tasks(name, parsed):
    task_class, *_, loop, _, (more,) = parsed(train, "--task", task_of(name), "--recipe", name)
    assert (task_class, more.task) == (TASKS[task_of(name)], task_of(name))
    assert loop.output_dir == f"outputs/{name}"


@pytest.mark.parametrize("name", FINETUNING)
def test_recipe_for_finetuning_fits_its_script(name, parsed):
    task_class, form, arguments, data_arguments, loop, _ = parsed(finetune_sparsity, "--recipe", name)
    task = "t5" if "t5" in name else "image"
    assert (task_class, form) == (TASKS[task], SPARSE_FORMS[task])
    Settings(arguments, data_arguments, loop).check()
    check_model_fields(form.model_class.config_class, arguments.model)
    if task == "t5":
        assert data_arguments.lengths.input_length == data_arguments.input_length
    # Where it says which vanilla model to train, that is one of the same data.
    if arguments.vanilla_recipe is not None:
        vanilla = load_recipe(arguments.vanilla_recipe)
        assert vanilla["model_type"] in form.families
        assert vanilla["dataset"] == data_arguments.dataset


@pytest.mark.parametrize("task", TASKS)
def test_the_default_of_every_task_is_a_recipe(task):
    assert TASKS[task].default_recipe({}) in NAMES
    for form in SPARSE_FORMS.values():
        assert {form.recipe, form.vanilla_recipe} <= set(NAMES)


def test_papers_numbers_from_scratch():
    """ViT-B/16 on ImageNet-1K, arXiv 2309.03004."""
    vanilla, sparse = load_recipe("vit_base_imagenet"), load_recipe("sparse_vit_base_imagenet")
    expected = {
        "optimizer": "adamw", "learning_rate": 3e-3, "weight_decay": 0.3, "batch_size": 2048, "num_epochs": 300,
        "lr_scheduler": "cosine", "warmup_steps": 0, "label_smoothing": 0.11, "mixup": 0.2, "cutmix": 1.0,
        "max_grad_norm": 1.0, "mixed_precision": "fp16",
    }  # fmt: skip
    for recipe in (vanilla, sparse):
        assert {name: recipe[name] for name in expected} == expected
        assert recipe["auto_augment"].startswith("rand-")
        assert recipe["repeated_augmentation"] > 1
    differences = {name for name in sparse if sparse[name] != vanilla.get(name)}
    assert differences == {"model", "restrict_layer_norms"}
    assert (vanilla["model"]["hidden_act"], vanilla["model"]["zeroth_bias"]) == ("relu", False)
    assert (sparse["model"]["hidden_act"], sparse["model"]["zeroth_bias"]) == ("jsrelu", True)
    assert load_recipe("vit_base_imagenet_finetune")["num_epochs"] == 15


def test_crates_numbers():
    """The authors' recipes, arXiv 2306.01129; the sizes are those of the presets."""
    expected = {
        "optimizer": "lion", "learning_rate": 2e-4, "weight_decay": 0.05, "batch_size": 512, "num_epochs": 200,
        "warmup_epochs": 20, "lr_scheduler": "cosine", "label_smoothing": 0.1, "max_grad_norm": 1.0,
    }  # fmt: skip
    for size in ("tiny", "small", "base", "large"):
        recipe = load_recipe(f"crate_{size}_imagenet")
        assert {name: recipe[name] for name in expected} == expected
        assert CrateConfig(**recipe["model"]).to_dict() == CrateConfig.preset(size).to_dict()
        defaults = ImageArguments()  # random resized crop and horizontal flip
        assert (defaults.crop_scale, defaults.horizontal_flip) == ([0.08, 1.0], 0.5)
        assert not {"crop_scale", "horizontal_flip", "mixup", "auto_augment"} & recipe.keys()
    transfer = load_recipe("crate_transfer")
    assert (transfer["optimizer"], transfer["learning_rate"]) == ("adamw", 5e-5)
    assert (transfer["batch_size"], transfer["num_epochs"], transfer["auto_augment"]) == (256, 200, "rand-m14-n2")


def test_papers_numbers_on_c4():
    """T5-base on C4, arXiv 2309.03004."""
    vanilla, sparse = load_recipe("t5_base_c4"), load_recipe("sparse_t5_base_c4")
    expected = {
        "optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.001, "batch_size": 256, "max_steps": 100_000,
        "lr_scheduler": "inverse_sqrt", "warmup_steps": 10_000, "input_length": 512, "noise_density": 0.15,
        "mean_span_length": 3.0, "packing": "within_batch",
    }  # fmt: skip
    for recipe in (vanilla, sparse):
        assert {name: recipe[name] for name in expected} == expected
    assert (vanilla["model"]["feed_forward_proj"], vanilla["model"]["zeroth_bias"]) == ("relu", False)
    assert (sparse["model"]["feed_forward_proj"], sparse["model"]["zeroth_bias"]) == ("jsrelu", True)
    assert "restrict_layer_norms" not in vanilla
    assert sparse["restrict_layer_norms"]
    finetune = load_recipe("t5_base_c4_finetune")
    assert (finetune["max_steps"], finetune["uplift_steps"], finetune["mixing_steps"]) == (10_000, 3_000, 3_000)
    assert finetune["lora_rank"] == 192


def test_modular_addition_takes_all_pairs_in_each_step():
    recipe = load_recipe("modular_addition")
    pairs = recipe["modulus"] ** 2
    assert recipe["batch_size"] == round(recipe["train_share"] * pairs)
    assert recipe["batch_size"] + recipe["eval_batch_size"] == pairs
    assert recipe["model_type"] == ModularAddition.default_model_type
    assert recipe["model"].keys() <= set(CONFIG_MAPPING["gpt2"]().to_dict())


def test_streams_say_how_many_steps_and_held_out_texts():
    for name in (name for name in NAMES if load_recipe(name).get("streaming")):
        recipe = load_recipe(name)
        assert recipe["max_steps"] > 0
        assert recipe["max_eval_samples"] > 0
