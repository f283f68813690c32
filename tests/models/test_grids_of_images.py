"""A grid that is given names patches, and no words of which there are as many."""

import pytest
import torch
import transformers
from torch import nn

import gattn

GRID = (4, 4)
IMAGE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x, read=None):
        read = x if read is None else read
        return x + self.attend(x, read, read, need_weights=False)[0]


class Towers(nn.Module):
    """Reads an image and words apart, and then words read the image; patches may overlap."""

    def __init__(self, size=4):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, size, 4, padding=(size - 4) // 2)
        self.embed = nn.Embedding(30, 16)
        self.vision, self.text, self.cross = Attention(), Attention(), Attention()

    def forward(self, image, ids):
        words = self.text(self.embed(ids))
        return self.cross(words, self.vision(self.patch(image).flatten(2).mT))


class Codes(nn.Module):
    """Reads an image as ids of patches."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention = nn.Embedding(30, 16), Attention()

    def forward(self, ids):
        return self.attention(self.embed(ids))


def stacks(model, *given, **options):
    with torch.no_grad(), gattn.capturing(model.eval(), grid=GRID, **options) as run:
        model(*given)
    return {name.removesuffix(".attend"): stack[0, 0] for name, stack in run.trace.stacks.items()}


@pytest.mark.parametrize("size", [4, 6], ids=["apart", "overlapping"])
@pytest.mark.parametrize("words", [16, 17, 20])
def test_words_of_the_same_count_are_on_no_grid(size, words):
    torch.manual_seed(0)
    model, ids = Towers(size), torch.randint(30, (1, words))
    heads = stacks(model, IMAGE, ids)
    assert heads["vision"].tokens[5] == "1,1"
    assert heads["text"].geometry is None
    assert not heads["text"].tokens
    if words == 20:  # Else the grid could be that of either side.
        assert heads["cross"].tokens[5] == "1,1"
    with torch.no_grad():
        edits = gattn.Cut(stack="vision.attend", key="1,1"), gattn.Cut(stack="vision.attend", key=5)
        one, other = [run_edited(model, edit, ids) for edit in edits]
        assert torch.equal(one, other)
        assert not torch.equal(one, model(IMAGE, ids))
        with pytest.raises(gattn.errors.EditError):
            run_edited(model, gattn.Cut(stack="text.attend", key="1,1"), ids)


def run_edited(model, edit, ids):
    with gattn.edited(model, edit, grid=GRID):
        return model(IMAGE, ids)


def test_ids_may_be_those_of_patches():
    torch.manual_seed(0)
    heads = stacks(Codes(), torch.randint(30, (1, 16)))
    assert heads["attention"].tokens[5] == "1,1"


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
TEXT = {"vocab_size": 40, "eos_token_id": 39, "bos_token_id": 1, "pad_token_id": 0}


def test_words_of_transformers_models_are_on_no_grid():
    config = transformers.CLIPConfig(
        text_config={**SIZES, **TEXT, "num_attention_heads": 2, "max_position_embeddings": 20},
        vision_config={**SIZES, "num_attention_heads": 2, "image_size": 16, "patch_size": 4},
        projection_dim=8,
    )
    model, ids = transformers.CLIPModel(config), torch.randint(2, 39, (1, 16))
    ids[0, -1] = 39
    with torch.no_grad(), gattn.capturing(model.eval(), grid=GRID) as run:
        model(input_ids=ids, pixel_values=IMAGE)
    assert run.trace["vision"][0, 0].tokens[6] == "1,1"
    assert run.trace["text"][0, 0].geometry is None
    assert run.trace["text"][0, 0].tokens == tuple(str(int(one)) for one in ids[0])
