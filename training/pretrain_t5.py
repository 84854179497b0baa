# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Pretrain a T5 by span corruption, from scratch or from a checkpoint.

    accelerate launch training/pretrain_t5.py
    accelerate launch training/pretrain_t5.py --recipe sparse_t5_base_c4
    accelerate launch training/pretrain_t5.py --dataset FOLDER --model.d_model 256 --max_steps 10000

A recipe sets any of the arguments below, and the fields of the model's config under `model`. The command line goes
before the recipe; a field of the config is given as `--model.<field> <value>`, as in `--model.d_model 128`.

The output folder has `model/` (after the last step) and `best/` (at the lowest loss), each with its tokenizer and
ready for `from_pretrained`, `results.json`, and `checkpoint-<step>/` to resume from.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accelerate import Accelerator, PartialState
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

import sparsight  # noqa: F401  (registers the families)
from sparsight.training.arguments import (
    LoopArguments,
    argument,
    command_line,
    exit_on_usage_error,
    parse_arguments,
    require,
)
from sparsight.training.checkpoints import load_pretrained, make_config
from sparsight.training.language_modeling import evaluate_language_model, make_compute_loss
from sparsight.training.loop import make_accelerator
from sparsight.training.run_folder import check_run_folder
from sparsight.training.seeding import seed_generators
from sparsight.training.sparsity import restrict_layer_norms
from sparsight.training.text_data import TextArguments, Texts, load_texts
from sparsight.training.text_examples import load_tokenizer, make_eval_loader, make_tokenizer, make_train_loader
from sparsight.training.training_run import train_and_write


@dataclass
class ModelArguments:
    """What to train."""

    recipe: str | None = argument(
        "A recipe by name, or a YAML file. Default: <model_type>_stdlib on the embedded text, else none."
    )
    model_type: str = argument("Family to train from scratch.", "sparse_t5")
    model_name_or_path: str | None = argument("Start from this checkpoint and its tokenizer, in place of scratch.")
    restrict_layer_norms: bool = argument(
        "Keep the scale of the RMSNorm before each MLP at 1 or more, and the zeroth bias within it (algorithm 1).",
        False,
    )
    model: dict[str, Any] = field(default_factory=dict, init=False)


def default_recipe(given: dict[str, str]) -> str | None:
    """The recipe where the command line names none."""
    if given.get("dataset", "stdlib") == "stdlib" and "model_name_or_path" not in given:
        return f"{given.get('model_type', 'sparse_t5')}_stdlib"
    return None


def make_model(
    arguments: ModelArguments, text: TextArguments, texts: Texts
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A fresh model of a family or a checkpoint, and the tokenizer that goes with it.

    Raises:
        UsageError: if the family, a field of its config, the checkpoint or the tokenizer is not there, a value is
            nonsense, or model and tokenizer do not fit.
    """
    checkpoint = arguments.model_name_or_path
    if checkpoint is not None:
        model = load_pretrained(checkpoint, AutoModelForSeq2SeqLM, **arguments.model)
        named = text.tokenizer_name is not None
        tokenizer = make_tokenizer(text, texts) if named else load_tokenizer(checkpoint, "model_name_or_path")
    else:
        tokenizer = make_tokenizer(text, texts)
        token_ids = {
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "decoder_start_token_id": tokenizer.pad_token_id,
        }
        config = make_config(
            AutoModelForSeq2SeqLM, arguments.model_type, {"vocab_size": len(tokenizer), **arguments.model}, **token_ids
        )
        model = AutoModelForSeq2SeqLM.from_config(config)
    check_vocabulary(model, tokenizer)
    return model, tokenizer


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Raises:
        UsageError: if the tokenizer has tokens that the model has no embedding for.
    """
    size = model.config.vocab_size
    require(
        len(tokenizer) <= size,
        "tokenizer_name",
        f"the tokenizer has {len(tokenizer)} tokens, and the model {size}; give the one that belongs to the model, or "
        "a larger --model.vocab_size",
    )


def run(
    arguments: ModelArguments, text: TextArguments, loop: LoopArguments, accelerator: Accelerator | None = None
) -> dict[str, Any]:
    """Train as the arguments say, and write the output folder.

    Returns:
        What `results.json` holds.
    """
    loop.check()
    text.check()
    loop.output_dir = loop.output_dir or f"outputs/{arguments.recipe or arguments.model_type}"
    settings = {**asdict(arguments), **asdict(text), **asdict(loop)}
    resume_from = check_run_folder(Path(loop.output_dir), settings)
    texts = load_texts(text)
    accelerator = accelerator or make_accelerator(loop)
    seed_generators(loop.seed)
    model, tokenizer = make_model(arguments, text, texts)
    parts = [restrict_layer_norms(model)] if arguments.restrict_layer_norms else []
    train_loader = make_train_loader(texts, tokenizer, text, accelerator, loop)
    eval_loader = make_eval_loader(texts, tokenizer, text, accelerator, loop)
    return train_and_write(
        accelerator,
        model,
        tokenizer,
        train_loader,
        loop,
        settings,
        resume_from,
        compute_loss=make_compute_loss(loop),
        evaluate=lambda model: evaluate_language_model(accelerator, model, eval_loader),
        eval_split=texts.eval_split,
        metric="loss",
        higher_is_better=False,
        layer_shares=lambda results: [
            *results["encoder_nonzero_share_per_layer"],
            *results["decoder_nonzero_share_per_layer"],
        ],
        parts=parts,
        description=arguments.recipe or arguments.model_type,
    )


@exit_on_usage_error
def main(args: list[str] | None = None) -> None:
    arguments, text, loop = parse_arguments(
        (ModelArguments, TextArguments, LoopArguments), args, __doc__, default_recipe
    )
    loop.command = command_line(__file__, args)
    results = run(arguments, text, loop)
    PartialState().print(
        f"{loop.output_dir}: loss {results['loss']:.4f}, perplexity {results['perplexity']:.2f} on "
        f"{results['num_examples']} examples of {results['eval_split']}"
        + (f", non-zero share {results['nonzero_share']:.2%}" if results["nonzero_share"] is not None else "")
    )


if __name__ == "__main__":
    main()
