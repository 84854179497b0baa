# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments of the scripts: each dataclass field says all that holds for it, and a parser that reads recipes too."""

import argparse
import copy
import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser

from sparsight.configuration.messages import nearest, single_line
from sparsight.training.command_line.errors import UsageError
from sparsight.training.command_line.recipes import load_recipe


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What holds for an argument, beside its type and its `--help`.

    Attributes:
        at_least, at_most, above, below: bounds of the number, or of each number of a list.
        known: the names it may have, where they are not known before the libraries that bring them are loaded.
        free_on_resume: a resumed run may change it: it alters where the run ends or what is shown, not what a step
            does.
        local: it is about this machine's folders, and goes with no model to others.
        on_card: a model card shows it.
    """

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    known: Callable[[], Iterable[str]] | None = None
    free_on_resume: bool = False
    local: bool = False
    on_card: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise a ValueError that begins with `name`, if `value` is out of bounds or unknown."""
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, (int, float)) and not isinstance(number, bool) and not self._admits(number):
                raise ValueError(f"{name}: {number} is out of range; give {self._range()}")
        if self.known is not None and value is not None and value not in (known := list(self.known())):
            raise ValueError(f"{name}: unknown {value!r}; {nearest(value, known)}")

    def _admits(self, number: float) -> bool:
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def _range(self) -> str:
        bounds = {"at least": self.at_least, "more than": self.above, "at most": self.at_most, "less than": self.below}
        return " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)


