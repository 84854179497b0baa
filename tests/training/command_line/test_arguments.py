# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import math
import shlex
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparsight.training.command_line.arguments import (
    Rules,
    Settings,
    argument,
    arguments_from_recipe,
    command_line,
    parse_arguments,
    peek,
)
from sparsight.training.command_line.errors import UsageError
from sparsight.training.data.packing import TextArguments
from sparsight.training.data.pixels import ImageArguments
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments
from sparsight.training.jobs.sparsity_finetuning import FinetuneArguments
from sparsight.training.methods import MethodArguments
from sparsight.training.tasks.modular_addition import AdditionArguments
from sparsight.training.train import TaskArguments


@dataclass
class Arguments:
    recipe: str | None = argument("A recipe.")
    size: int = argument("A number, such as 15 % of all.", 1)
    scale: list[float] = argument("Numbers.", [0.5, 1.0])
    name: str | None = argument("A name.")
    fast: bool = argument("A switch.", True)
    model: dict[str, Any] = field(default_factory=dict, init=False)


@dataclass
class Others:
    sizes: int = argument("A number.", 1)
    scale: float = argument("A number.", 1.0)
    name: str | None = argument("A name.")
    fast: bool = argument("A switch.", True)
    model: dict[str, Any] = field(default_factory=dict, init=False)


def parse(*args: str) -> Arguments:
    return parse_arguments((Arguments,), list(args), "What it is for.", lambda given: None)[0]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("size: 7\nscale: [0.25, 2]\nname: a\nfast: false\nmodel: {hidden_size: 8, hidden_act: relu}\n")
    return str(path)


# --- command line over recipe over defaults --------------------------------------------------------------------------


def test_defaults():
    assert parse() == Arguments()
    parse().scale.append(2.0)
    assert parse().scale == Arguments().scale == [0.5, 1.0]


def test_recipe_goes_before_defaults_and_the_command_line_before_the_recipe(recipe):
    plain = parse("--recipe", recipe)
    assert (plain.size, plain.scale, plain.name, plain.fast) == (7, [0.25, 2.0], "a", False)
    assert plain.model == {"hidden_size": 8, "hidden_act": "relu"}
    assert plain.recipe == recipe
    # A value that happens to be the default is an override too.
    given = parse("--recipe", recipe, "--size", "1", "--scale", "0.5", "1", "--fast", "--model.hidden_size", "16")
    assert (given.size, given.scale, given.fast, given.name) == (1, [0.5, 1.0], True, "a")
    assert given.model == {"hidden_size": 16, "hidden_act": "relu"}
    assert parse("--recipe", recipe, "--model.image_size=[8, 12]").model["image_size"] == [8, 12]
    assert parse("--no_fast").fast is False


def test_default_recipe_sees_what_the_command_line_says(recipe):
    seen = []

    def default_recipe(given):
        seen.append(given)
        return recipe

    (arguments,) = parse_arguments((Arguments,), ["--size", "3", "--fast"], "", default_recipe)
    assert (arguments.size, arguments.name, arguments.recipe) == (3, "a", recipe)
    assert seen == [{"size": 3, "fast": True}]
    # One that is named goes before it.
    (arguments,) = parse_arguments((Arguments,), ["--recipe", recipe], "", lambda given: "nowhere.yaml")
    assert arguments.recipe == recipe


def test_fields_go_to_the_class_that_has_them(recipe):
    @dataclass
    class More:
        width: float = argument("A number.", 1.0)

    first, second = parse_arguments((Arguments, More), ["--recipe", recipe, "--width", "3"], "", lambda given: None)
    assert (first.size, second) == (7, More(3.0))


