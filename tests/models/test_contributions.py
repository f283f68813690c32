"""The lengths of what edges add: ||A_ij W_O v_j||, from the model's own values and projection."""

import contextlib
import copy
import gc
import weakref

import numpy as np
import pytest
import torch

from gattn import Cut, Scale, TopK, capture, capture_many, capturing, edited
from gattn.errors import CaptureError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
OTHERS = [44, 2, 9, 9, 30]
PROJECTIONS = {
    "bert": "attention.output.dense",
    "modernbert": "attn.Wo",
    "gpt2": "attn.c_proj",
    "opt": "self_attn.out_proj",
    "llama": "self_attn.o_proj",
    "mistral": "self_attn.o_proj",
    "gemma2": "self_attn.o_proj",
    "gpt-oss": "self_attn.o_proj",
    "t5": "SelfAttention.o",
    "bart": "self_attn.out_proj",
}
FIRST = {"t5": "decoder", "bart": "decoder"}


def inputs_of(model):
    return {"input_ids": IDS} | (
        {"decoder_input_ids": OTHERS} if model.config.is_encoder_decoder else {}
    )


def oracle(dense, model, stack):
    """For each layer of a stack: the attention, and its values, in double precision."""
    layers = []
    inputs = {name: torch.tensor([ids]) for name, ids in inputs_of(model).items()}

    def after(call, attention):
        if stack is None or call.place[0] == stack:
            layers.append((attention[0].double(), call.value[0].double()))
        return attention

    dense.run(model, inputs, after=after)
    return layers


def projections(model, name, stack):
    return [
        module
        for path, module in model.named_modules()
        if path.endswith(PROJECTIONS[name]) and (not stack or f"{stack}." in f"{path}.")
    ]


@pytest.mark.parametrize("name", PROJECTIONS)
def test_contributions_are_dense_algebra(tiny, dense, name):
    model, stack = tiny(name, "eager"), FIRST.get(name)
    trace = capture(inputs_of(model), model, contributions=True)
    lengths = capture(inputs_of(model), model, contributions="value")
    layers, parts = oracle(dense, model, stack), projections(model, name, stack)
    heads = trace[stack] if stack else trace.only_stack
    assert len(layers) == len(parts) == len(heads.layers)
    for (layer, h), head in heads.items():
        attention, value = layers[layer]
        weight = parts[layer].weight.detach().double()
        weight = weight.T if type(parts[layer]).__name__ == "Conv1D" else weight
        width = weight.shape[1] // 4
        moved = value[h] @ weight[:, h * width : (h + 1) * width].T  # (keys, dim of the model)
        added = attention[h][:, :, None] * moved
        expected = added.norm(dim=-1).numpy()
        found = head.contribution
        np.testing.assert_allclose(
            found, expected[head.query, head.key], rtol=1e-3, atol=1e-5, err_msg=f"{layer} {h}"
        )
        only = (attention[h][:, :, None] * value[h]).norm(dim=-1).numpy()
        twin = (lengths[stack] if stack else lengths.only_stack)[layer, h]
        np.testing.assert_allclose(
            twin.value_norm, only[twin.query, twin.key], rtol=1e-3, atol=1e-5
        )
        assert twin.contribution is None
        assert head.value_norm is None


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_every_stack_has_contributions(tiny, name, stack):
    trace = capture(inputs_of(tiny(name)), tiny(name), contributions=True)
    for head in trace[stack].values():
        assert head.contribution is not None
        assert (head.contribution > 0).any()


def test_grouped_heads_know_their_values(tiny):
    trace = capture(IDS, tiny("llama"))
    assert [trace[0, h].key_value_head for h in range(4)] == [0, 0, 1, 1]
    assert capture(IDS, tiny("gpt2"))[0, 0].key_value_head is None


@pytest.mark.parametrize("mode", [True, "value"], ids=str)
def test_kept_edges_and_chosen_heads_have_theirs(tiny, mode):
    model, name = tiny("llama"), "value_norm" if mode == "value" else "contribution"
    whole = capture(IDS, model, contributions=mode)
    some = capture(IDS, model, contributions=mode, keep=TopK(2), layers=[1], heads=[3, 1])
    for place, head in some.only_stack.items():
        expected = whole[place].keep(TopK(2))
        np.testing.assert_allclose(getattr(head, name), getattr(expected, name), rtol=1e-5)