def argument(text: str, default: Any = None, **rules: Any) -> Any:
    """A dataclass field with its `--help` text and its [`Rules`]."""
    metadata = {"help": text, "rules": Rules(**rules)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


class Settings:
    """All arguments of a run: the fields of several dataclasses, by their names.

    Args:
        parts: the dataclasses. What they hold is read anew at each use.
    """

    def __init__(self, *parts: Any):
        self.parts = parts

    def _fields(self) -> Iterator[tuple[Any, dataclasses.Field, Rules]]:
        for part in self.parts:
            for own in fields(part):
                yield part, own, own.metadata.get("rules", Rules())

    def values(self) -> dict[str, Any]:
        """The value of each argument."""
        return {own.name: getattr(part, own.name) for part, own, _ in self._fields()}

    def names(self, rule: str) -> list[str]:
        """The arguments for which the switch `rule` of [`Rules`] is on."""
        return [own.name for _, own, rules in self._fields() if getattr(rules, rule)]

    def check(self) -> None:
        """Raise a ValueError that begins with the argument's name, if one is out of bounds or contradicts another."""
        for part, own, rules in self._fields():
            rules.check(own.name, getattr(part, own.name))
        for part in self.parts:
            if hasattr(part, "check"):
                part.check()


class _Parser(HfArgumentParser):
    @staticmethod
    def _parse_dataclass_field(parser: HfArgumentParser, field: dataclasses.Field) -> None:
        # argparse takes the help, and none of the rules.
        field = copy.copy(field)
        field.metadata = {"help": field.metadata["help"].replace("%", "%%")}
        HfArgumentParser._parse_dataclass_field(parser, field)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')} (see --help)")

    def given(self, args: list[str]) -> dict[str, Any]:
        """What a command line itself says, converted, without any default.

        Raises:
            UsageError: for an unknown argument or a value of the wrong type.
        """
        marker = object()
        names = {action.dest for action in self._actions if action.default is not argparse.SUPPRESS}
        namespace, unknown = self.parse_known_args(args, type("Namespace", (), dict.fromkeys(names, marker))())
        if unknown:
            flag = unknown[0].split("=")[0]
            raise UsageError(f"{flag}: unknown argument; {nearest(flag, (f'--{name}' for name in names))}")
        return {name: value for name, value in vars(namespace).items() if value is not marker}


def parse_arguments(
    argument_classes: tuple[type, ...],
    args: list[str],
    description: str,
    default_recipe: Callable[[dict[str, Any]], str | None],
) -> tuple[Any, ...]:
    """Parse a command line: the dataclasses' defaults, under the recipe's fields, under what the command line says.

    Args:
        argument_classes: dataclasses; one of them may have a dict field `model`, the fields of the model's config,
            which `--model.<field> <value>` overrides one by one.
        args: the command line.
        description: what `--help` says at its head.
        default_recipe: the recipe where `--recipe` is not given, from what the command line says.

    Raises:
        UsageError: for an unknown argument, recipe or recipe field, or a value of the wrong type.
    """
    model_args, args = _split_model_args(args)
    parser = _Parser(argument_classes, description=description, allow_abbrev=False)
    given = parser.given(args)
    recipe = given.get("recipe", default_recipe(given))
    return _fill(parser, argument_classes, recipe, {**given, "model": model_args})


def arguments_from_recipe(argument_classes: tuple[type, ...], recipe: str, **given: Any) -> tuple[Any, ...]:
    """The dataclasses' defaults, under the fields of a recipe, under what is `given`.

    Raises:
        UsageError: for an unknown recipe or recipe field, or a value of the wrong type.
    """
    return _fill(_Parser(argument_classes, allow_abbrev=False), argument_classes, recipe, given)


def _fill(
    parser: _Parser, argument_classes: tuple[type, ...], recipe: str | None, given: dict[str, Any]
) -> tuple[Any, ...]:
    read = load_recipe(recipe) if recipe else {}
    known = {field.name for argument_class in argument_classes for field in fields(argument_class)}
    for key in read.keys() - known:
        raise UsageError(f"--recipe: {recipe} has an unknown field {key!r}; {nearest(key, known)}")
    model = {**(read.pop("model", None) or {}), **given.get("model", {})}
    values = {key: _convert(parser, recipe, key, value) for key, value in read.items()}
    values |= {**given, "recipe": recipe}
    parsed = []
    for argument_class in argument_classes:
        own = {field.name for field in fields(argument_class) if field.init}
        parsed.append(argument_class(**{name: value for name, value in values.items() if name in own}))
        if hasattr(parsed[-1], "model"):
            parsed[-1].model = model
    return tuple(parsed)


def _convert(parser: _Parser, recipe: str, key: str, value: Any) -> Any:
    """A recipe's value, converted as the same value on the command line would be."""
    if value is None:
        return None
    values = [str(item) for item in (value if isinstance(value, list) else [value])]
    try:
        return parser.given([f"--{key}", *values])[key]
    except UsageError as error:
        raise UsageError(f"--recipe: {recipe}: {error}") from error


def peek(args: list[str], *names: str) -> dict[str, str | None]:
    """What a command line, else its recipe, says of some arguments, before it is known which others there are.

    Raises:
        UsageError: if there is no such recipe.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("recipe", *names):
        parser.add_argument(f"--{name}", nargs="?")
    given = vars(parser.parse_known_args(args)[0])
    recipe = load_recipe(given["recipe"]) if given["recipe"] else {}
    return {name: given[name] if given[name] is not None else recipe.get(name) for name in names}


def command_line(script: str, args: list[str]) -> str:
    """The command that starts `script` with these arguments."""
    return shlex.join(["accelerate", "launch", f"training/{Path(script).name}", *args])


def _split_model_args(args: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Take `--model.<field> <value>` and `--model.<field>=<value>` out of a command line; values are read as YAML."""
    model, rest, remaining = {}, [], iter(args)
    for arg in remaining:
        if not arg.startswith("--model."):
            rest.append(arg)
            continue
        name, equals, value = arg.removeprefix("--model.").partition("=")
        if not equals and (value := next(remaining, None)) is None:
            raise UsageError(f"{arg}: expected a value, as in {arg} 64")
        try:
            model[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--model.{name}: {value!r} is no value of YAML ({single_line(error)})") from error
    return model, rest
