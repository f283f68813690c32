"""Folders that would run code if nothing stood in the way; the code here only writes a file."""

import json
import pickle
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from old_transformers import needs
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gattn.errors import ModelError
from gattn.models.load import trusting
from gattn.models.load.loading import load_model


class Payload:
    """What a pickle runs as it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def folder(tiny, tokenizer, tmp_path):
    place = tmp_path / "model"
    tiny("bert").save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def ran(tmp_path):
    """What the code writes that must not run."""
    return tmp_path / "ran"


@pytest.fixture(autouse=True)
def first_wall(monkeypatch):
    """Take the walls of transformers and torch away: what is not safetensors is unpickled."""
    from transformers import modeling_utils

    def load(path, *args, **kwargs):
        return pickle.loads(Path(path).read_bytes())

    def opened(path, *args, **kwargs):
        reads = safe_open if str(path).endswith(".safetensors") else load
        return reads(path, *args, **kwargs)

    monkeypatch.setattr(torch, "load", load)
    monkeypatch.setattr(modeling_utils, "safe_open", opened)


def change(folder, name="config.json", **settings):
    path = folder / name
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | settings))


def shard(folder, name):
    """Cut the weights into two files, the second of which has a name of the test's choice."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    save_file({n: weights[n] for n in names[1:]}, folder / "one.safetensors", {"format": "pt"})
    weight_map = dict.fromkeys(names[1:], "one.safetensors") | {names[0]: name}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {names[0]: weights[names[0]]}


def test_the_payload_works(ran):
    pickle.loads(pickle.dumps(Payload(ran)))
    assert ran.exists()


def test_a_sharded_model_loads(folder):
    save_file(shard(folder, "two.safetensors"), folder / "two.safetensors", {"format": "pt"})
    assert load_model(folder)


@pytest.mark.parametrize("name", ["two.bin", "two.pt", "two.pth", "two.safetensors.bin", "two"])
def test_shards_that_would_be_unpickled_are_refused(folder, ran, name):
    shard(folder, name)
    (folder / name).write_bytes(pickle.dumps(Payload(ran)))
    with pytest.raises(ModelError, match="would be unpickled"):
        load_model(folder)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["../two.safetensors", "/two.safetensors", "a\\two.safetensors"])
def test_shards_outside_of_the_folder_are_refused(folder, name):
    shard(folder, name)
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(folder)


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}, {"a": None}])
def test_an_index_that_is_none_is_refused(folder, weight_map):
    shard(folder, "two.bin")
    change(folder, "model.safetensors.index.json", weight_map=weight_map)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        load_model(folder)


def test_weights_that_the_configuration_names_are_not_unpickled(folder, ran):
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Payload(ran)))
    change(folder, transformers_weights="adapter_model.bin")
    with pytest.raises(ModelError, match="would be unpickled"):
        load_model(folder)
    assert not ran.exists()


def test_an_index_that_the_configuration_names_is_read(folder, ran):
    shard(folder, "two.bin")
    (folder / "two.bin").write_bytes(pickle.dumps(Payload(ran)))
    (folder / "model.safetensors.index.json").rename(folder / "odd.safetensors.index.json")
    change(folder, transformers_weights="odd.safetensors.index.json")
    with pytest.raises(ModelError, match="would be unpickled"):
        load_model(folder)
    assert not ran.exists()


@pytest.fixture
def kernels(monkeypatch, ran):
    """Take the package kernels for installed; fetching one writes a file."""
    from transformers import modeling_utils
    from transformers.integrations import hub_kernels

    def fetch(*args, **kwargs):
        ran.touch()
        raise ImportError("fetched")

    monkeypatch.setattr(trusting, "_fetches_kernels", lambda: True)
    for module in (hub_kernels, modeling_utils):
        monkeypatch.setattr(module, "is_kernels_available", lambda: True)
    for name in ("load_and_register_attn_kernel", "get_kernel"):
        monkeypatch.setattr(hub_kernels, name, fetch)


@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": "kernels-community/flash-attn3"},
        {"_attn_implementation": "kernels-community/flash-attn3"},
        {"_attn_implementation_internal": "someone/mine@main:run"},
        {"attn_implementation": "paged|someone/mine"},
        {"attn_implementation": {"": "sdpa", "text_config": "someone/mine"}},
        {"text_config": {"attn_implementation": "someone/mine"}},
        {"blocks": [{"experts_implementation": "someone/mine"}]},
        {"attn_implementation": "flash_attention_2"},
        {"experts_implementation": "sonicmoe"},
        {"quantization_config": {"quant_method": "mxfp4"}},
        {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
    ],
)
def test_kernels_that_would_be_downloaded_and_run_are_refused(folder, ran, kernels, asked):
    change(folder, **asked)
    with pytest.raises(ModelError, match="would be downloaded and run"):
        load_model(folder)
    assert not ran.exists()


def test_kernels_by_name_are_refused_even_where_they_cannot_be_fetched(folder):
    change(folder, attn_implementation="kernels-community/flash-attn3")
    with pytest.raises(ModelError, match="would be downloaded and run"):
        load_model(folder)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_implementations_of_torch_load(folder, name, kernels):
    change(folder, attn_implementation=name)
    assert load_model(folder)[0].config._attn_implementation == name


def test_adapters_are_refused(folder, ran):
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Payload(ran)))
    change(folder, "adapter_config.json", base_model_name_or_path="someone/base", peft_type="LORA")
    with pytest.raises(ModelError, match="adapter"):
        load_model(folder)
    assert not ran.exists()


def test_checkpoints_of_other_libraries_are_refused(folder):
    change(folder, model_args={"checkpoint_path": "weights.pth"})
    with pytest.raises(ModelError, match="would be unpickled"):
        load_model(folder)


REFUSES = needs("5.18", "loads no configuration that names what is no text as a model")


@pytest.mark.parametrize(
    "kind",
    [
        *("RagRetriever", "AutoTokenizer", "pipeline", "logging"),
        *(pytest.param(kind, marks=REFUSES, id=str(kind)) for kind in (7, None)),
    ],
)
def test_only_models_are_built(folder, kind):
    """Whatever else of transformers a configuration names, the model is that of its type."""
    change(folder, architectures=[kind])
    assert type(load_model(folder)[0]).__name__ == "BertModel"


@pytest.mark.parametrize("entry", ["AutoTokenizer", "AutoProcessor"])
def test_a_tokenizers_own_code_is_never_run(folder, ran, entry):
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    code = ["mine.Mine", "mine.Mine"]
    change(folder, "tokenizer_config.json", auto_map={entry: code}, tokenizer_class="Mine")
    change(folder, "processor_config.json", auto_map={entry: "mine.Mine"}, processor_class="Mine")
    with suppress(ModelError):  # The class in question may not be needed.
        load_model(folder)
    assert not ran.exists()


def test_a_models_own_generation_is_never_run(tiny, tokenizer, tmp_path, ran):
    folder = tmp_path / "model"
    tiny("gpt2").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    load_model(folder)
    assert not ran.exists()


def test_models_in_the_hubs_cache_are_checked_as_well(folder, ran, tmp_path, monkeypatch):
    from huggingface_hub import constants

    shard(folder, "two.bin")
    (folder / "two.bin").write_bytes(pickle.dumps(Payload(ran)))
    repository = tmp_path / "hub" / "models--zoo--evil"
    (repository / "snapshots").mkdir(parents=True)
    folder.rename(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelError, match="would be unpickled"):
        load_model("zoo/evil")
    assert not ran.exists()