def test_help_shows_the_text_of_every_argument(capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse("--help")
    assert exit_info.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "What it is for." in shown
    assert "A number, such as 15 % of all. (default: 1)" in shown
    assert all(f"--{own.name}" in shown for own in fields(Arguments) if own.init)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--sise", "3"], "--sise: unknown argument; did you mean --size or "),
        (["--sise=3"], "--sise: unknown argument; did you mean --size or "),
        (["--siz", "3"], "--siz: unknown argument; did you mean --size or "),
        (["--fats", "1"], "--fats: unknown argument; did you mean --fast or --size or --name?"),
        (["--size", "many"], "--size: invalid int value: 'many' (see --help)"),
        (["--size"], "--size: expected one argument (see --help)"),
        (["--recipe", "sparse_vit_digit"], "--recipe: no recipe 'sparse_vit_digit'; did you mean sparse_vit_digits "),
        (["--recipe", "nowhere/mine.yaml"], "--recipe: no recipe 'nowhere/mine.yaml'; "),
        (["--model.hidden_size"], "--model.hidden_size: expected a value, as in --model.hidden_size 64"),
        (["--model.hidden_size", "[1"], "--model.hidden_size: '[1' is no value of YAML (while parsing "),
    ],
)
def test_bad_command_line(args, message):
    with pytest.raises(UsageError) as error:
        parse(*args)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_arguments_from_a_recipe(recipe):
    (arguments,) = arguments_from_recipe((Arguments,), recipe, size=9)
    assert (arguments.size, arguments.name, arguments.scale) == (9, "a", [0.25, 2.0])
    assert arguments.recipe == recipe
    assert arguments.model == {"hidden_size": 8, "hidden_act": "relu"}
    with pytest.raises(UsageError, match="--recipe: no recipe 'nothing'; known are "):
        arguments_from_recipe((Arguments,), "nothing")
    with pytest.raises(UsageError, match=f"--recipe: {recipe} has an unknown field 'size'; did you mean sizes"):
        arguments_from_recipe((Others,), recipe)


def test_peek(recipe, tmp_path):
    assert peek(["--recipe", recipe, "--size", "3", "--other", "x", "--model.width", "2"], "size", "name", "task") == {
        "size": "3",
        "name": "a",
        "task": None,
    }
    assert peek([f"--recipe={recipe}", "--name=b"], "name") == {"name": "b"}
    assert peek(["-h", "--nam", "c", "--scale", "1", "2"], "name") == {"name": None}
    with pytest.raises(UsageError, match="--recipe: no recipe 'nothing'"):
        peek(["--recipe", "nothing"], "name")


def test_command_line_can_be_typed_again():
    args = ["--dataset", "my folder", "--model.layers", "[1, 2]"]
    command = command_line("/somewhere/training/train.py", args)
    assert command == "accelerate launch training/train.py --dataset 'my folder' --model.layers '[1, 2]'"
    assert shlex.split(command)[3:] == args


# --- rules -----------------------------------------------------------------------------------------------------------


numbers = st.integers(-9, 9) | st.floats(-9, 9)
bounds = st.none() | st.integers(-5, 5)


@given(numbers, bounds, bounds, bounds, bounds)
@example(math.nan, 0, None, None, None)
@example(math.nan, None, 0, None, None)
@example(2, 2, 2, 2, 2)
@example(2, 2, None, 2, None)
def test_a_number_is_admitted_within_its_bounds_alone(number, at_least, at_most, above, below):
    rules = Rules(at_least=at_least, at_most=at_most, above=above, below=below)
    outside = (
        (at_least is not None and not number >= at_least)
        or (at_most is not None and not number <= at_most)
        or (above is not None and not number > above)
        or (below is not None and not number < below)
    )
    for value in (number, [number, number]):
        if outside:
            with pytest.raises(ValueError, match=r"^size: \S+ is out of range; give (at|more|less)"):
                rules.check("size", value)
        else:
            rules.check("size", value)


@pytest.mark.parametrize(
    ("rules", "value", "message"),
    [
        (Rules(at_least=1), 0, "size: 0 is out of range; give at least 1"),
        (Rules(above=0), 0.0, "size: 0.0 is out of range; give more than 0"),
        (Rules(at_most=1), 1.5, "size: 1.5 is out of range; give at most 1"),
        (Rules(at_least=0, below=1), 1.0, "size: 1.0 is out of range; give at least 0 and less than 1"),
        (Rules(above=0, at_most=1), [0.5, -2.0], "size: -2.0 is out of range; give more than 0 and at most 1"),
        (Rules(known=lambda: ["lion", "adamw"]), "adamv", "size: unknown 'adamv'; did you mean adamw?"),
        (Rules(known=lambda: ["lion", "adamw"]), "x", "size: unknown 'x'; known are adamw, lion"),
    ],
)
def test_the_message_names_the_argument_the_value_and_the_way_out(rules, value, message):
    with pytest.raises(ValueError, match=r"^size: ") as error:
        rules.check("size", value)
    assert str(error.value) == message


