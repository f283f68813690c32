"""Pictures of circuits of paths: layers in the order in which they ran."""

import json

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from meeting import problems

import gattn
from gattn.analysis.circuits.paths.path_circuits import PathCircuit

QUIET = {"progress": False, "random": 0}


def made(heads, paths, order=()):
    """Make the circuit of (stack, from, to, side, loss)."""
    rows = [
        [stack, int(to.split(".")[0]), int(to.split(".")[1]), side, part, 1, loss]
        for stack, part, to, side, loss in paths
    ]
    fields = ["stack", "layer", "head", "side", "part"]
    found = PathCircuit(
        kind="paths", metric="logit of 'x'", ablation='"zero"', notes="", computed_from="",
        full=1.0, empty=0.0, keep=0.9, runs=9, seconds=0.1, random="[]", positions="[]",
        edges=len(rows), all_edges=99, faithfulness=0.9, completeness=1.0,
        heads=json.dumps(heads), order=json.dumps(order),
        units=json.dumps({"fields": fields, "rows": rows}),
    )  # fmt: skip
    for stack, part, to, side, loss in paths:
        ends = [f"{stack} {name}" if len(heads) > 1 else name for name in (part, to)]
        for end, name in zip(ends, (part, to), strict=True):
            found.add_node(end, **told(name))
        found.add_edge(*ends, **{f"loss_{side}": loss})
    return found


def told(name):
    if name == "embedding":
        return {"kind": "embedding"}
    if name.startswith("mlp"):
        return {"kind": "mlp", "layer": int(name[4:])}
    layer, head = map(int, name.split("."))
    return {"kind": "head", "layer": layer, "head": head}


PATHS = [
    ("decoder", "0.1", "1.0", "key", 0.8),
    ("encoder", "0.0", "1.1", "value", 0.5),
    ("encoder", "embedding", "0.0", "query", 0.3),
]


def test_layers_lie_in_the_order_in_which_they_ran():
    heads = {"decoder": [2, 2], "encoder": [2, 2]}
    order = [["encoder", 0], ["encoder", 1], ["decoder", 0], ["cross", 0], ["decoder", 1]]
    ax = made(heads, PATHS, order).draw()
    said = ["encoder · input", "0", "1", "decoder · 0", "1"]
    assert [text.get_text() for text in ax.get_yticklabels()] == said
    assert ax.get_yticks().tolist() == [0, 1, 2, 3, 4]
    turns = [["encoder", 0], ["decoder", 0], ["encoder", 1], ["decoder", 1]]
    ax = made(heads, PATHS, turns).draw()
    said = ["encoder · input", "0", "decoder · 0", "encoder · 1", "decoder · 1"]
    assert [text.get_text() for text in ax.get_yticklabels()] == said
    names = {text.get_text(): text.xy[1] for text in ax.texts if hasattr(text, "xy")}
    assert names["embedding"] == 0
    assert {text for text in names if "." in text} >= {"0.0", "1.1", "0.1", "1.0"}
    assert not [text for text in names if text.startswith(("encoder ", "decoder "))]


def test_without_a_known_order_stacks_lie_above_each_other():
    heads = {"decoder": [2, 2], "encoder": [2, 2]}
    said = ["decoder · 0", "1", "encoder · input", "0", "1"]
    for order in ([], [["encoder", 0]]):
        ax = made(heads, PATHS, order).draw()
        assert [text.get_text() for text in ax.get_yticklabels()] == said


@pytest.mark.parametrize("size", [(3.3, 2.0), (3.3, 2.4), (6.75, 2.2)])
def test_numbers_of_many_layers_and_long_names_have_room(size):
    names = ["model.decoder.layers.self_attn", "model.encoder.layers.self_attn"]
    heads = {name: [4] * 12 for name in names}
    paths = [(name, "0.1", "11.0", "key", 0.8) for name in names]
    order = [[name, n] for name in names[::-1] for n in range(12)]
    with mpl.rc_context({"font.size": 7}):
        figure = Figure(size, layout="constrained")
        ax = made(heads, paths, order).draw(ax=figure.add_subplot())
        assert not problems(figure)
    (first, *_, last) = [text.get_text() for text in ax.get_yticklabels()]
    assert "encoder" in first
    assert "encoder" not in last


@pytest.mark.slow
def test_a_circuit_of_paths_knows_in_which_order_layers_ran():
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=40, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0
    )
    config._attn_implementation = "eager"
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    ids = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "decoder_input_ids": torch.tensor([[2, 9]])}

    def run():
        return model(**ids, use_cache=False).logits[0, -1, 3]

    found = gattn.circuit(run, model, units="paths", **QUIET)
    own = [place for place in json.loads(found.graph["order"]) if place[0] in found.stacks]
    encoder, decoder = sorted(found.stacks, key=lambda name: "decoder" in name)
    assert own == [[encoder, 0], [encoder, 1], [decoder, 0], [decoder, 1]]
    first, *_ = [text.get_text() for text in found.draw().get_yticklabels()]
    assert "encoder" in first


def test_names_of_nodes_have_a_ground_of_the_figures_colour():
    colours = {"text.color": "white", "figure.facecolor": "#102030", "axes.facecolor": "#102030"}
    with mpl.rc_context(colours):
        ax = made({"decoder": [2, 2]}, [("decoder", "0.1", "1.0", "key", 0.8)]).draw()
    names = [text for text in ax.texts if text.get_bbox_patch() is not None]
    assert names
    assert {to_hex(text.get_bbox_patch().get_facecolor()) for text in names} == {"#102030"}


def on_curve(ends):
    at = np.linspace(0, 1, 200)[:, None]
    start, middle, end = ends
    return (1 - at) ** 2 * start + 2 * at * (1 - at) * middle + at**2 * end


def apart(points, others):
    return np.hypot(*(points[:, None] - others).transpose(2, 0, 1)).min(1)


def test_no_path_runs_along_another_or_over_a_head():
    paths = [
        ("m", "1.1", "2.0", "key", 0.8),
        ("m", "1.1", "2.1", "key", 0.7),
        ("m", "0.0", "2.1", "value", 0.9),
        ("m", "0.1", "2.0", "value", 0.5),
        ("m", "0.0", "2.0", "key", 0.3),
    ]
    ax = made({"m": [2, 2, 2]}, paths).draw()
    (lines,) = (one for one in ax.collections if one.get_gid() == "gattn-edges")
    found = [on_curve(path.vertices) for path in lines.get_paths()]
    heads = np.array([(x, y) for x in range(2) for y in range(3)])
    for n, one in enumerate(found):
        middle = one[(np.hypot(*(one - one[0]).T) > 0.25) & (np.hypot(*(one - one[-1]).T) > 0.25)]
        assert apart(middle, heads).min() > 0.1
        for other in found[:n]:
            assert (apart(middle, other) < 0.04).mean() < 0.2
