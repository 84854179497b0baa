# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The round trip through a Hub: the real client over real HTTP, against the Hub of `loopback_hub.py`."""

import json
import re

import pytest
import torch
import transformers.utils.hub
import yaml
from accelerate.state import AcceleratorState
from huggingface_hub import HfApi, constants, hf_hub_download
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification, ViTImageProcessorPil

import sparsight
from finetune_testing import JOBS, Finetunings
from helpers import ROOT, randomize, run_python, snapshot
from hub_testing import TOKEN, client_environment, publish, run_code, tensors, tiny_config, tiny_inputs
from loopback_hub import LoopbackHub
from script_testing import CODE
from sparsight.training import train_image_classification
from sparsight.training.engine import publishing
from sparsight.training.engine.loop_arguments import LoopArguments


STEPS = ["--max_steps", "2", "--max_eval_samples", "50"]


@pytest.fixture
def hub(tmp_path):
    (tmp_path / "blobs").mkdir()
    hub = LoopbackHub(tmp_path / "blobs", tokens={TOKEN: "org"})
    yield hub
    hub.stop()
    assert hub.unknown == []


@pytest.fixture
def client(hub, tmp_path, monkeypatch):
    """The client of this process, logged in and pointed at `hub`: its constants are read from the environment once."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    monkeypatch.setattr(publishing, "RETRY_AFTER", (0, 0, 0))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield hub
    transformers.utils.hub._hf_api = None
    AcceleratorState._reset_state(reset_partial_state=True)


def train(tiny_recipe, output_dir, *args: str) -> None:
    train_image_classification.main(["--recipe", tiny_recipe, "--output_dir", str(output_dir), *STEPS, *args])


def save_crate(folder) -> sparsight.CrateForImageClassification:
    model = randomize(sparsight.CrateForImageClassification(tiny_config("crate")))
    model.save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(folder)
    return model


# --- pushing ---------------------------------------------------------------------------------------------------------


def test_push_from_the_script_and_pull(hub, tmp_path, tiny_recipe):
    """In processes of their own: the script over a connection that breaks, then a stranger's without sparsight."""
    hub.drop("^PUT /lfs/")  # in the middle of an upload
    hub.drop("^POST .*/commit/")  # in the middle of the commit
    args = ["--recipe", tiny_recipe, "--output_dir", tmp_path / "run", *STEPS]
    args += ["--push_to_hub", "--hub_model_id", "org/tiny", "--hub_private"]
    environment = client_environment(hub, tmp_path / "home")
    done = run_python(ROOT / "training" / "train_image_classification.py", *args, **environment)
    assert done.returncode == 0, done.stderr[-3000:]

    repo = hub.repos["org/tiny"]
    assert repo.private
    assert len(repo.commits) == 2  # the empty one of the creation, and all of the model
    pushed = {name: hub.read("org/tiny", name) for name in repo.files("main")[1]}
    assert pushed == snapshot(tmp_path / "run" / "model")
    assert {"README.md", "config.json", "model.safetensors", "modeling_sparse_vit.py", "results.json"} <= set(pushed)
    assert not any(TOKEN.encode() in content for content in snapshot(tmp_path / "run").values())
    assert TOKEN not in done.stdout + done.stderr

    code = """
import torch, transformers
model = transformers.AutoModelForImageClassification.from_pretrained("org/tiny", trust_remote_code=True)
processor = transformers.AutoImageProcessor.from_pretrained("org/tiny")
torch.save(model.eval()(torch.ones(1, 3, 8, 8)).logits, sys.argv[1])
"""
    done = run_code(code, tmp_path / "logits.pt", **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    hub.stop()
    (tmp_path / "logits.pt").unlink()
    done = run_code(code, tmp_path / "logits.pt", **environment)  # from the cache
    assert done.returncode == 0, done.stderr[-3000:]
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run" / "model").eval()
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), model(torch.ones(1, 3, 8, 8)).logits)


