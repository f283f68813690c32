"""Nothing of a model changes: attributes, hooks, buffers and configurations of all its modules."""

import copy
import gc
import random
import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch
from old_transformers import needs
from transformers import BigBirdConfig, BigBirdModel, PreTrainedConfig

import gattn
from benchmarks import zoo
from gattn.errors import CaptureError, GattnError

ROUTED = [
    "albert",
    "bert",
    "gpt2",
    "llama",
    "gpt_oss",
    "t5",
    "whisper",
    "vit",
    "clip",
    "llava",
    "swin",
]
BY_SOFTMAX = [
    *("bloom", "gptj", "gpt_neo", "deberta-v2", "big_bird", "blip", "canine", "convbert", "falcon"),
    *("reformer", "rembert", "roformer", "sew-d", "xglm", "xlnet", "data2vec-vision"),
    "timesformer",
]
DRAWS = pytest.param("fsmt", marks=needs("5.23", "draws a number per layer of FSMT in each run"))
QUICK = ["gpt2", "llama", "t5", "clip", "bloom", "big_bird", "diffllama", "longformer"]
REFUSED = ["diffllama", "longformer", "prophetnet"]


def state(model):
    """Everything that the modules of a model hold, by where it is."""
    found = {}

    def put(place, value):
        if isinstance(value, torch.Tensor):
            found[place] = id(value), value._version, value.detach().numpy().tobytes()
        elif isinstance(value, PreTrainedConfig):
            found[place] = id(value), repr(vars(value))
        elif isinstance(value, dict):
            found[place] = type(value), [repr(name) for name in value]
            for name, one in value.items():
                put(f"{place}[{name!r}]", one)
        elif isinstance(value, (list, tuple)):
            found[place] = type(value), len(value)
            for number, one in enumerate(value):
                put(f"{place}[{number}]", one)
        else:
            found[place] = id(value) if isinstance(value, torch.nn.Module) else repr(value)

    for name, module in model.named_modules(remove_duplicate=False):
        found[f"{name}()"] = type(module), id(module)
        put(name, vars(module))
    found["random"] = random.getstate()
    found["numpy"] = repr(np.random.get_state())  # noqa: NPY002
    found["torch"] = torch.random.get_rng_state().tolist()
    return found


def changed(model, before):
    after = state(model)
    return sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))


def contexts(model):
    yield gattn.capturing(model)
    yield gattn.capturing(model, contributions=True)
    yield gattn.edited(model, gattn.Scale(0.5))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family",
    [
        *(
            family if family in QUICK else pytest.param(family, marks=pytest.mark.slow)
            for family in (*ROUTED, *BY_SOFTMAX, *REFUSED)
        ),
        DRAWS,
    ],
)
def test_nothing_of_a_model_changes(family):
    specimen = zoo.specimen(family).eager()
    for _ in range(2):  # What a model itself changes on such an input is changed.
        specimen.run()
    before = state(specimen.model)
    refused = []
    for context in contexts(specimen.model):
        try:
            with context:
                specimen.run()
            refused.append(False)
        except GattnError:
            refused.append(True)
        assert changed(specimen.model, before) == []
    assert all(refused) if family in REFUSED else not refused[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["vit", "swin", "data2vec-vision", "wavlm"])
def test_a_text_for_another_kind_of_model_is_refused(family):
    with pytest.raises(GattnError):
        gattn.capture([5, 17, 42], zoo.specimen(family).model)


@pytest.fixture
def big_bird():
    """A model that goes over to full attention for good as soon as a text is short."""
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 48, "block_size": 4, "num_random_blocks": 1}
    torch.manual_seed(0)
    config = BigBirdConfig(**sizes, **more, max_position_embeddings=128, initializer_range=0.3)
    return BigBirdModel(config).eval()


def test_the_proof_of_a_model_runs_on_a_copy(big_bird):
    ids = torch.randint(3, 60, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain, before = big_bird(ids)[0], state(big_bird)
        for context in contexts(big_bird):
            with pytest.raises(CaptureError, match="is refused"), context:
                big_bird(ids)
            # The user's own call draws numbers of NumPy in older versions of transformers.
            assert set(changed(big_bird, before)) <= {"numpy"}
            assert torch.equal(big_bird(ids)[0], plain)


def test_what_did_not_run_in_the_proof_is_refused(big_bird):
    ids = torch.randint(3, 60, (1, 64), generator=torch.Generator().manual_seed(0))
    full = torch.zeros(1, 7, dtype=torch.long) + 5
    with torch.no_grad():
        big_bird.set_attention_type("original_full")
        with gattn.capturing(big_bird) as run:
            attentions = big_bird(full, output_attentions=True).attentions
        dense = run.trace[1, 2].to_dense()
        np.testing.assert_allclose(dense, attentions[1][0, 2], atol=1e-6)
        big_bird.set_attention_type("block_sparse")
        match = "BigBirdBlockSparseAttention did not run on the input"
        with pytest.raises(CaptureError, match=match), gattn.capturing(big_bird):
            big_bird(ids)


def test_a_copy_for_the_proof_holds_the_weights_once(big_bird, monkeypatch):
    from gattn.models.doors.proof import kinds

    copies = []

    def noted(model):
        copies.append(copied(model))
        return copies[0]

    copied = kinds.copied
    monkeypatch.setattr(kinds, "copied", noted)
    with suppress(CaptureError):
        gattn.capture([5, 6, 7], big_bird)
    (copy,) = copies
    for name, parameter in big_bird.named_parameters():
        assert copy.get_parameter(name) is parameter
    assert copy is not big_bird
    assert copy.encoder.layer[0] is not big_bird.encoder.layer[0]


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy], ids=["deep", "shallow"])
@pytest.mark.parametrize("options", [{}, {"contributions": True}], ids=str)
def test_a_copy_made_inside_a_context_is_plain_and_keeps_nothing_alive(tiny, how, options):
    model, ids = tiny("llama"), torch.tensor([[5, 17, 42]])
    with gattn.capturing(model, **options) as run, torch.no_grad():
        other = how(model)
        expected = model(ids).logits
        assert len(run.traces) == 1
        if how is copy.deepcopy:
            torch.testing.assert_close(other(ids).logits, expected)
            assert len(run.traces) == 1
    with torch.no_grad():
        assert torch.equal(other(ids).logits, expected)
    assert len(run.traces) == 1
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
    with gattn.capturing(other, **options) as run, torch.no_grad():
        other(ids)
    assert len(run.traces) == 1