@pytest.mark.parametrize("value", [None, True, False, "0", {"a": 0}, []])
def test_bounds_are_for_numbers(value):
    Rules(at_least=2, at_most=2).check("size", value)
    Rules(known=lambda: ["adamw", value]).check("size", value)
    Rules(known=lambda: ["adamw"]).check("size", None)


# --- settings --------------------------------------------------------------------------------------------------------


@dataclass
class First:
    one: int = argument("One.", 1, at_least=1, local=True, on_card=True)
    two: str = argument("Two.", "a", known=lambda: "abc", free_on_resume=True)
    model: dict[str, Any] = field(default_factory=dict, init=False)

    def check(self):
        if self.two == "b":
            raise ValueError("two: b contradicts one")


@dataclass
class Second:
    three: list[float] = argument("Three.", [0.5], below=1, on_card=True)
    four: str | None = field(default=None, metadata={"rules": Rules(free_on_resume=True)})


def test_settings_hold_the_values_of_all_parts_as_they_are_now():
    first, second = First(), Second()
    settings = Settings(first, second)
    assert settings.values() == {"one": 1, "two": "a", "model": {}, "three": [0.5], "four": None}
    first.model, second.four = {"width": 3}, "x"
    assert settings.values() == {"one": 1, "two": "a", "model": {"width": 3}, "three": [0.5], "four": "x"}
    assert list(settings.values()) == ["one", "two", "model", "three", "four"]


def test_settings_know_the_names_for_which_a_switch_is_on():
    settings = Settings(First(), Second())
    assert settings.names("free_on_resume") == ["two", "four"]
    assert settings.names("local") == ["one"]
    assert settings.names("on_card") == ["one", "three"]


def test_bounds_of_all_parts_come_before_contradictions():
    first, second = First(), Second()
    settings = Settings(first, second)
    settings.check()
    first.two, second.three, first.one = "b", [0.5, 1.0], 0
    for name, mend in (
        ("one: 0 is out", lambda: setattr(first, "one", 1)),
        ("three: 1.0 is out", lambda: setattr(second, "three", [])),
        ("two: b contradicts", lambda: setattr(first, "two", "c")),
    ):
        with pytest.raises(ValueError, match=f"^{name}"):
            settings.check()
        mend()
    settings.check()


# --- the arguments of the scripts ------------------------------------------------------------------------------------


# What a resumed run may change, what stays on this machine, and what a model card shows.
SWITCHES = {
    LoopArguments: {
        "free_on_resume": [
            "output_dir", "overwrite", "resume_from_checkpoint", "eval_batch_size", "num_epochs", "max_steps",
            "num_workers", "logging_steps", "eval_epochs", "keep_checkpoints", "report_to", "push_to_hub",
            "hub_model_id", "hub_private", "hub_revision", "hub_strategy", "no_code", "command",
        ],
        "local": ["output_dir", "overwrite", "resume_from_checkpoint"],
        "on_card": [
            "batch_size", "num_epochs", "optimizer", "learning_rate", "weight_decay", "lr_scheduler",
            "label_smoothing", "mixed_precision",
        ],
    },
    ModelArguments: {"free_on_resume": [], "local": [], "on_card": ["recipe"]},
    MethodArguments: {"free_on_resume": [], "local": [], "on_card": ["restrict_layer_norms"]},
    ImageArguments: {"free_on_resume": [], "local": [], "on_card": []},
    TextArguments: {"free_on_resume": [], "local": [], "on_card": []},
    AdditionArguments: {"free_on_resume": [], "local": [], "on_card": ["modulus", "train_share"]},
    TaskArguments: {"free_on_resume": [], "local": [], "on_card": []},
    FinetuneArguments: {
        "free_on_resume": [],
        "local": [],
        "on_card": ["recipe", "lora_rank", "uplift_steps", "mixing_steps"],
    },
}  # fmt: skip

