# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field
from typing import Any

import pytest

from sparsight import CrateConfig
from sparsight.training import finetune_sparsity
from sparsight.training.arguments import (
    RECIPES,
    LoopArguments,
    UsageError,
    argument,
    exit_on_usage_error,
    load_recipe,
    parse_arguments,
)
from sparsight.training.checkpoints import check_model_fields, make_config
from sparsight.training.finetune_tasks import TASKS
from sparsight.training.image_data import ImageArguments


@dataclass
class Arguments:
    recipe: str | None = argument("A recipe.")
    size: int = argument("A number.", 1)
    scale: list[float] = argument("Numbers.", [0.5, 1.0])
    name: str | None = argument("A name.")
    fast: bool = argument("A switch.", True)
    model: dict[str, Any] = field(default_factory=dict, init=False)


def parse(*args: str) -> Arguments:
    return parse_arguments((Arguments,), list(args), "description", lambda given: None)[0]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("size: 7\nscale: [0.25, 2]\nname: a\nfast: false\nmodel: {hidden_size: 8, hidden_act: relu}\n")
    return str(path)


def test_defaults():
    assert parse() == Arguments()


def test_recipe_goes_before_defaults_and_the_command_line_before_the_recipe(recipe):
    plain = parse("--recipe", recipe)
    assert (plain.size, plain.scale, plain.name, plain.fast) == (7, [0.25, 2.0], "a", False)
    assert plain.model == {"hidden_size": 8, "hidden_act": "relu"}
    # A value that happens to be the default is an override too.
    given = parse("--recipe", recipe, "--size", "1", "--scale", "0.5", "1", "--fast", "--model.hidden_size", "16")
    assert (given.size, given.scale, given.fast, given.name) == (1, [0.5, 1.0], True, "a")
    assert given.model == {"hidden_size": 16, "hidden_act": "relu"}
    assert parse("--recipe", recipe, "--model.image_size=[8, 12]").model["image_size"] == [8, 12]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--sise", "3"], r"--sise: unknown argument; did you mean --size"),
        (["--size", "many"], r"--size.*invalid int value: 'many'"),
        (
            ["--recipe", "sparse_vit_digit"],
            r"--recipe: no recipe 'sparse_vit_digit'; did you mean sparse_vit",
        ),
        (["--recipe", "nowhere/mine.yaml"], r"--recipe: no recipe 'nowhere/mine.yaml'"),
        (["--model.hidden_size"], r"--model.hidden_size: expected a value"),
    ],
)
def test_bad_command_line(args, message):
    with pytest.raises(UsageError, match=message) as error:
        parse(*args)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sise: 3", r"unknown field 'sise'; did you mean size"),
        ("size: many", r"invalid int value: 'many'"),
        ("- size", r"must hold a mapping"),
        ("size: [", r"is not YAML"),
    ],
)
def test_bad_recipe(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        parse("--recipe", str(path))
    assert str(error.value).startswith("--recipe: ")
    assert "\n" not in str(error.value)


def test_usage_errors_exit_with_2_and_one_line(capsys):
    @exit_on_usage_error
    def main():
        raise UsageError("Caught UsageError in DataLoader worker process 0.\n  ...\nx.UsageError: --size: too small")

    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("error: --size: too small")


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 0), ("gradient_accumulation_steps", 3), ("learning_rate", 0.0), ("num_epochs", 0), ("seed", -1)],
)
def test_nonsense_values_name_the_argument(name, value):
    with pytest.raises(UsageError, match=f"--{name}|--batch_size"):
        LoopArguments(**{name: value}).check()


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_fits_a_script(path):
    task = TASKS["t5" if "t5" in path.stem else "image"]
    finetuning = "finetune" in path.stem
    script = finetune_sparsity if finetuning else task.script
    own = script.FinetuneArguments if finetuning else script.ModelArguments
    arguments, data_arguments, loop = parse_arguments(
        (own, task.arguments_class, LoopArguments), ["--recipe", path.stem], "", lambda given: None
    )
    loop.check()
    if finetuning:
        assert finetune_sparsity.choose_task(["--recipe", path.stem]) is task
        arguments.check()
        check_model_fields(task.sparse_class.config_class, arguments.model)
    else:
        config = make_config(task.auto_class, arguments.model_type, arguments.model)
        assert config.model_type == arguments.model_type
        assert {**config.to_dict(), **arguments.model} == config.to_dict()
    if task is TASKS["t5"]:
        data_arguments.check()
        assert data_arguments.lengths.input_length == data_arguments.input_length


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
