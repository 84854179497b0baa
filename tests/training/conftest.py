# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
from accelerate import Accelerator
from transformers import T5Tokenizer

from script_testing import SCRIPTS, TINY_TEXTS, Runs, reset_accelerator
from sparsight.training.data.images import ImageSource, LabelledImages, load_images
from sparsight.training.data.packing import TextArguments
from sparsight.training.data.texts import Texts, load_texts
from sparsight.training.data.tokenization import train_tokenizer_on_rows


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    reset_accelerator()


@pytest.fixture(params=SCRIPTS)
def runs(request, tmp_path) -> Runs:
    """Runs of a script in `tmp_path`, of each script in turn where a test does not choose."""
    return Runs(SCRIPTS[request.param], tmp_path)


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


@pytest.fixture(scope="session")
def digits() -> LabelledImages:
    """A few of the embedded digits."""
    return load_images(ImageSource(max_train_samples=40, max_eval_samples=30))


@pytest.fixture(scope="session")
def texts() -> Texts:
    """A few of the embedded texts."""
    return load_texts(TextArguments(**TINY_TEXTS))


@pytest.fixture(scope="session")
def tokenizer(texts) -> T5Tokenizer:
    """Trained on them."""
    return train_tokenizer_on_rows(texts.train, TINY_TEXTS["vocab_size"])
