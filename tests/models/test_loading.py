"""Models by name and folder; none of it touches the network."""

import builtins
import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer

from gattn.errors import ModelError
from gattn.models.load import loading
from gattn.models.load.loading import (
    EMBEDDED_PATH,
    find_tokenizer,
    load_model,
    model_name,
    offline_models,
)
from gattn.models.run.capturing import capture


@pytest.fixture
def folder(tiny, tokenizer, tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [None, "embedded", EMBEDDED_PATH])
def test_the_embedded_model_is_the_default(name):
    model, tokenizer = load_model(name)
    assert not model.training
    assert type(model).__name__.endswith("ForCausalLM")
    assert len(tokenizer) == model.config.vocab_size
    assert capture([3, 4, 5], model)[0, 0].model == "embedded"


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_folder_is_a_model(folder, tiny, kind):
    model, tokenizer = load_model(kind(folder))
    assert type(model).__name__ == "BertModel"
    assert not model.training
    for name, weight in tiny("bert").state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    assert tokenizer.convert_ids_to_tokens([4, 5]) == ["the", "dog"]
    trace = capture("the dog", kind(folder))
    assert trace["encoder"].tokens == ["[CLS]", "the", "dog", "[SEP]"]
    assert trace[0, 0].model == folder.name


def test_a_model_from_a_folder_brings_its_tokenizer(folder, tiny):
    model, _ = load_model(folder)
    assert capture("the dog", model)["encoder"].tokens == ["[CLS]", "the", "dog", "[SEP]"]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert find_tokenizer(model) is None
    with pytest.raises(ModelError, match="tokenizer"):
        capture("the dog", model)
    assert capture([4, 5], model)["encoder"].tokens == ["4", "5"]
    assert find_tokenizer(tiny("bert")) is None


def test_a_tokenizer_given_goes_before_the_models_own(folder):
    embedded = load_model()[1]
    trace = capture([4, 5], folder, embedded)
    assert trace["encoder"].tokens != ["the", "dog"]


@pytest.mark.parametrize("name", ["no-such/model", "no_such_model", "", "/no/such/folder", "a/b/c"])
def test_an_unknown_name_lists_what_is_there(name):
    with pytest.raises(ModelError) as caught:
        load_model(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "embedded" in message
    assert len(message) < 1000
    assert "\n" not in message


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such", "a/b/c", "no such"])
def test_a_name_that_only_a_folder_could_have_says_that_there_is_none(name):
    with pytest.raises(ModelError, match=f"The reason given: there is no folder {name}$"):
        load_model(name)


@pytest.mark.slow
def test_without_network_an_unknown_name_fails_at_once():
    """In a process of its own, as a user would meet it."""
    code = "import gattn; gattn.capture('The dog', 'no-such/model')"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("gattn.errors.ModelError: The model 'no-such/model' could not be loaded")
    assert "Models that are here offline: embedded" in last


def test_pickled_weights_are_not_read(folder, tiny):
    (folder / "model.safetensors").unlink()
    torch.save(tiny("bert").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load_model(folder)


@pytest.mark.parametrize("entry", ["AutoConfig", "AutoModel"])
def test_a_models_own_code_is_never_run(folder, monkeypatch, entry):
    """Not even where somebody would answer yes."""
    monkeypatch.setattr(builtins, "input", lambda *question: "y")
    (folder / "mine.py").write_text(f"open({str(folder / 'ran')!r}, 'w').write('it ran')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {entry: "mine.Mine"}
    if entry == "AutoConfig":
        config["model_type"] = "mine"
    (folder / "config.json").write_text(json.dumps(config))
    if entry == "AutoConfig":
        with pytest.raises(ModelError, match="custom code"):
            load_model(folder)
    else:
        assert type(load_model(folder)[0]).__module__.startswith("transformers.")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"\x00\xff junk" * 9])
def test_a_broken_folder_is_named(folder, file, content):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(ModelError, match="could not be loaded") as caught:
        load_model(folder)
    assert repr(str(folder)) in str(caught.value)


def test_a_package_that_cannot_be_imported_is_not_taken_for_a_broken_folder(folder, monkeypatch):
    def fail(*args, **kwargs):
        raise ImportError("operator torchvision::nms does not exist")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(ModelError, match="a package that it needs is missing or broken") as caught:
        load_model(folder)
    assert "torchvision::nms" in str(caught.value)
    assert "safetensors" not in str(caught.value)


def test_a_tokenizer_without_words_is_none(folder):
    """For a BertModel transformers makes up an empty one."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer with a vocabulary"):
        load_model(folder)


def test_weights_of_another_size_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(ModelError, match="could not be loaded"):
        load_model(folder)


class TestOfflineModels:
    """The hub's cache, as the hub lays it out."""

    def cached(self, cache, name, *files):
        snapshot = cache / f"models--{name.replace('/', '--')}" / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        for file in files:
            (snapshot / file).write_text("{}")

    def test_it_lists_models_that_have_safetensors(self, tmp_path, monkeypatch):
        import huggingface_hub

        self.cached(tmp_path, "zoo/whole", "config.json", "model.safetensors")
        self.cached(tmp_path, "apes/sharded", "config.json", "model-00001-of-00002.safetensors")
        self.cached(tmp_path, "zoo/pickled", "config.json", "pytorch_model.bin")
        self.cached(tmp_path, "zoo/weights", "model.safetensors")
        scan = huggingface_hub.scan_cache_dir
        monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path))
        assert offline_models() == ["embedded", "apes/sharded", "zoo/whole"]

    def test_no_cache_leaves_the_embedded_model(self, tmp_path, monkeypatch):
        import huggingface_hub

        scan = huggingface_hub.scan_cache_dir
        missing = tmp_path / "none"
        monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(missing))
        assert offline_models() == ["embedded"]


def without(folder, word):
    """Take the first weight whose name has a word in it out of a folder."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in sorted(weights) if word in name)
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return lost


def test_a_missing_pooler_is_random_and_named(folder):
    lost = without(folder, "pooler")
    with pytest.warns(UserWarning, match=f"no weights for {lost}: they are random"):
        load_model(folder)


@pytest.mark.parametrize("word", ["attention.self.query", "word_embeddings", "layer.1.output"])
def test_missing_weights_that_attention_needs_are_refused(folder, word):
    lost = without(folder, word)
    with pytest.raises(ModelError, match=f"no weights for {lost}: .* Load a whole model"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "kind", "is_warned"),
    [
        ("bert.encoder.layer.0.attention.self.key.weight", "BertForMaskedLM", False),
        ("cls.predictions.bias", "BertForMaskedLM", True),
        ("bert.pooler.dense.bias", "BertForPreTraining", True),
    ],
)
def test_what_stands_outside_the_base_model_is_a_head(tiny, name, kind, is_warned):
    import transformers

    model = getattr(transformers, kind)(tiny("bert").config)
    assert loading._is_head(name, model) == is_warned


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch):
    import huggingface_hub

    asked = []

    def ask(url):
        asked.append(url)
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", ask)
    with pytest.raises(ModelError, match="the hub does not answer: no route"):
        load_model("no-such/model")
    assert len(asked) == 1
    assert "no-such/model" in asked[0]


@pytest.mark.parametrize(
    ("path", "name"),
    [("/home/somebody/models/bert", "bert"), ("org/bert", "org/bert"), ("", "GPT2LMHeadModel")],
)
def test_the_name_of_a_model_does_not_tell_where_its_folder_lies(tiny, path, name):
    model = tiny("gpt2")
    model.config._name_or_path = path
    assert model_name(model) == name
