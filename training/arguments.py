# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Command lines of the scripts: dataclasses of arguments, recipes as YAML, and one-line errors."""

import difflib
import functools
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from timm.optim import list_optimizers
from transformers import HfArgumentParser, SchedulerType


RECIPES = Path(__file__).parent / "recipes"


class UsageError(Exception):
    """What the user gave cannot be used. The message is one line that names the argument and the way out."""


def exit_on_usage_error(main: Callable[..., None]) -> Callable[..., None]:
    """A script's `main`, with each [`UsageError`] printed as one line and exit code 2."""

    @functools.wraps(main)
    def wrapper(*args, **kwargs):
        try:
            main(*args, **kwargs)
        except UsageError as error:
            # Where a data-loading worker raised it, torch puts the traceback in front of the message.
            message = str(error).strip().rpartition("UsageError: ")[2]
            sys.exit(_fail(message))

    return wrapper


def _fail(message: str) -> Literal[2]:
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return 2


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean …`: the known names that come nearest to `name`, or all of them where none comes near."""
    known = sorted(known)
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(matches)}?" if matches else f"known are {', '.join(known)}"


def argument(text: str, default: Any = None, **kwargs: Any) -> Any:
    """A dataclass field with a `--help` text."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": text, **kwargs})
    return field(default=default, metadata={"help": text, **kwargs})


@dataclass
class LoopArguments:
    """Optimization, checkpoints and logging: what every training script shares."""

    output_dir: str | None = argument("Folder for checkpoints and results. Default: outputs/<recipe>.")
    overwrite: bool = argument("Start anew in an output folder that holds another run, replacing its files.", False)
    resume_from_checkpoint: str | None = argument(
        "A checkpoint folder, or 'latest' for the newest in the output folder: continue as if never stopped."
    )
    seed: int = argument("Seed of initial weights, data order, augmentation and dropout.", 0)
    batch_size: int = argument("Examples per optimizer step, over all processes and accumulated micro-batches.", 128)
    gradient_accumulation_steps: int = argument("Micro-batches that an optimizer step is made of.", 1)
    eval_batch_size: int = argument("Examples per evaluation batch and process.", 256)
    num_epochs: float = argument("Passes over the training data.", 10.0)
    max_steps: int = argument("Optimizer steps; if positive, in place of --num_epochs.", 0)
    optimizer: str = argument("Any optimizer timm knows: adamw, lion, sgd, ...", "adamw")
    learning_rate: float = argument("Peak learning rate.", 1e-3)
    weight_decay: float = argument("Weight decay; norm scales, biases and zeroth biases have none.", 0.05)
    adam_beta1: float = argument("First momentum coefficient, of optimizers that have two.", 0.9)
    adam_beta2: float = argument("Second momentum coefficient, of optimizers that have two.", 0.999)
    lr_scheduler: str = argument("Any schedule transformers knows: cosine, linear, constant, ...", "cosine")
    warmup_steps: int = argument("Optimizer steps over which the learning rate rises from 0.", 0)
    warmup_epochs: float = argument("The same in epochs; taken where --warmup_steps is 0.", 0.0)
    max_grad_norm: float = argument("Clip the gradient to this norm; 0 does not clip.", 1.0)
    label_smoothing: float = argument("Label smoothing.", 0.0)
    mixed_precision: Literal["no", "fp16", "bf16"] | None = argument(
        "Autocast precision. Default: what accelerate is configured for."
    )
    gradient_checkpointing: bool = argument("Recompute activations in the backward pass to save memory.", False)
    num_workers: int = argument("Data-loading worker processes, per process.", 0)
    logging_steps: int = argument("Log the loss and the sparsity of training batches every so many steps.", 50)
    eval_epochs: float = argument("Evaluate and write a checkpoint every so many epochs, and at the end.", 1.0)
    keep_checkpoints: int = argument("Newest checkpoints to keep.", 1)
    report_to: str = argument("Tracker, as accelerate names it: tensorboard, wandb, ..., or none.", "none")
    push_to_hub: bool = argument("Push the model to the Hub, with its code, its card and its results.", False)
    hub_model_id: str | None = argument("Repository to push to, as in org/name.")
    hub_private: bool = argument("Make the repository private where it is created.", False)
    hub_revision: str | None = argument("Branch to push to, created where it is missing. Default: the main branch.")
    hub_strategy: Literal["end", "every_save"] = argument(
        "Push the model after the last step only, or also the best one so far whenever it is saved.", "end"
    )
    no_code: bool = argument("Save models without their code: loading them then needs sparsight.", False)
    command: str | None = field(default=None, init=False)

    def check(self) -> None:
        """
        Raises:
            UsageError: naming the argument, if a value is nonsense.
        """
        for name in ("batch_size", "gradient_accumulation_steps", "eval_batch_size", "logging_steps"):
            require(getattr(self, name) >= 1, name, f"{getattr(self, name)} is too few; give at least 1")
        require(self.keep_checkpoints >= 1, "keep_checkpoints", "keep at least 1, resuming needs it")
        require(self.learning_rate > 0, "learning_rate", f"{self.learning_rate} does not train; give a positive one")
        require(self.num_epochs > 0 or self.max_steps > 0, "num_epochs", "train for a positive number")
        require(self.eval_epochs > 0, "eval_epochs", f"{self.eval_epochs} is no interval; give a positive number")
        require(0 <= self.label_smoothing < 1, "label_smoothing", f"{self.label_smoothing} is not in [0, 1)")
        for name in ("weight_decay", "warmup_steps", "warmup_epochs", "max_grad_norm", "num_workers", "seed"):
            require(getattr(self, name) >= 0, name, f"{getattr(self, name)} is negative; give 0 or more")
        for name, known in (
            ("optimizer", list_optimizers()),
            ("lr_scheduler", [member.value for member in SchedulerType]),
        ):
            value = getattr(self, name)
            require(value in known, name, f"unknown {value!r}; {nearest(value, known)}")
        require(
            self.batch_size % self.gradient_accumulation_steps == 0,
            "batch_size",
            f"{self.batch_size} does not divide into --gradient_accumulation_steps {self.gradient_accumulation_steps}",
        )
        if self.push_to_hub or self.hub_model_id is not None:
            require(self.hub_model_id is not None, "hub_model_id", "missing; give the repository to push to, org/name")
            try:
                validate_repo_id(self.hub_model_id)
            except HFValidationError as error:
                raise UsageError(f"--hub_model_id: {' '.join(str(error).split())}") from error


def require(condition: bool, name: str, message: str) -> None:
    """
    Raises:
        UsageError: `--argument: message`, unless `condition` holds.
    """
    if not condition:
        raise UsageError(f"--{name}: {message}")


def single_line(error: Exception) -> str:
    """What an error of another library says, as part of a one-line message."""
    return " ".join(str(error).split())[:300]


class _Parser(HfArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def load_recipe(name: str) -> dict[str, Any]:
    """The fields of a recipe: a name from `training/recipes`, or the path of a YAML file.

    Raises:
        UsageError: if there is no such recipe, or the file is not a mapping.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"--recipe: no recipe {name!r}; {nearest(name, (p.stem for p in RECIPES.glob('*.yaml')))}")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UsageError(f"--recipe: {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise UsageError(f"--recipe: {path} must hold a mapping of argument names to values")
    return recipe


def parse_arguments(
    argument_classes: tuple[type, ...],
    args: list[str] | None,
    description: str,
    default_recipe: Callable[[dict[str, str]], str | None],
) -> tuple[Any, ...]:
    """Parse a command line: the dataclasses' defaults, under the recipe's fields, under what the command line says.

    Args:
        argument_classes: dataclasses; one of them has a dict field `model`, the fields of the model's config, which
            `--model.<field> <value>` overrides one by one.
        args: the command line, `None` for the process's own.
        description: what `--help` says at its head.
        default_recipe: the recipe where `--recipe` is not given, from what the command line says.

    Raises:
        UsageError: for an unknown argument, recipe or recipe field, or a value of the wrong type.
    """
    args = list(sys.argv[1:] if args is None else args)
    model_args, args = _split_model_args(args)
    parser = _Parser(argument_classes, description=description, allow_abbrev=False)
    given, _ = _given(parser, args)
    name = given.get("recipe", default_recipe(given))
    recipe = load_recipe(name) if name else {}
    model = recipe.pop("model", {})
    known = {field.name for argument_class in argument_classes for field in fields(argument_class)}
    for key in recipe.keys() - known:
        raise UsageError(f"--recipe: {name} has an unknown field {key!r}; {nearest(key, known)}")
    parser.set_defaults(recipe=name, **{key: _coerce(parser, name, key, value) for key, value in recipe.items()})
    namespace, unknown = parser.parse_known_args(args)
    if unknown:
        flag = unknown[0].split("=")[0]
        raise UsageError(f"{flag}: unknown argument; {nearest(flag, (f'--{key}' for key in known))}")
    values = vars(namespace)
    parsed = []
    for argument_class in argument_classes:
        own = {field.name: values[field.name] for field in fields(argument_class) if field.init}
        parsed.append(argument_class(**own))
        if "model" in {field.name for field in fields(argument_class)}:
            parsed[-1].model = {**model, **model_args}
    return tuple(parsed)


def command_line(script: str, args: list[str] | None) -> str:
    """The command that starts `script` with these arguments, `None` for the process's own."""
    args = sys.argv[1:] if args is None else args
    return shlex.join(["accelerate", "launch", f"training/{Path(script).name}", *args])


def _split_model_args(args: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Take `--model.<field> <value>` and `--model.<field>=<value>` out of a command line; values are read as YAML."""
    model, rest, remaining = {}, [], iter(args)
    for arg in remaining:
        if not arg.startswith("--model."):
            rest.append(arg)
            continue
        name, equals, value = arg.removeprefix("--model.").partition("=")
        if not equals and (value := next(remaining, None)) is None:
            raise UsageError(f"{arg}: expected a value, as in {arg} 64")
        model[name] = yaml.safe_load(value)
    return model, rest


def _given(parser: HfArgumentParser, args: list[str]) -> tuple[dict[str, str], list[str]]:
    """The arguments that the command line itself gives, without any default."""
    marker = object()
    defaults = {action.dest: marker for action in parser._actions if action.dest != "help"}
    namespace, unknown = parser.parse_known_args(args, namespace=type("Namespace", (), defaults)())
    return {key: value for key, value in vars(namespace).items() if value is not marker}, unknown


def _coerce(parser: HfArgumentParser, recipe: str, key: str, value: Any) -> Any:
    """A recipe's value, converted as the same value on the command line would be."""
    if value is None:
        return None
    values = [str(item) for item in (value if isinstance(value, list) else [value])]
    try:
        namespace, _ = parser.parse_known_args([f"--{key}", *values])
    except UsageError as error:
        raise UsageError(f"--recipe: {recipe}: {error}") from error
    return getattr(namespace, key)
