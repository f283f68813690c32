"""Images and sounds are in the trace of the text they belong to, or in one of their own."""

import numpy as np
import pytest
import torch
import transformers
from old_transformers import needs

import gattn
from gattn.errors import CaptureError
from gattn.models.hugging_face.media import Batch

VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "initializer_range": 0.3,
}
TEXT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE = 59


@pytest.fixture(autouse=True)
def _quiet():
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.random.set_rng_state(state)
    transformers.logging.set_verbosity(level)


def pictures(count, side=8):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def llava():
    """Four patches an image, so four places in the text."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        vision_feature_layer=-1,
        attn_implementation="eager",
    )
    return transformers.LlavaForConditionalGeneration(config).eval()


def text(*parts):
    """A text in which None stands for an image."""
    return [i for part in parts for i in ([IMAGE] * 4 if part is None else [part])]


def batch(*texts):
    longest = max(map(len, texts))
    ids = torch.tensor([one + [0] * (longest - len(one)) for one in texts])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def tower(model, images):
    """What the vision tower attends to, image by image: (layers, images, heads, ...)."""
    with torch.no_grad():
        found = model.model.vision_tower(images, output_attentions=True).attentions
    return [layer.numpy() for layer in found]


def check_images(trace, layers, images):
    """Hold a trace's vision stack to some images, side by side."""
    size = layers[0].shape[-1]
    for (layer, head), graph in trace["vision"].items():
        expected = np.zeros((len(images) * size,) * 2)
        for n, image in enumerate(images):
            part = slice(n * size, (n + 1) * size)
            expected[part, part] = layers[layer][image, head]
        np.testing.assert_allclose(graph.to_dense(), expected, atol=1e-6)
        assert graph.tokens == ()


