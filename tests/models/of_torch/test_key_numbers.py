"""The numbers by which the keys of a cache of a model's own are told apart."""

import pytest
import torch

from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.own_caches.keys import are_those, codes_of, few_of

TOKENS = 5


def call(dtype, heads=3, dim=4):
    q, k, v = torch.randn(3, 2, heads, TOKENS, dim, dtype=torch.float64).to(dtype)
    return SeenCall("layer", None, q, k, v, v.transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_key_is_told_by_every_head_and_its_value(dtype):
    torch.manual_seed(0)
    before = call(dtype)
    codes = codes_of(few_of(before))
    for name in ("key", "value"):
        for head in range(3):
            after = SeenCall("layer", None, before.query, before.key, before.value, before.output)
            x = getattr(before, name).clone()
            x[1, head, 2, 0] *= 1.5
            setattr(after, name, x)
            changed = codes_of(few_of(after))[..., 0] != codes[..., 0]
            assert changed.nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_keys_of_few_bits_have_numbers_of_their_own(dtype):
    torch.manual_seed(0)
    count = 20_000
    keys = torch.randn(1, 2, count, 8).to(dtype)
    codes = codes_of(keys)
    unlike = len(keys[0].movedim(1, 0).flatten(1).unique(dim=0))
    assert unlike == count
    assert all(len(codes[0, :, kind].unique()) == count for kind in range(3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_last_bit_of_each_number_tells_keys_apart(dtype):
    torch.manual_seed(0)
    few = torch.randn(1, 2, 1, 8, dtype=torch.float64).to(dtype)
    one = torch.tensor(torch.inf, dtype=dtype)
    for head in range(2):
        for n in range(8):
            other = few.clone()
            other[0, head, 0, n] = few[0, head, 0, n].nextafter(one)
            assert codes_of(other)[0, 0, 0] != codes_of(few)[0, 0, 0]


def test_layers_are_numbered_at_once_as_one_by_one():
    torch.manual_seed(0)
    few = [few_of(call(torch.float32)) for _ in range(3)]
    assert torch.equal(codes_of(torch.stack(few)), torch.stack([codes_of(x) for x in few]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_keys_are_those_of_the_text(dtype):
    torch.manual_seed(0)
    first = call(torch.float32)
    known = codes_of(few_of(first))
    first.key, first.value = first.key.to(dtype).float(), first.value.to(dtype).float()
    assert are_those(known, codes_of(few_of(first))).all()
    first.key = first.key + 1e-2
    assert not are_those(known, codes_of(few_of(first))).any()


def test_keys_that_are_not_seen_are_like_no_others():
    none = call(torch.float32, dim=0)
    one, other = (codes_of(few_of(none)) for _ in range(2))
    assert one.shape == (2, TOKENS, 3)
    assert len(torch.cat([one, other]).unique()) == 2 * 2 * TOKENS
