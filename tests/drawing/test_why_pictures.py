"""The largest pairs of parts of scores, as paths in the text."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from seen import caption

import gattn
from gattn.drawing import draw_why
from gattn.errors import SelectionError

LAMP = "The river tall green lamp river tall green lamp river tall green"
SIZES = [None, (3.3, 2.8), (6.75, 3.5)]


@pytest.fixture(scope="module")
def found():
    return gattn.why(LAMP, layer=2, head=0, query=-1, key=" lamp")


def drawn(found, inches=None, **options):
    if inches is None:
        return found.draw_paths(**options)
    figure = plt.figure(figsize=inches, layout="constrained")
    return draw_why(found, ax=figure.add_subplot(), **options)


def curves(ax):
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    return [path.vertices for path in lines.get_paths()], lines.get_linewidths()


def boxes(ax):
    """All texts with where they are in the figure, in pixels."""
    ax.figure.canvas.draw()
    key = ax.get_legend()
    texts = [*ax.texts, ax.title, ax.yaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels()]
    texts += [] if key is None else [key.get_title(), *key.get_texts()]
    return [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text()]


@pytest.mark.parametrize("inches", SIZES)
def test_each_pair_is_a_curve_from_the_keys_part_to_the_querys(found, inches):
    ax = drawn(found, inches, most=3)
    rows = {label.get_text(): n for n, label in enumerate(ax.get_yticklabels())}
    expected = {}
    for key in (5, 9):
        table = gattn.why(LAMP, layer=2, head=0, query=-1, key=key).table().head(3)
        for row in table.itertuples():
            expected[key, rows[row.key_part], 12, rows[row.query_part]] = row.score
    paths, widths = curves(ax)
    ends = [tuple(np.round([*path[0], *path[-1]]).astype(int)) for path in paths]
    assert set(ends) == set(expected)
    by_width = sorted(zip(widths, ends, strict=True))
    assert [end for _, end in by_width] == sorted(expected, key=lambda end: abs(expected[end]))
    assert list(rows) == [w for w in map(str, found.writers) if w in rows]
    numbers = {t.get_text() for t in ax.texts if t.get_gid() == "gattn-heads"}
    best = {max(v for (key, *_), v in expected.items() if key == at) for at in (5, 9)}
    assert numbers == {f"{value:.2f}" for value in best}


@pytest.mark.parametrize("inches", SIZES)
def test_no_text_is_cut_and_none_meets_another(found, inches):
    ax = drawn(found, inches)
    figure = ax.figure.bbox
    some = boxes(ax)
    assert len(some) > 20
    for text, box in some:
        assert figure.padded(1).containsx(box.x0), text
        assert figure.padded(1).containsx(box.x1), text
        assert figure.padded(1).containsy(box.y0), text
        assert figure.padded(1).containsy(box.y1), text
    upright = [one for one in some if one[0] not in map(str, found.tokens)]
    for n, (text, box) in enumerate(upright):
        for other, there in upright[n + 1 :]:
            shrunk = there.shrunk(0.9, 0.9)
            assert not box.overlaps(shrunk), (text, other)


def test_a_dotted_line_leads_from_what_a_head_read_to_where_it_wrote():
    split = gattn.why(LAMP, layer=2, head=0, query=-1, key=" lamp", split="1.1")
    ax = draw_why(split, most=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.0", "1.1", "mlp 1"]
    lines = [line.get_xydata().tolist() for line in ax.lines if len(line.get_xdata()) == 2]
    assert sorted(lines) == [[[4, 1], [5, 1]], [[8, 1], [9, 1]]]
    assert "dotted lines lead from the token that was read" in caption(ax)
    assert "dotted" not in caption(draw_why(gattn.why(LAMP, layer=2, head=0, query=-1, key=9)))


def test_parts_stand_in_the_order_in_which_they_wrote():
    parts = ["embed_tokens", "0.3", "bias 0", "mlp 0", "1.1", "bias 1", "mlp 1", "bias"]
    found = gattn.why(LAMP, layer=2, head=0, query=-1)
    ax = draw_why(found, most=196, edges=1)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert [name for name in names if name in parts] == parts
    assert len(names) == 14


def test_of_many_edges_those_with_the_most_attention_are_drawn():
    whole = gattn.why(LAMP, layer=1, head=1)
    ax = draw_why(whole, edges=2, most=1)
    best = sorted(
        ((whole.attention[i, j], j, i) for i in range(13) for j in range(i + 1)), reverse=True
    )
    ends = {(round(path[0][0]), round(path[-1][0])) for path in curves(ax)[0]}
    assert ends == {(j, i) for _, j, i in best[:2]}
    assert "2 of 91 edges, those with the most attention" in caption(ax)


def test_the_caption_says_which_share_of_the_score_is_drawn(found):
    shares = []
    for key in (5, 9):
        one = gattn.why(LAMP, layer=2, head=0, query=-1, key=key)
        table = one.table().head(3)
        assert table["score"].sum() / float(one.scores[12, key]) == pytest.approx(
            table["share"].sum(), rel=1e-5
        )
        shares.append(100 * table["share"].sum())
        said = f"3 of {len(one.writers) ** 2} pairs, {shares[-1]:.0f} % of the score"
        assert said in caption(drawn(one, most=3))
    ends = " to ".join(dict.fromkeys(f"{share:.0f} %" for share in sorted(shares)))
    assert f"3 of {len(found.writers) ** 2} pairs of each edge, {ends} of its score" in caption(
        drawn(found, most=3)
    )


def test_of_a_long_text_tokens_on_a_path_are_shown():
    ax = draw_why(gattn.why(" ".join([LAMP] * 4), layer=2, head=0, query=-1), edges=2)
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert 2 <= len(names) <= 3
    assert names[-1] == "48 green"
    assert all(name.split()[1] == "lamp" for name in names[:-1])


def test_a_token_that_reads_itself_and_scores_below_zero():
    ax = draw_why(gattn.why(LAMP, layer=0, head=1, query=2, key=2))
    paths, _ = curves(ax)
    assert all(np.ptp(path[:, 0]) > 0.5 for path in paths)
    assert "−" in " ".join(text.get_text() for text in ax.get_legend().get_texts())


def test_names_of_parts_are_text():
    names = "$x^2$ <b>", "a" * 200, "b\nc\u202ed"
    generator = torch.Generator().manual_seed(0)
    parts = {name: torch.randn(13, 128, generator=generator) for name in names}
    ax = draw_why(gattn.why(LAMP, layer=2, head=0, query=-1, key=9, parts=parts), most=9)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert "$x^2$ <b>" in names
    assert "b↵c U+202E d" in names
    assert max(map(len, names)) < 60
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", ["most", "edges"])
def test_no_pairs_and_no_edges_are_refused(found, name):
    with pytest.raises(SelectionError, match=name):
        draw_why(found, **{name: 0})