@pytest.mark.parametrize("mode", [True, "value"], ids=str)
def test_each_sequence_of_a_batch_has_its_own(tiny, mode):
    model, name = tiny("mistral"), "value_norm" if mode == "value" else "contribution"
    many = capture_many([IDS, OTHERS, [7]], model, contributions=mode, progress=False)
    for ids, trace in zip([IDS, OTHERS, [7]], many, strict=True):
        alone = capture(ids, model, contributions=mode)
        for place, head in trace.only_stack.items():
            np.testing.assert_allclose(
                getattr(head, name), getattr(alone[place], name), rtol=1e-4, atol=1e-5
            )


def test_edits_change_contributions(tiny):
    model = tiny("llama")
    plain = capture(IDS, model, contributions=True)
    with edited(model, Scale(-2.0, 1, 0, query=4), Cut(1, 1, query=6, key=2)):
        found = capture(IDS, model, contributions=True)
    rows = plain[1, 0].query == 4
    factor = np.where(rows, 2.0, 1.0)
    np.testing.assert_allclose(
        found[1, 0].contribution, factor * plain[1, 0].contribution, rtol=1e-5
    )
    share = found[1, 1].to_dense()[6] / np.maximum(plain[1, 1].to_dense()[6], 1e-9)
    here, there = found[1, 1], plain[1, 1]
    dense = np.zeros((9, 9))
    dense[here.query, here.key] = here.contribution
    before = np.zeros((9, 9))
    before[there.query, there.key] = there.contribution
    np.testing.assert_allclose(dense[6], before[6] * share, rtol=1e-3, atol=1e-5)
    assert dense[6, 2] == 0 < before[6, 2]