@pytest.mark.parametrize("method", ["push_to_hub", "save_pretrained"])
def test_models_and_processors_push_themselves(client, tmp_path, method):
    model = save_crate(tmp_path / "model")
    if method == "push_to_hub":
        model.push_to_hub("org/crate", private=True)
    else:
        model.save_pretrained(tmp_path / "crate", push_to_hub=True, repo_id="org/crate")
    ViTImageProcessorPil().push_to_hub("org/crate")
    pushed = client.repos["org/crate"].files("main")[1]
    assert {path.name for path in (tmp_path / "model").iterdir()} <= set(pushed)
    assert client.read("org/crate", "modeling_crate.py") == (tmp_path / "model" / "modeling_crate.py").read_bytes()
    assert client.repos["org/crate"].private == (method == "push_to_hub")
    pulled = AutoModelForImageClassification.from_pretrained("org/crate")
    assert type(pulled) is sparsight.CrateForImageClassification
    inputs = tiny_inputs(model)
    torch.testing.assert_close(tensors(pulled.eval(), inputs), tensors(model, inputs), rtol=0, atol=0)


def test_every_save_to_a_branch(client, tmp_path, tiny_recipe):
    args = ["--push_to_hub", "--hub_model_id", "org/tiny", "--hub_revision", "v2", "--hub_strategy", "every_save"]
    train(tiny_recipe, tmp_path / "run", *args, "--no_code")
    repo = client.repos["org/tiny"]
    assert not repo.private
    assert repo.files("main")[1] == {}
    assert len(repo.commits) == 3  # creation, the best so far, the last
    best, last = list(repo.commits.values())[1:]
    assert not [name for name in {**best, **last} if name.endswith(".py")]
    assert "results.json" in last
    assert load_file(hf_hub_download("org/tiny", "model.safetensors", revision="v2"))


def test_the_finetuning_pushes_merged_models(client, tmp_path):
    runs = Finetunings(JOBS["image"], tmp_path)
    args = ["--push_to_hub", "--hub_model_id", "org/sparse", "--hub_strategy", "every_save", *CODE]
    runs("out", "--max_steps", "2", "--no_baseline", *args)
    assert list(client.repos) == ["org/sparse"]  # and not the vanilla model
    repo = client.repos["org/sparse"]
    _, best, last = repo.commits.values()
    assert {"README.md", "model.safetensors", "modeling_sparse_vit.py", "preprocessor_config.json"} <= best.keys()
    assert "results.json" not in best
    assert {name: client.read("org/sparse", name) for name in last} == snapshot(tmp_path / "out" / "merged")
    pulled = AutoModelForImageClassification.from_pretrained("org/sparse")
    assert type(pulled) is sparsight.SparseViTForImageClassification
    assert pulled.config.hidden_act == "jsrelu"


def test_a_lost_answer_makes_no_second_commit(client, tmp_path):
    folder = tmp_path / "model"
    save_crate(folder)
    client.drop("^POST .*/commit/", after=True)
    arguments = LoopArguments(push_to_hub=True, hub_model_id="org/crate")
    publishing.create_repository(arguments)
    publishing.push_folder(folder, arguments, "a model")
    assert len(client.repos["org/crate"].commits) == 2
    assert {name: client.read("org/crate", name) for name in snapshot(folder)} == snapshot(folder)


def test_a_connection_that_stays_broken_leaves_no_half_model(client, tmp_path):
    save_crate(tmp_path / "model")
    client.drop("^POST .*/commit/", times=10)
    arguments = LoopArguments(push_to_hub=True, hub_model_id="org/crate")
    publishing.create_repository(arguments)
    with pytest.raises(ValueError, match=r"^hub_model_id: cannot push to org/crate .*run this again"):
        publishing.push_folder(tmp_path / "model", arguments, "a model")
    publishing.push_folder(tmp_path / "model", arguments, "a model in between", required=False)
    assert client.repos["org/crate"].files("main")[1] == {}
    assert sum("/commit/" in request for request in client.requests) == 2 * (1 + len(publishing.RETRY_AFTER))


