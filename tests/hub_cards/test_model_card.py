# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import ast
import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from transformers import ViTConfig, ViTForImageClassification

from helpers import TINY_VIT, snapshot
from hub_testing import FAMILIES, tiny_config, tiny_models
from sparsight import CrateForImageClassification, SparseViTForImageClassification
from sparsight.hub_cards import CardError, make_model_card, write_model_card
from sparsight.hub_cards.__main__ import main
from sparsight.hub_cards.model_card import TEMPLATES
from sparsight.hub_cards.results import layer_shares


# https://huggingface.co/docs/hub/model-cards and the template of huggingface_hub.
DOCUMENTED = {
    "base_model": (str,),
    "base_model_relation": (str,),
    "datasets": (list,),
    "library_name": (str,),
    "license": (str,),
    "metrics": (list,),
    "model-index": (list,),
    "pipeline_tag": (str,),
    "tags": (list,),
}
ARGUMENTS = {
    "recipe": "tiny",
    "model_name_or_path": None,
    "dataset": "ILSVRC/imagenet-1k",
    "learning_rate": 0.00321,
    "weight_decay": 0.5,
    "shown_on_card": ["recipe", "learning_rate"],
    "command": "accelerate launch training/train_image_classification.py --recipe tiny",
    "hub_model_id": "org/tiny",
    "model": {},
}
RESULTS = {
    "accuracy": 0.8712,
    "accuracy_top5": 0.9934,
    "loss": 0.4321,
    "num_examples": 1234,
    "nonzero_share": 0.2718,
    "nonzero_share_per_layer": [0.31, 0.2336],
    "derivative_nonzero_share": None,
    "training_nonzero_share": float("nan"),
    "eval_split": "validation",
    "best": {"step": 3, "accuracy": 0.88},
    "num_steps": 77,
    "num_parameters": 54321,
    "seed": 5,
}


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    """A checkpoint of each family, of the model that its training script trains."""
    models = tiny_models(request.param)
    heads = ("AutoModelForImageClassification", "AutoModelForSeq2SeqLM")
    next(models[name] for name in heads if name in models).save_pretrained(tmp_path)
    return tmp_path


def describe(folder, arguments=ARGUMENTS, results=RESULTS) -> str:
    for name, values in (("arguments", arguments), ("results", results)):
        if values is not None:
            (folder / f"{name}.json").write_text(json.dumps(values))
    return write_model_card(folder).read_text(encoding="utf-8")