def test_a_gate_between_attention_and_projection_is_named(tiny):
    """A module that changes the output on its way hides what it adds."""
    model = tiny("llama")

    class Gated(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(torch.tanh(x))

    model.model.layers[1].self_attn.o_proj = Gated(model.model.layers[1].self_attn.o_proj)
    with pytest.raises(CaptureError, match=r"layers\.1\.self_attn is not projected.*\"value\""):
        capture(IDS, model, contributions=True)
    trace = capture(IDS, model, contributions="value")
    assert trace[1, 0].value_norm is not None
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    assert not any(hooks)


class Adapted(torch.nn.Module):
    """A low-rank adapter around a linear module, as LoRA has it."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = torch.nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B(self.lora_A(x))


class Doubled(torch.nn.Linear):
    """A linear module that does not do as its weight says."""

    def forward(self, x):
        return 2 * super().forward(x.flip(-1))


class Twice(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight.flip(0)


def changed(module, how):
    if how == "adapter":
        return Adapted(module)
    if how == "adapter of an adapter":
        return Adapted(module_with_sizes(Adapted(module), module))
    if how == "subclass":
        other = Doubled(module.in_features, module.out_features, bias=False)
        other.load_state_dict(module.state_dict())
        return other
    if how == "parametrization":
        torch.nn.utils.parametrize.register_parametrization(module, "weight", Twice())
    elif how == "weight norm":
        torch.nn.utils.parametrizations.weight_norm(module)
        module.parametrizations.weight.original0.data.mul_(3)
    elif how == "sequence":
        return torch.nn.Sequential(module, torch.nn.Linear(32, 32), torch.nn.Dropout(0.5))
    return module


def module_with_sizes(module, like):
    module.in_features, module.out_features = like.in_features, like.out_features
    return module


LINEAR = ["adapter", "adapter of an adapter", "subclass", "parametrization", "weight norm"]


@pytest.mark.parametrize("how", [*LINEAR, "sequence", "as it was"])
def test_what_the_projection_does_is_what_counts(tiny, dense, how):
    """Whatever its weight says: the module itself is asked what it makes of each value."""
    torch.manual_seed(0)
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.o_proj = changed(layer.self_attn.o_proj, how)
        for parameter in layer.self_attn.o_proj.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    model.eval()
    trace = capture(IDS, model, contributions=True)
    for number, (attention, values) in enumerate(oracle(dense, model, "decoder")):
        projection = copy.deepcopy(model.model.layers[number].self_attn.o_proj).double()
        for head in range(4):
            padded = torch.zeros(9, 4, 8, dtype=torch.float64)
            padded[:, head] = values[head]
            with torch.no_grad():
                moved = projection(padded.flatten(1)) - projection(torch.zeros(9, 32).double())
            expected = attention[head] * moved.norm(dim=-1)
            graph = trace[number, head]
            found = np.zeros((9, 9))
            found[graph.query, graph.key] = graph.contribution
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


class Nudged(torch.nn.Linear):
    """A linear module with an adapter of 1 % of its weight, about as coarse as bfloat16 is."""

    def forward(self, x):
        return super().forward(x) + 0.01 * super().forward(x)


def nudged(how):
    """Build a projection that does 1 % more than its weight says."""
    kind = Nudged if how == "subclass" else torch.nn.Linear
    module = kind(32, 32, bias=False)
    plain = module.forward
    if how == "instance":
        module.forward = lambda x: plain(x) + 0.01 * plain(x)
    elif how == "hook":
        module.register_forward_hook(lambda module, given, output: 1.01 * output)
    return module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("how", ["subclass", "instance", "hook"])
def test_adapters_as_small_as_the_rounding_count(tiny, how, dtype):
    torch.manual_seed(0)
    model = tiny("llama", "eager", dtype=dtype)
    weights = [torch.nn.init.normal_(torch.empty(32, 32), std=0.3).to(dtype) for _ in range(2)]
    for layer, weight in zip(model.model.layers, weights, strict=True):
        layer.self_attn.o_proj = nudged(how).to(dtype)
        layer.self_attn.o_proj.weight.data.copy_(weight)
    if how == "hook":
        with pytest.raises(CaptureError, match="not a linear map"):
            capture(IDS, model, contributions=True)
        return
    trace = capture(IDS, model, contributions=True)
    # In the first layer attention and values are what they were without the adapter.
    first = model.model.layers[0].self_attn
    first.o_proj = torch.nn.Linear(32, 32, bias=False).to(dtype)
    first.o_proj.weight.data.copy_(weights[0])
    plain = capture(IDS, model, contributions=True)
    ratios = [trace[0, h].contribution.sum() / plain[0, h].contribution.sum() for h in range(4)]
    np.testing.assert_allclose(ratios, 1.01, atol=1e-6 if dtype == torch.float64 else 3e-3)


def test_a_hook_that_only_looks_is_none_of_its_affair(tiny):
    model, seen = tiny("llama"), []
    expected = capture(IDS, model, contributions=True)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(lambda *given: seen.append(1))
    found = capture(IDS, model, contributions=True)
    assert len(seen) == 2
    for place, head in expected.only_stack.items():
        np.testing.assert_array_equal(found[place].contribution, head.contribution)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_no_copy_of_a_weight_is_kept(tiny, name):
    model = tiny(name, dtype=torch.bfloat16)
    with capturing(model, contributions=True) as run, torch.no_grad():
        model(torch.tensor([IDS]))
        known = list(run._projections._known.values())
        assert len(known) == 2
        assert all(one.probed is None and one.product.shape == (4, 8, 8) for one in known)


@pytest.mark.parametrize(
    "scale",
    [
        lambda weight: weight.mul_(1.00001),
        lambda weight: weight.data.mul_(1.00001),
        lambda weight: np.multiply(weight.numpy(), 1.00001, out=weight.numpy()),
    ],
    ids=["in place", "data", "numpy"],
)
def test_a_weight_that_changes_between_calls_counts_as_it_is(tiny, scale):
    model = tiny("llama", dtype=torch.float64)
    with capturing(model, contributions=True) as run, torch.no_grad():
        model(torch.tensor([IDS]))
        for layer in model.model.layers:
            scale(layer.self_attn.o_proj.weight)
        model(torch.tensor([IDS]))
    before, after = run.traces
    for head in range(4):
        np.testing.assert_allclose(
            after[0, head].contribution, 1.00001 * before[0, head].contribution, rtol=1e-6
        )


def test_an_adapter_beside_the_projection_is_refused(tiny):
    model = tiny("llama")
    attention = model.model.layers[1].self_attn

    class Beside(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.more = inner, torch.nn.Linear(32, 32)

        def forward(self, x, scale=None):
            return self.inner(x) + self.more(x)

    class Given(Beside):
        def forward(self, x):
            return super().forward(x)

    attention.o_proj = Given(attention.o_proj)
    capture(IDS, model, contributions=True)  # One module around both.
    model = tiny("bert")
    output = model.encoder.layer[1].attention.output
    output.more = torch.nn.Linear(32, 32)
    plain = output.forward
    output.forward = lambda hidden, given: plain(hidden, given) + output.more(hidden)
    with pytest.raises(CaptureError, match="projected twice"):
        capture(IDS, model, contributions=True)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_a_hook_that_changes_what_a_projection_gives_is_refused(tiny, name):
    model = tiny(name)
    modules = dict(model.named_modules())
    (path,) = [n for n in modules if n.endswith(PROJECTIONS[name]) and ".1." in n]
    modules[path].register_forward_hook(lambda module, given, output: 1.5 * output)
    with pytest.raises(CaptureError, match="not a linear map"):
        capture(IDS, model, contributions=True)


@pytest.mark.parametrize("wrong", ["norm", 2, None])
def test_the_kind_of_contributions_is_checked(tiny, wrong):
    with pytest.raises(CaptureError, match="True, False or 'value'"):
        capture(IDS, tiny("llama"), contributions=wrong)


def test_other_threads_projections_are_none_of_its_affair(tiny):
    from threading import Barrier, Thread

    model = tiny("llama")
    alone = capture(IDS, model, contributions=True)
    barrier, failures = Barrier(3), []

    def plain():
        barrier.wait()
        for _ in range(10):
            with torch.no_grad():
                model(torch.tensor([OTHERS]))

    def work():
        barrier.wait()
        for _ in range(5):
            try:
                found = capture(IDS, model, contributions=True)
            except CaptureError as error:
                failures.append(error)
                return
            for place, head in found.only_stack.items():
                if not np.array_equal(head.contribution, alone[place].contribution):
                    failures.append(place)

    threads = [Thread(target=some) for some in (plain, work, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_contributions_while_generating(tiny):
    model = tiny("gpt2")
    with capturing(model, contributions=True) as found:
        ids = model.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False)[0]
    whole = capture(ids[:-1], model, contributions=True)
    for place, head in whole.only_stack.items():
        np.testing.assert_allclose(
            found.trace[place].contribution, head.contribution, rtol=1e-3, atol=1e-5
        )


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_goes_though_its_recording_stays(tiny, fails):
    model = tiny("llama")
    with contextlib.suppress(ZeroDivisionError), capturing(model, contributions=True) as found:
        with torch.no_grad():
            model(torch.tensor([IDS]))
        if fails:
            raise ZeroDivisionError
    seen = [weakref.ref(model), weakref.ref(model.model.layers[0].self_attn.o_proj.weight)]
    del model
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
    assert found._projections._known == {}
    head = found.trace[1, 2]
    assert found.trace.model == head.model
    assert head.contribution.min() > 0


def test_a_call_that_fails_halfway_expects_no_projection(tiny):
    model = tiny("llama")
    projection = model.model.layers[1].self_attn.o_proj
    with torch.no_grad(), capturing(model, contributions=True) as found:
        handle = projection.register_forward_pre_hook(lambda module, given: 1 / 0, prepend=True)
        with pytest.raises(ZeroDivisionError):
            model(torch.tensor([IDS]))
        handle.remove()
        assert found.traces == []
        model(torch.tensor([IDS[:4]]))
    expected = capture(IDS[:4], model, contributions=True)
    for place, head in expected.only_stack.items():
        np.testing.assert_array_equal(found.trace[place].contribution, head.contribution)


def test_a_step_that_fails_leaves_its_text_as_it_was(tiny):
    model = tiny("llama")
    with torch.no_grad(), capturing(model) as found:
        model(torch.tensor([IDS[:5]]))
        cache = model(torch.tensor([IDS]), use_cache=True).past_key_values
        assert len(found.traces) == 2
        handle = model.model.layers[1].register_forward_pre_hook(lambda module, given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(torch.tensor([[3]]), past_key_values=cache)
        handle.remove()
        assert [len(trace.only_stack.tokens) for trace in found.traces] == [5, len(IDS)]
        with pytest.raises(CaptureError, match="the rest was added by a call that failed"):
            model(torch.tensor([[3]]), past_key_values=cache)
        model(torch.tensor([IDS[:3]]))
    assert [len(trace.only_stack.tokens) for trace in found.traces] == [5, len(IDS), 3]