REFUSED = {
    "no name": (["--push_to_hub"], TOKEN, "--hub_model_id: missing; give the repository"),
    "not a name": (["--push_to_hub", "--hub_model_id", "org/a/b"], TOKEN, "--hub_model_id: Repo id must be"),
    "a wrong token": (["--push_to_hub", "--hub_model_id", "org/tiny"], "hf_wrong", "cannot push to org/tiny"),
    "no token": (["--push_to_hub", "--hub_model_id", "org/tiny"], "", "log in with `hf auth login`"),
    "somebody else's": (["--push_to_hub", "--hub_model_id", "other/tiny"], TOKEN, "cannot push to other/tiny"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_comes_before_the_training(client, case, tmp_path, tiny_recipe, monkeypatch, capsys):
    args, token, message = REFUSED[case]
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(SystemExit) as exit_info:
        train(tiny_recipe, tmp_path / "run", *args)
    assert exit_info.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert not token or token not in lines[0]
    assert not (tmp_path / "run").exists()
    assert client.repos == {}


# --- pulling ---------------------------------------------------------------------------------------------------------


def test_by_revision(client, tmp_path):
    for branch in ("main", "v2"):
        model = save_crate(tmp_path / branch)
        with torch.no_grad():
            model.classifier.bias.fill_(float(branch == "v2"))
        model.save_pretrained(tmp_path / branch)
        publish(client, "org/crate", tmp_path / branch, branch=branch)
    sha = client.repos["org/crate"].branches["v2"]
    for revision, bias in (("main", 0.0), ("v2", 1.0), (sha, 1.0)):
        pulled = AutoModelForImageClassification.from_pretrained("org/crate", revision=revision)
        assert (pulled.classifier.bias == bias).all()
    with pytest.raises(OSError, match="v3 is not a valid git identifier"):
        AutoModelForImageClassification.from_pretrained("org/crate", revision="v3")


@pytest.mark.parametrize(("name", "token"), [("org/crate", ""), ("org/crate", "hf_wrong"), ("org/nothing", TOKEN)])
def test_what_is_not_there_or_not_for_everybody(client, tmp_path, monkeypatch, name, token):
    save_crate(tmp_path / "model")
    publish(client, "org/crate", tmp_path / "model", private=True)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(OSError) as error:  # noqa: PT011  (the message is checked below)
        AutoModelForImageClassification.from_pretrained(name)
    assert re.search("not a valid model identifier|Invalid credentials|401 Client Error", str(error.value))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert AutoModelForImageClassification.from_pretrained("org/crate")


# --- the loopback Hub itself -----------------------------------------------------------------------------------------


def test_the_loopback_hub_says_what_it_does_not_know(client):
    api = HfApi()
    assert api.whoami()["name"] == "org"
    with pytest.raises(Exception, match="501"):
        api.list_repo_commits("org/crate")
    assert client.unknown == ["GET /api/models/org/crate/commits/main"]
    client.unknown.clear()


def test_ranges_and_etags(client, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "weights.safetensors").write_bytes(bytes(range(256)))
    publish(client, "org/files", tmp_path / "files")
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import get_session

    url = hf_hub_url("org/files", "weights.safetensors", endpoint=client.url)
    metadata = get_hf_file_metadata(url)
    blob = client.repos["org/files"].files("main")[1]["weights.safetensors"]
    assert (metadata.etag, metadata.size) == (blob.oid, 256)
    assert metadata.commit_hash == client.repos["org/files"].branches["main"]
    part = get_session().get(url, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, bytes(range(10, 20)))
    assert [entry.path for entry in HfApi().list_repo_tree("org/files")] == ["weights.safetensors"]


def test_the_pushed_card_is_the_models(client, tmp_path, tiny_recipe):
    train(tiny_recipe, tmp_path / "run", "--push_to_hub", "--hub_model_id", "org/tiny")
    card = client.read("org/tiny", "README.md").decode()
    metadata = yaml.safe_load(card.split("---")[1])
    results = json.loads(client.read("org/tiny", "results.json"))
    values = [metric["value"] for metric in metadata["model-index"][0]["results"][0]["metrics"]]
    assert results["accuracy"] in values
    assert '"org/tiny", trust_remote_code=True' in card
    assert "--push_to_hub --hub_model_id org/tiny" in card