UNEVEN = {
    "three and one": ([[5, None, 6, None, None, 7], [8, None, 9]], [[0, 1, 2], [3]]),
    "one and three": ([[8, None, 9], [5, None, None, None]], [[0], [1, 2, 3]]),
    "none and two": ([[8, 9, 10], [5, None, None]], [[], [0, 1]]),
    "one each": ([[8, None, 9], [5, None, 6, 7]], [[0], [1]]),
    "all of one": ([[8, None, 9, None]], [[0, 1]]),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_images_are_in_the_trace_of_their_text(llava, name):
    texts, images = UNEVEN[name]
    inputs = batch(*(text(*one) for one in texts))
    pixels = pictures(sum(map(len, images)))
    with gattn.capturing(llava) as run, torch.no_grad():
        llava(**inputs, pixel_values=pixels)
    layers = tower(llava, pixels)
    assert len(run.traces) == len(texts)
    for trace, own, one in zip(run.traces, images, texts, strict=True):
        assert ("vision" in trace.stacks) == bool(own)
        if own:
            check_images(trace, layers, own)
        assert trace["decoder"].tokens == [str(i) for i in text(*one)]


def test_an_edit_meets_the_image_of_its_text_alone(llava):
    inputs = batch(text(5, None, None), text(8, None, 9))
    pixels = pictures(3)
    cut = gattn.Cut(stack="vision", layer=0, head=0, query=5 + 1, key=5 + 2)
    with gattn.capturing(llava) as run, gattn.edited(llava, cut), torch.no_grad():
        llava(**inputs, pixel_values=pixels)
    first, second = (trace["vision"][0, 0].to_dense() for trace in run.traces)
    assert not first[6, 7]
    assert second[1, 2]


SAMPLED = needs("5.19", "gives samples of a text with several images those of another sample")


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.parametrize("samples", [1, pytest.param(2, marks=SAMPLED)])
def test_generation_attaches_images_to_their_text(llava, name, samples):
    texts, images = UNEVEN[name]
    longest = max(len(text(*one)) for one in texts)
    ids = torch.tensor([[0] * (longest - len(text(*one))) + text(*one) for one in texts])
    pixels = pictures(sum(map(len, images)))
    options = {"do_sample": samples > 1, "num_return_sequences": samples, "eos_token_id": None}
    with gattn.capturing(llava) as run:
        found = llava.generate(
            input_ids=ids,
            attention_mask=(ids > 0).long(),
            pixel_values=pixels,
            max_new_tokens=3,
            **options,
        )
    layers = tower(llava, pixels)
    assert len(run.traces) == len(texts) * samples
    for number, trace in enumerate(run.traces):
        own, row = images[number // samples], found[number]
        if own:
            check_images(trace, layers, own)
        real = row[longest - len(text(*texts[number // samples])) :][:-1]
        assert trace["decoder"].tokens == [str(int(i)) for i in real]
        inputs = {"input_ids": real[None]} | ({"pixel_values": pixels[own]} if own else {})
        with torch.no_grad():
            attentions = llava(**inputs, output_attentions=True).attentions
        for (layer, head), graph in trace["decoder"].items():
            expected = attentions[layer][0, head].numpy()
            np.testing.assert_allclose(graph.to_dense(), expected, atol=1e-5)


def test_two_generations_are_two_traces(llava):
    ids, pixels = torch.tensor([text(5, None, 6)]), pictures(1)
    with gattn.capturing(llava) as run:
        for _ in range(2):
            llava.generate(input_ids=ids, pixel_values=pixels, max_new_tokens=2)
    assert [list(trace.stacks) for trace in run.traces] == [["vision", "decoder"]] * 2


def test_packed_images_are_in_the_trace_of_their_text():
    """Qwen2-VL takes the patches of all images as one sequence."""
    from benchmarks import zoo

    config = zoo.configuration("qwen2_vl")
    config._attn_implementation = "eager"
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    zoo.randomize(model)
    vision = config.vision_config
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    grid = torch.tensor([[1, 4, 4], [1, 2, 2], [1, 2, 4]])  # 16, 4 and 8 patches, a place for 4.
    patches = torch.randn(28, width)
    place = [config.image_token_id]
    texts = [[11, *place * 4, 12, *place, 13], [14, *place * 2, 15]]
    inputs = batch(*texts)
    kinds = (inputs["input_ids"] == place[0]).int()
    with gattn.capturing(model) as run, torch.no_grad():
        model(**inputs, pixel_values=patches, image_grid_thw=grid, mm_token_type_ids=kinds)
    alone = []
    for some, rows in (([0, 1], slice(0, 20)), ([2], slice(20, 28))):
        one = batch(texts[len(alone)])
        kind = (one["input_ids"] == place[0]).int()
        with gattn.capturing(model) as single, torch.no_grad():
            model(
                **one, pixel_values=patches[rows], image_grid_thw=grid[some], mm_token_type_ids=kind
            )
        alone.append(single.trace)
    assert len(run.traces) == 2
    for trace, expected in zip(run.traces, alone, strict=True):
        assert len(trace["vision"]) == len(expected["vision"])
        for place, graph in expected["vision"].items():
            np.testing.assert_allclose(
                trace["vision"][place].to_dense(), graph.to_dense(), atol=1e-6
            )


@pytest.mark.parametrize("samples", [1, 2])
def test_generation_keeps_images_packed_over_several_texts(samples):
    """Pixtral's tower takes all images as one sequence: it has a trace of its own."""
    from benchmarks import zoo

    inputs = {n: x for n, x in zoo.specimen("mistral3").inputs.items() if x is not None}
    config = zoo.configuration("mistral3")
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    options = {"do_sample": samples > 1, "num_return_sequences": samples, "eos_token_id": None}
    with gattn.capturing(model) as run:
        model.generate(**inputs, max_new_tokens=2, **options)
    stacks = [list(trace.stacks) for trace in run.traces]
    assert stacks == [["decoder"]] * (2 * samples) + [["vision"]]


def clip(kind, **options):
    sizes = {name: size for name, size in TEXT.items() if name != "num_key_value_heads"}
    config = getattr(transformers, f"{kind}Config")(
        text_config=sizes | {"max_position_embeddings": 5},
        vision_config=VISION,
        projection_dim=8,
        attn_implementation="eager",
        **options,
    )
    return config


def test_patches_do_not_have_the_names_of_words():
    """As many patches, with the class token, as words."""
    model = transformers.CLIPModel(clip("CLIP")).eval()
    ids = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 11, 12, 2]])
    with gattn.capturing(model) as run, torch.no_grad():
        model(input_ids=ids, pixel_values=pictures(2))
    for trace, row in zip(run.traces, ids, strict=True):
        assert trace["vision"][0, 0].graph.num_tokens == trace["text"][0, 0].graph.num_tokens == 5
        assert trace["text"].tokens == [str(int(i)) for i in row]
        assert trace["vision"][0, 0].tokens == ()


@pytest.mark.parametrize("kind", ["CLIP", "OwlViT"])
def test_images_of_no_text_have_traces_of_their_own(kind):
    """Two texts an image: which belongs to which is no matter of the attention."""
    model = getattr(transformers, f"{kind}Model")(clip(kind)).eval()
    ids = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 11, 12, 2], [3, 4, 2, 0, 0], [5, 4, 3, 6, 2]])
    pixels = pictures(2)
    with gattn.capturing(model) as run, torch.no_grad():
        model(input_ids=ids, pixel_values=pixels)
        expected = model.vision_model(pixels, output_attentions=True).attentions
    stacks = [list(trace.stacks) for trace in run.traces[:6]]
    assert stacks == [["text"]] * 4 + [["vision"]] * 2
    for number, trace in enumerate(run.traces[4:6]):
        for (layer, head), graph in trace["vision"].items():
            np.testing.assert_allclose(graph.to_dense(), expected[layer][number, head], atol=1e-6)


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_each_choice_is_a_text_of_its_own(kind):
    sizes = {name: size for name, size in TEXT.items() if name != "num_key_value_heads"}
    config = getattr(transformers, f"{kind}Config")(**sizes, attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForMultipleChoice")(config).eval()
    ids = torch.randint(3, 60, (2, 3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 1, 4:] = mask[1, 2, 3:] = 0
    ids = ids.masked_fill(mask == 0, 0 if kind == "Bert" else config.pad_token_id)
    with gattn.capturing(model) as run, torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, output_attentions=True)
    assert len(run.traces) == 6
    for number, trace in enumerate(run.traces):
        real = mask.flatten(0, 1)[number].bool()
        names = ids.flatten(0, 1)[number][real]
        assert trace["encoder"].tokens == [str(int(i)) for i in names]
        for (layer, head), graph in trace["encoder"].items():
            expected = output.attentions[layer][number, head][real][:, real]
            np.testing.assert_allclose(graph.to_dense(), expected, atol=1e-6)
        assert trace.logits is None


def test_choices_of_a_model_with_two_heads_are_texts():
    sizes = {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    config = transformers.GPT2Config(**sizes, **ends, attn_implementation="eager")
    model = transformers.GPT2DoubleHeadsModel(config).eval()
    ids = torch.randint(3, 60, (2, 3, 6))
    with torch.no_grad():
        expected = model.transformer(ids.flatten(0, 1), output_attentions=True).attentions
        with gattn.capturing(model) as run:
            model(input_ids=ids)
    assert len(run.traces) == 6
    for number, trace in enumerate(run.traces):
        for (layer, head), graph in trace["decoder"].items():
            np.testing.assert_allclose(graph.to_dense(), expected[layer][number, head], atol=1e-6)


def test_codebooks_are_no_texts():
    """Each step of a sound has a token of every codebook: (sounds, steps, codebooks)."""
    from transformers.models.csm.modeling_csm import CsmBackboneModel

    config = transformers.CsmConfig(**TEXT, num_codebooks=3, attn_implementation="eager")
    model = CsmBackboneModel(config).eval()
    ids = torch.randint(3, 60, (2, 5, 3), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
        with gattn.capturing(model) as run:
            cache = model(ids[:, :4], use_cache=True).past_key_values
            model(ids[:, 4:], past_key_values=cache)
    assert len(run.traces) == 2
    for number, trace in enumerate(run.traces):
        assert trace.generated == 1
        for (layer, head), graph in trace["decoder"].items():
            np.testing.assert_allclose(graph.to_dense(), expected[layer][number, head], atol=1e-6)
            assert graph.tokens == ()


def test_texts_that_are_folded_otherwise_are_refused(tiny):
    """A model that makes several sequences of each text does not say which is which."""
    bert = tiny("bert")

    class Folding(transformers.BertModel):
        def forward(self, input_ids=None, **options):
            return super().forward(input_ids.repeat(2, 1), **options)

    model = Folding(bert.config).eval()
    match = "which belongs to which is not known. Open the context on the part of the model"
    with pytest.raises(CaptureError, match=match), gattn.capturing(model), torch.no_grad():
        model(input_ids=torch.tensor([[5, 6, 7]]))


def pix2struct():
    sizes = {"hidden_size": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    vision = {"hidden_size": 16, "patch_embed_hidden_size": 12, "d_ff": 24, "d_kv": 8}
    more = {"num_hidden_layers": 2, "num_attention_heads": 2, "initializer_factor": 3.0}
    config = transformers.Pix2StructConfig(
        text_config=sizes | {"vocab_size": 60, "is_decoder": True},
        vision_config=vision | more,
        attn_implementation="eager",
    )
    return transformers.Pix2StructForConditionalGeneration(config).eval()


def test_cross_attention_is_told_by_what_it_is_given():
    """Pix2Struct's is called encoder_decoder_attention."""
    model = pix2struct()
    patches = torch.cat([torch.ones(1, 5, 2), torch.randn(1, 5, 12)], dim=-1)
    ids = torch.tensor([[5, 6, 7, 8]])
    with gattn.capturing(model) as run, torch.no_grad():
        output = model(flattened_patches=patches, decoder_input_ids=ids, output_attentions=True)
    trace = run.trace
    given = {
        "encoder": output.encoder_attentions,
        "decoder": output.decoder_attentions,
        "cross": output.cross_attentions,
    }
    assert set(trace.stacks) == set(given)
    for stack, layers in given.items():
        assert len(trace[stack]) == 2 * len(layers) == 4
        for (layer, head), graph in trace[stack].items():
            np.testing.assert_allclose(graph.to_dense(), layers[layer][0, head], atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_cross_attention_is_not_told_by_the_name_of_its_layers():
    """BridgeTower's cross_modal_text_layers have self-attention and cross-attention."""
    from benchmarks import zoo

    specimen = zoo.specimen("bridgetower")
    with gattn.capturing(specimen.model) as run:
        specimen.run()
    for name, stack in run.traces[0].stacks.items():
        for graph in stack.values():
            is_square = graph.graph.num_queries == graph.graph.num_tokens
            assert graph.graph.is_bipartite == ("cross" in name.split("_")[-1])
            assert is_square != graph.graph.is_bipartite
        if "cross" in name.split():
            assert stack[0, 0].tokens == ()


def test_a_layer_that_runs_on_a_part_of_the_batch_is_refused(tiny):
    """Its rows need not be the first ones."""
    model = tiny("llama")
    ids = torch.tensor([[5, 6, 7], [8, 9, 10], [11, 12, 13]])
    forward = model.model.layers[1].self_attn.forward

    def last(hidden_states, position_embeddings, **_):
        given = {"attention_mask": None, "position_embeddings": position_embeddings}
        return forward(hidden_states[1:], **given)[0].mean(0, keepdim=True) + hidden_states, None

    model.model.layers[1].self_attn.forward = last
    for context in (gattn.edited(model, gattn.Scale(0.5, layer=1)), gattn.capturing(model)):
        with (
            pytest.raises(CaptureError, match="attends in 2 sequences"),
            torch.no_grad(),
            context,
        ):
            model(ids, use_cache=False)


def test_elements_that_rows_do_not_divide_belong_to_none():
    pixels = {"pixel_values": torch.zeros(4, 3, 8, 8)}
    assert Batch(pixels, None).belonging("vision", 6) is None
    assert Batch(pixels, None).belonging("vision", 3) is None
    assert Batch(pixels, None).belonging("vision", 8).sequences == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_tower_by_itself_takes_all_patches_as_one_sequence():
    from benchmarks import zoo

    specimen = zoo.specimen("qwen2_vl_vision")
    with gattn.capturing(specimen.model) as run, torch.no_grad():
        specimen.model(**specimen.inputs)
    assert [list(trace.stacks) for trace in run.traces] == [["encoder"]]
    for head in run.trace.heads():
        np.testing.assert_allclose(head.total_mass, 1, rtol=1e-5)


def test_codebooks_of_one_sound_are_one_sequence():
    from benchmarks import zoo

    specimen = zoo.specimen("musicgen_decoder")
    assert len(specimen.inputs["input_ids"]) == 2
    with gattn.capturing(specimen.model) as run, torch.no_grad():
        specimen.model(**specimen.inputs)
    assert len(run.traces) == 1