# The values next to the bounds: those that are good, and those that are not.
BOUNDS = {
    LoopArguments: {
        "batch_size": ([1], [0, -1]),
        "gradient_accumulation_steps": ([1], [0]),
        "eval_batch_size": ([1], [0]),
        "num_epochs": ([0.0, 0.5], [-0.5, math.inf, math.nan]),
        "max_steps": ([0], [-1]),
        "learning_rate": ([1e-12], [0.0, -1e-3, math.nan]),
        "weight_decay": ([0.0], [-0.1]),
        "adam_beta1": ([0.0, 0.999], [-0.1, 1.0]),
        "adam_beta2": ([0.0, 0.999], [-0.1, 1.0]),
        "warmup_steps": ([0], [-1]),
        "warmup_epochs": ([0.0], [-0.5, math.inf]),
        "max_grad_norm": ([0.0], [-1.0]),
        "label_smoothing": ([0.0, 0.99], [-0.1, 1.0]),
        "seed": ([0], [-1]),
        "num_workers": ([0], [-1]),
        "logging_steps": ([1], [0]),
        "eval_epochs": ([0.01], [0.0, math.inf]),
        "keep_checkpoints": ([1], [0]),
    },
    ImageArguments: {
        "max_train_samples": ([0], [-1]),
        "max_eval_samples": ([0], [-1]),
        "image_mean": ([[-1.0, 0.0, 2.0]], []),
        "image_std": ([[0.1]], [[0.0], [0.5, 0.5, -1.0]]),
        "crop_pct": ([0.1, 1.0], [0.0, 1.1]),
        "crop_scale": ([[0.08, 1.0]], [[0.0, 1.0], [0.5, 1.1]]),
        "crop_ratio": ([[0.1, 9.0]], [[0.0, 1.0]]),
        "horizontal_flip": ([0.0, 1.0], [-0.1, 1.1]),
        "color_jitter": ([0.0], [-0.1]),
        "random_erasing": ([0.0, 1.0], [-0.1, 1.1]),
        "repeated_augmentation": ([1], [0]),
        "mixup": ([0.0], [-0.1]),
        "cutmix": ([0.0], [-0.1]),
    },
    TextArguments: {
        "max_train_samples": ([0], [-1]),
        "max_eval_samples": ([0], [-1]),
        "shuffle_buffer": ([1], [0]),
        "vocab_size": ([200], [199, 103]),
        "input_length": ([3], [2]),
        "noise_density": ([0.01, 0.99], [0.0, 1.0]),
        "mean_span_length": ([1.0], [0.5]),
        "packing_batch_size": ([1], [0]),
    },
    AdditionArguments: {"modulus": ([3], [2]), "train_share": ([0.01, 0.99], [0.0, 1.0])},
    FinetuneArguments: {
        "lora_rank": ([1], [0]),
        "lora_alpha": ([None, 0.5], [0.0]),
        "lora_dropout": ([0.0, 0.9], [-0.1, 1.0]),
        "uplift_steps": ([None, 0], [-1]),
        "mixing_steps": ([0], [-1]),
    },
    ModelArguments: {},
    MethodArguments: {},
    TaskArguments: {},
}


@pytest.mark.parametrize("argument_class", SWITCHES)
def test_switches(argument_class):
    settings = Settings(argument_class())
    assert {rule: settings.names(rule) for rule in ("free_on_resume", "local", "on_card")} == SWITCHES[argument_class]


def is_number(annotation: Any) -> bool:
    return bool({int, float} & {annotation, *get_args(annotation)})


@pytest.mark.parametrize("argument_class", BOUNDS)
def test_bounds_of_every_number(argument_class):
    own = {own.name: own for own in fields(argument_class)}
    assert {name for name in own if is_number(own[name].type)} == BOUNDS[argument_class].keys()
    for name, (good, bad) in BOUNDS[argument_class].items():
        rules = own[name].metadata["rules"]
        for value in good:
            rules.check(name, value)
        for value in bad:
            with pytest.raises(ValueError, match=rf"^{name}: \S+ is out of range; give "):
                Settings(argument_class(**{name: value})).check()
    Settings(argument_class()).check()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optimizer", "adamv", "optimizer: unknown 'adamv'; did you mean adam"),
        ("lr_scheduler", "cosin", "lr_scheduler: unknown 'cosin'; did you mean cosine"),
    ],
)
def test_unknown_names(name, value, message):
    with pytest.raises(ValueError, match=f"^{name}: ") as error:
        Settings(LoopArguments(**{name: value})).check()
    assert str(error.value).startswith(message)
