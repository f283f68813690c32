"""What the logits of a run say of its tokens, against the softmax of the plain model's logits."""

import numpy as np
import pytest
import torch
import transformers

import gattn
from gattn.errors import SelectionError

TEXT = "The river tall green lamp river tall green lamp river tall"
IDS = [5, 6, 7, 6, 9]


@pytest.fixture(scope="module")
def embedded():
    return gattn.load_model()


def tiny(kind, config, **options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20}
    return kind(config(**sizes, intermediate_size=32, **options)).double().eval()


def softmax(model, ids, **given):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), **given).logits[0].softmax(-1)


def test_position_i_predicts_the_next_token(embedded):
    model, tokenizer = embedded
    told = gattn.capture(TEXT, model, tokenizer).predictions
    ids = tokenizer(TEXT)["input_ids"]
    shares = softmax(model, ids)
    assert (told.shift, told.ids) == (1, tuple(ids))
    assert np.isnan(told.probability[0])
    expected = shares[range(len(ids) - 1), ids[1:]]
    assert told.probability[1:] == pytest.approx(expected.numpy(), rel=1e-4)
    for row, some in zip(shares, told.likeliest(3), strict=True):
        top = row.topk(3)
        assert [share for _, share in some] == pytest.approx(top.values.tolist(), rel=1e-4)
        names = [tokenizer.decode([i]) for i in top.indices]
        assert [name.strip() for name, _ in some] == [name.strip() for name in names]
        assert [name[:1] == " " for name, _ in some] == [name[:1] == " " for name in names]


def test_its_table_puts_each_token_beside_what_was_predicted_in_its_place(embedded):
    told = gattn.capture(TEXT, *embedded).predictions
    table = told.table(2)
    assert len(table) == len(told.ids)
    assert table.likeliest[0] == []
    assert table.likeliest[3] == told.likeliest(2)[2]
    best = [max(share for _, share in some) for some in table.likeliest[1:]]
    assert (table.probability[1:] <= np.array(best) + 1e-12).all()
    with pytest.raises(SelectionError, match="most must be"):
        told.likeliest(0)


def test_a_masked_model_predicts_a_token_in_its_own_place():
    model = tiny(transformers.BertForMaskedLM, transformers.BertConfig)
    told = gattn.capture(IDS, model).predictions
    shares = softmax(model, IDS)
    assert (told.shift, told.stack) == (0, "encoder")
    assert told.probability == pytest.approx(shares[range(5), IDS].numpy())
    assert told.table(1).likeliest[2][0][0] == str(int(shares[2].argmax()))


def test_a_decoder_predicts_its_own_tokens():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=20, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    given = {"input_ids": [3, 4, 5, 6], "decoder_input_ids": [0, 7, 8, 2]}
    told = gattn.capture(given, model).predictions
    shares = softmax(model, [3, 4, 5, 6], decoder_input_ids=torch.tensor([[0, 7, 8, 2]]))
    assert told.stack == "decoder"
    assert told.probability[1:] == pytest.approx(shares[range(3), [7, 8, 2]].numpy())


def test_while_generating_only_the_last_tokens_are_predicted(embedded):
    model, tokenizer = embedded
    inputs = tokenizer(TEXT, return_tensors="pt")
    with gattn.capturing(model, tokenizer) as run:
        made = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0].tolist()
    told = run.trace.predictions
    ids = made[:-1]
    assert told.ids == tuple(ids)
    shares = softmax(model, ids)
    first = told.first
    assert first > 0
    assert len(ids) - first == 4
    assert np.isnan(told.probability[: first + 1]).all()
    expected = shares[range(first, len(ids) - 1), ids[first + 1 :]].numpy()
    assert told.probability[first + 1 :] == pytest.approx(expected, rel=1e-3)
    assert told.likeliest(1)[first - 1] == []
    assert told.likeliest(1)[-1][0][1] == pytest.approx(float(shares[-1].max()), rel=1e-3)


def test_padding_is_not_predicted(embedded):
    model, tokenizer = embedded
    long, short = tokenizer(TEXT)["input_ids"], tokenizer("The dog chased")["input_ids"]
    pad = len(long) - len(short)
    ids = torch.tensor([long, [0] * pad + short])
    mask = torch.tensor([[1] * len(long), [0] * pad + [1] * len(short)])
    with gattn.capturing(model, tokenizer) as run:
        model(input_ids=ids, attention_mask=mask)
    told = run.traces[1].predictions
    assert told.ids == tuple(short)
    with torch.no_grad():
        shares = model(input_ids=ids, attention_mask=mask).logits[1, pad:].softmax(-1)
    expected = shares[range(len(short) - 1), short[1:]].numpy()
    assert told.probability[1:] == pytest.approx(expected, rel=1e-4)


def test_where_it_is_not_certain_what_logits_predict_there_are_none(embedded):
    tagger = tiny(transformers.BertForTokenClassification, transformers.BertConfig, num_labels=20)
    assert gattn.capture(IDS, tagger).predictions is None
    both = tiny(transformers.BertLMHeadModel, transformers.BertConfig)
    assert gattn.capture(IDS, both).predictions is None  # every token reads the one after it
    few = gattn.capture(IDS, both, keep=gattn.Threshold(0.9))
    assert not few[0, 0].graph.num_edges  # what it reads ahead was dropped, but it was read
    assert few.predictions is None
    causal = tiny(transformers.BertLMHeadModel, transformers.BertConfig, is_decoder=True)
    assert gattn.capture(IDS, causal, keep=gattn.TopK(1)).predictions.shift == 1
    assert gattn.capture(IDS, causal).predictions.shift == 1
    (trace,) = gattn.capture_many([TEXT], *embedded, progress=False)
    assert trace.predictions is None
    model, tokenizer = embedded
    with gattn.capturing(model, tokenizer) as run:
        model(**tokenizer(TEXT, return_tensors="pt"), logits_to_keep=1)
    assert run.trace.predictions.first == len(run.trace.tokens) - 1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kept", [1, 4, 12])
