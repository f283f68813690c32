"""Effects of edits on a model whose attention is dense algebra of our own."""

import torch
import transformers
from dense_models import Dense

import gattn

IDS = [5, 17, 42, 17, 8, 33]
OTHERS = [44, 2, 9, 30]
PLACE = ["stack", "layer", "head", "query", "key"]
TOKENS = {"target": 7, "other": 11}
DENSE = Dense()


def inputs_of(model):
    decoder = {"decoder_input_ids": OTHERS} if model.config.is_encoder_decoder else {}
    return {"input_ids": IDS} | decoder


def dense_logits(model, inputs, change=None):
    """Run a model on dense attention, without gattn."""
    batch = {name: torch.tensor(values)[None] for name, values in inputs.items()}
    return DENSE.run(model, batch | {"use_cache": False}, after=change)[0]


def cutting(*cuts, share=1.0):
    """Cut edges (stack, layer, head, query, key, renormalize), or move a share of the way there."""

    def change(call, attention):
        attention = attention.clone()
        for *place, head, query, key, renormalize in cuts:
            if tuple(place) != call.place:
                continue
            row = (0, head, query)
            cut = attention[row].clone()
            if renormalize:
                fewer = call.scores.clone()
                fewer[(*row, key)] = -torch.inf
                cut = call.share(fewer)[row]
            cut[key] = 0
            attention[row] = (1 - share) * attention[row] + share * cut
        return attention

    return change


def cutting_together(cuts):
    """Cut edges (stack, layer, head, query, key, renormalize) before or after normalizing."""

    def change(call, attention):
        own = [cut for cut in cuts if tuple(cut[:2]) == call.place]
        scores, attention = call.scores.clone(), attention.clone()
        for *_, head, query, key, renormalize in own:
            (scores if renormalize else attention)[0, head, query, key] = (
                -torch.inf if renormalize else 0.0
            )
        return call.share(scores) if own and own[0][-1] else attention

    return change


def difference(logits, position=-1):
    return float(logits[position, TOKENS["target"]] - logits[position, TOKENS["other"]])


def double(tiny, name):
    """Build a model that computes in float64 throughout: its norms in float32 are replaced."""
    model = tiny(name, "eager" if name == "gpt-oss" else "sdpa", torch.float64)
    if name == "gpt-oss":
        model.set_experts_implementation("eager")
    return with_own_norms(model)


def with_own_norms(model):
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")):
            module.forward = normed(module)
    return model


def normed(module):
    return lambda x: module.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def headed(tiny, kind, name="bert", **options):
    """Build a model of another kind, with random weights, the same ones each time."""
    config = tiny(name).config
    for option, value in options.items():
        setattr(config, option, value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, kind)(config).eval()


def estimates(model, **options):
    given = {"sample": 0, "progress": False} | TOKENS | options
    return gattn.estimate(inputs_of(model), model, **given)