def metadata(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def check_text(card: str) -> None:
    """No empty section, no broken table, no code that does not parse, nothing left of the template."""
    text = card.split("---\n", 2)[2]
    assert not re.search(r"[{%]%|{{|}}|None|\bnan\b|\n\n\n", text)
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        assert section.partition("\n")[2].strip(), section
    for table in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        rows = table.splitlines()
        assert len(rows) > 2
        assert len({row.count("|") for row in rows}) == 1
        assert re.fullmatch(r"\| --- \|(?: ---: \|)+", rows[1])
        assert f"\n\n{table}\n" in text
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        ast.parse(code)
    assert text.count("```") % 2 == 0


def test_every_family_has_its_template():
    assert {f"{family}.md" for family in FAMILIES} <= {path.name for path in TEMPLATES.iterdir()}


def test_the_hub_understands_the_metadata(folder):
    values = metadata(describe(folder))
    for name, value in values.items():
        assert isinstance(value, DOCUMENTED[name]), name
    assert values["datasets"] == ["ILSVRC/imagenet-1k"]
    assert (values["library_name"], values["license"]) == ("transformers", "apache-2.0")
    (model,) = values["model-index"]
    (result,) = model["results"]
    assert model["name"] == "tiny"
    assert result["dataset"] == {
        "name": "ILSVRC/imagenet-1k", "type": "ILSVRC/imagenet-1k", "split": "validation",
    }  # fmt: skip
    assert [metric["value"] for metric in result["metrics"]] == [0.8712, 0.9934, 0.4321, 0.2718]
    assert values.get("pipeline_tag") in (None, result["task"]["type"])


def test_every_number_is_one_of_the_results(folder):
    card = describe(folder)
    check_text(card)
    results = card.split("## Results")[1].split("## Limits")[0]
    assert set(re.findall(r"\d[\d.,]+%?", results)) == {
        "1,234", "87.12%", "99.34%", "0.4321", "27.18%", "31.00%", "23.36%",
    }  # fmt: skip
    assert "54,321 parameters" in card
    assert ARGUMENTS["command"] in card
    rows = ["num_steps | 77", "recipe | tiny", "learning_rate | 0.00321", "seed | 5"]
    assert "\n| --- | ---: |\n" + "".join(f"| {row} |\n" for row in rows) + "\n" in card
    assert "- The share of non-zero activations is a count." in card
    assert '"org/tiny", trust_remote_code=True' in card
    assert "sparsity.png" not in card


def test_settings_that_counted(tmp_path):
    SparseViTForImageClassification(tiny_config("sparse_vit")).save_pretrained(tmp_path)
    settings = {
        "num_epochs": 3.0,
        "max_steps": 0,
        "restrict_layer_norms": False,
        "label_smoothing": 0.0,
        "lora_rank": None,
    }
    settings["shown_on_card"] = [*settings, "unknown"]
    card = describe(tmp_path, ARGUMENTS | settings, RESULTS | {"seed": 0})
    assert "| num_epochs | 3.0 |" in card
    assert "| label_smoothing | 0.0 |" in card
    assert "| seed | 0 |" in card
    assert "restrict_layer_norms" not in card
    assert "lora_rank" not in card
    assert "unknown" not in card
    assert "num_epochs" not in describe(tmp_path, ARGUMENTS | settings | {"max_steps": 77})


def test_what_nobody_measured_is_left_out(folder):
    card = describe(folder, arguments=None, results=None)
    check_text(card)
    assert set(metadata(card)) <= {"library_name", "license", "pipeline_tag", "tags"}
    assert "non-zero" not in card
    assert "## Results" not in card
    assert "## How it was trained" not in card
    assert "No evaluation came with this checkpoint." in card
    card = describe(folder, arguments=None)
    check_text(card)
    assert "model-index" not in metadata(card)  # the Hub takes no result without a data set
    assert "87.12%" in card
    (folder / "sparsity.png").touch()
    card = describe(folder, results={"accuracy": 0.5, "eval_split": "test", "nonzero_share_per_layer": [0.5]})
    check_text(card)
    assert "](sparsity.png)" in card


def test_layers_of_encoder_and_decoder_stand_apart(folder):
    shares = {"encoder_nonzero_share_per_layer": [0.5, 0.25], "decoder_nonzero_share_per_layer": [0.125]}
    card = describe(folder, results={"loss": 3.5, "eval_split": "test", **shares})
    check_text(card)
    assert re.findall(r"^\| (\w+ \d) \|", card, flags=re.MULTILINE) == ["encoder 1", "encoder 2", "decoder 1"]
    for row in ("| encoder 1 | 50.00% |", "| encoder 2 | 25.00% |", "| decoder 1 | 12.50% |"):
        assert row in card


def test_sparsity_is_a_word_only_where_it_was_measured(folder):
    (folder / "sparsity.png").touch()
    results = {"accuracy": 0.5, "num_examples": 10, "nonzero_share": None, "nonzero_share_per_layer": []}
    card = describe(folder, results=results | {"eval_split": "test"})
    check_text(card)
    assert "activation_sparsity" not in metadata(card)["metrics"]
    for word in ("non-zero activations", "sparsity.png"):
        assert word not in card
        assert word in describe(folder, results=results | {"nonzero_share": 0.25})


def test_tags_say_what_a_family_is_made_for(folder):
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    own = "white-box" if model_type == "crate" else "activation-sparsity"
    assert metadata(describe(folder))["tags"] == ["sparsight", model_type, own]


def test_tags_of_other_models(tmp_path):
    ViTForImageClassification(ViTConfig(**TINY_VIT)).save_pretrained(tmp_path)
    card = describe(tmp_path)
    check_text(card)
    assert metadata(card)["tags"] == ["sparsight", "vit"]


def test_without_a_list_of_settings_the_card_shows_the_command_alone(folder):
    """As for models that earlier releases wrote."""
    card = describe(folder, {name: value for name, value in ARGUMENTS.items() if name != "shown_on_card"})
    check_text(card)
    assert ARGUMENTS["command"] in card
    assert "| setting |" not in card
    assert "0.00321" not in card


def test_a_card_that_cannot_be_written_leaves_the_old_one(folder, monkeypatch):
    describe(folder)
    before = snapshot(folder)

    def full_disk(self, path):
        Path(path).write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(ModelCard, "save", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_model_card(folder)
    assert snapshot(folder) == before


def test_layer_shares_reads_any_stack():
    shares = {
        "nonzero_share_per_layer": [0.5, 0.25],
        "derivative_nonzero_share_per_layer": [0.1, 0.1],
        "text_decoder_nonzero_share_per_layer": [0.75],
        "text_decoder_derivative_nonzero_share_per_layer": [0.1],
        "encoder_nonzero_share_per_layer": None,
        "nonzero_share": 0.5,
    }
    assert list(layer_shares(shares).items()) == [("layer 1", 0.5), ("layer 2", 0.25), ("text decoder 1", 0.75)]
    assert layer_shares({"loss": 1.0}) == {}


def test_without_code_there_is_one_way_to_load(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (folder / "config.json").write_text(json.dumps(config))
    card = describe(folder)
    check_text(card)
    assert "trust_remote_code" not in card


def test_a_finetuned_model_beside_what_it_was(tmp_path):
    SparseViTForImageClassification(tiny_config("sparse_vit")).save_pretrained(tmp_path)
    arguments = ARGUMENTS | {"model_name_or_path": "google/vit-base-patch16-224", "hub_model_id": None}
    shares = {"before": 0.4, "lora": 0.41, "method": 0.12, "recipe": 0.12}
    results = {
        name: {"accuracy": 0.9, "num_examples": 10, "nonzero_share": share, "nonzero_share_per_layer": [share] * 2}
        for name, share in shares.items()
    }
    card = describe(tmp_path, arguments, results | {"eval_split": "validation", "seed": 0})
    check_text(card)
    values = metadata(card)
    assert (values["base_model"], values["base_model_relation"]) == ("google/vit-base-patch16-224", "finetune")
    assert "license" not in values
    assert [metric["value"] for metric in values["model-index"][0]["results"][0]["metrics"]] == [0.9, 0.12]
    assert "|  | before finetuning | plain LoRA | this model |" in card
    assert "| layer 2 | 40.00% | 41.00% | 12.00% |" in card
    del results["method"]  # as earlier releases wrote it
    assert describe(tmp_path, arguments, results | {"eval_split": "validation", "seed": 0}) == card


@pytest.mark.parametrize("place", ["./images", "/data/images", "images", "digits", "data/images"])
def test_folders_are_no_data_sets_of_the_hub(tmp_path, place, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "images").mkdir(parents=True)
    SparseViTForImageClassification(tiny_config("sparse_vit")).save_pretrained(tmp_path)
    card = describe(tmp_path, ARGUMENTS | {"dataset": place, "model_name_or_path": str(tmp_path)})
    assert not {"datasets", "base_model"} & set(metadata(card))
    assert "/data" not in card
    assert str(tmp_path) not in card


def test_adapter(tmp_path):
    model = SparseViTForImageClassification(tiny_config("sparse_vit"))
    get_peft_model(model, LoraConfig(r=2, target_modules=["fc1"])).save_pretrained(tmp_path)
    fields = {"hidden_act": "jsrelu", "zeroth_bias": True}
    card = describe(tmp_path, ARGUMENTS | {"model_name_or_path": "google/vit", "model": fields})
    check_text(card)
    values = metadata(card)
    assert (values["library_name"], values["base_model_relation"]) == ("peft", "adapter")
    assert values["tags"] == ["sparsight", "sparse_vit", "activation-sparsity"]
    assert "finetuned for activation sparsity" in card
    assert "import_allowlist=[\"sparsight\"], hidden_act='jsrelu', zeroth_bias=True)" in card
    assert "[More Information Needed]" not in card


def test_adapter_of_a_family_that_is_not_made_for_sparsity(tmp_path):
    model = CrateForImageClassification(tiny_config("crate"))
    get_peft_model(model, LoraConfig(r=2, target_modules=["o_proj"])).save_pretrained(tmp_path)
    card = describe(tmp_path, results=None)
    check_text(card)
    assert metadata(card)["tags"] == ["sparsight", "crate", "white-box"]
    assert "sparsity" not in card


def test_command_rewrites_the_card_and_nothing_else(folder, capsys):
    card = describe(folder)
    before = snapshot(folder)
    (folder / "README.md").write_text("an old card")
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "README.md")
    assert snapshot(folder) == before
    assert str(make_model_card(folder)) == card


BAD = {
    "no folder": (None, "has no config.json; give a folder"),
    "not JSON": ("{", "is not JSON"),
    "not an object": ("[1]", "must hold an object, and holds a list"),
    "unknown type": ('{"model_type": "sparse_vti"}', "is of no known model type ('sparse_vti')"),
    "nonsense": ('{"model_type": "sparse_vit", "activation_mix": 7}', "`activation_mix` must lie in [0, 1]"),
}


def test_settings_to_show_must_be_names(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "sparse_vit"}')
    for shown in ("recipe", [["recipe"]]):
        (tmp_path / "arguments.json").write_text(json.dumps({"shown_on_card": shown}))
        assert main([str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"arguments.json: shown_on_card must be a list of names of its other keys, and is {shown!r}" in line
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, tmp_path, capsys):
    text, message = BAD[case]
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert main([str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m sparsight.hub_cards: error: ")
    assert message in line
    assert not (tmp_path / "README.md").exists()


def test_an_adapter_of_another_package(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"auto_mapping": {"base_model_class": "BertModel"}}')
    with pytest.raises(CardError, match="is an adapter of BertModel, which is no model of sparsight"):
        write_model_card(tmp_path)
