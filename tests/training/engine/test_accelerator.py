# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What is asked of accelerate is done, or refused: never left out without a word."""

import pytest
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers

from sparsight.training.engine import optimization
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.optimization import make_accelerator


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_an_installed_tracker_is_used(tmp_path):
    accelerator = make_accelerator(LoopArguments(report_to="tensorboard", output_dir=str(tmp_path)))
    assert [str(tracker) for tracker in accelerator.log_with] == ["tensorboard"]


def test_a_tracker_that_is_not_installed_is_refused(tmp_path, monkeypatch):
    others = [tracker for tracker in get_available_trackers() if str(tracker) != "tensorboard"]
    monkeypatch.setattr(optimization, "get_available_trackers", lambda: others)
    with pytest.raises(ValueError, match=r"^report_to: tensorboard is not installed; `pip install tensorboard`"):
        make_accelerator(LoopArguments(report_to="tensorboard", output_dir=str(tmp_path)))


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^report_to: unknown 'tensorbord'; did you mean tensorboard"):
        make_accelerator(LoopArguments(report_to="tensorbord", output_dir=str(tmp_path)))


def test_float16_on_a_cpu_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(ValueError, match=r"^mixed_precision: .*; give bf16 or no"):
        make_accelerator(LoopArguments(mixed_precision="fp16", output_dir=str(tmp_path)))
    # Also where accelerate's own configuration asks for it.
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(ValueError, match=r"^mixed_precision: .*; give bf16 or no"):
        make_accelerator(LoopArguments(output_dir=str(tmp_path)))


def test_bfloat16_on_a_cpu_is_computed(tmp_path):
    assert make_accelerator(LoopArguments(mixed_precision="bf16", output_dir=str(tmp_path))).mixed_precision == "bf16"