def test_last_logits_are_those_of_the_last_slots_which_may_be_padding(embedded, side, kept):
    model, tokenizer = embedded
    ids, pad = [tokenizer(TEXT)["input_ids"], tokenizer("The dog chased")["input_ids"]], [0]
    size = max(map(len, ids))
    rows = [
        one + pad * (size - len(one)) if side == "right" else pad * (size - len(one)) + one
        for one in ids
    ]
    is_real = [[1] * len(one) + [0] * (size - len(one)) for one in ids]
    mask = torch.tensor([row if side == "right" else row[::-1] for row in is_real])
    kept = min(kept, size)
    with gattn.capturing(model, tokenizer) as run:
        model(input_ids=torch.tensor(rows), attention_mask=mask)
    with gattn.capturing(model, tokenizer) as few:
        model(input_ids=torch.tensor(rows), attention_mask=mask, logits_to_keep=kept)
    for whole, trace, is_shown in zip(run.traces, few.traces, mask[:, -kept:], strict=True):
        count, told = int(is_shown.sum()), trace.predictions
        assert len(told.logits) == count
        first = len(told.ids) - count
        assert np.isnan(told.probability[: first + 1]).all()
        expected = whole.predictions.probability[first + 1 :]
        assert told.probability[first + 1 :] == pytest.approx(expected, rel=1e-4)


def test_logits_of_chosen_tokens_are_no_predictions_of_the_last(embedded):
    model, tokenizer = embedded
    with gattn.capturing(model, tokenizer) as run:
        model(**tokenizer(TEXT, return_tensors="pt"), logits_to_keep=torch.tensor([1, 2]))
    assert run.trace.predictions is None
    assert len(run.trace.logits) == 2


# Segments


@pytest.mark.parametrize("way", ["capture", "capturing"])
def test_segments_are_the_token_types_of_the_run(way):
    model = tiny(transformers.BertModel, transformers.BertConfig)
    given = {"input_ids": [[2, 5, 6, 3, 7, 3]], "token_type_ids": [[0, 0, 0, 0, 1, 1]]}
    if way == "capture":
        trace = gattn.capture(given, model)
    else:
        with gattn.capturing(model) as run:
            model(**{name: torch.tensor(x) for name, x in given.items()})
        trace = run.trace
    assert all(head.segments == (0, 0, 0, 0, 1, 1) for head in trace.heads())
    assert trace[0, 0].spans == [(0, 4), (4, 6)]


def test_padding_has_no_segment():
    model = tiny(transformers.BertModel, transformers.BertConfig)
    ids = torch.tensor([[2, 5, 3, 7, 3], [2, 5, 3, 0, 0]])
    types = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]])
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
    with gattn.capturing(model) as run:
        model(input_ids=ids, token_type_ids=types, attention_mask=mask)
    assert [trace[0, 0].segments for trace in run.traces] == [(0, 0, 0, 1, 1), (0, 1, 1)]


def test_a_decoder_has_none_of_the_encoders_segments():
    """Not even if it has as many tokens."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    encoder, decoder = (transformers.BertConfig(**sizes, intermediate_size=32) for _ in range(2))
    both = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = transformers.EncoderDecoderModel(both).eval()
    given = {"input_ids": [[2, 5, 3, 7]], "token_type_ids": [[0, 0, 1, 1]]}
    with gattn.capturing(model) as run, torch.no_grad():
        given["decoder_input_ids"] = [[1, 8, 9, 4]]
        model(**{name: torch.tensor(x) for name, x in given.items()})
    segments = {name: stack[0, 0].segments for name, stack in run.trace.stacks.items()}
    assert segments == {"encoder": (0, 0, 1, 1), "decoder": (), "cross": ()}


@pytest.mark.parametrize("regions", [4, 6])
def test_regions_of_an_image_have_no_names_of_a_text(regions):
    """Not even if there are as many."""
    model = tiny(
        transformers.LxmertModel,
        lambda **sizes: transformers.LxmertConfig(
            **sizes, l_layers=1, r_layers=1, x_layers=1, visual_feat_dim=8
        ),
    ).float()
    ids, types = torch.tensor([[2, 5, 6, 7]]), torch.tensor([[0, 0, 1, 1]])
    image = {"visual_feats": torch.rand(1, regions, 8), "visual_pos": torch.rand(1, regions, 4)}
    with gattn.capturing(model) as run, torch.no_grad():
        model(input_ids=ids, token_type_ids=types, **image)
    named = {name for name, stack in run.trace.stacks.items() if stack[0, 0].tokens}
    told = {name for name, stack in run.trace.stacks.items() if stack[0, 0].segments}
    assert named == told == {"encoder"}


def test_a_text_of_one_segment_has_none():
    model = tiny(transformers.BertModel, transformers.BertConfig)
    given = {"input_ids": [2, 5, 6], "token_type_ids": [0, 0, 0]}
    assert gattn.capture(given, model)[0, 0].segments == ()
