import numpy as np
import pytest
import torch

import gattn
from gattn import TokenGraph
from gattn.errors import ShapeError

TOKENS = ["List", "new", "ideas", "for", "a", "song"]
X = np.array(
    [
        [0.1, -0.2, 0.1, 0.2],
        [0.8, 0.8, -0.9, 0.5],
        [-0.6, 0.4, 0.5, -0.9],
        [0.9, -0.7, 0.8, 0.7],
        [0.4, 0.3, 0.4, 0.4],
        [0.8, 0.2, 0.9, -0.2],
    ]
)
W_Q = np.array(
    [[3.4, -2.1, 0.8, 1.9], [-1.2, 0.5, 3.7, -0.8], [2.9, 1.1, -3.4, 0.6], [0.7, 2.8, 1.3, -2.5]]
)
W_K, W_V = np.random.default_rng(0).normal(size=(2, 4, 4))


def softmax(rows):
    powers = np.exp(rows - rows.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_queries_are_the_printed_ones():
    q = gattn.steps(X, W_Q, W_K, W_V, tokens=TOKENS)["q"]
    np.testing.assert_allclose(q.loc["List"], [1.01, 0.36, -0.74, -0.09], atol=1e-9)
    np.testing.assert_allclose(q.loc["new"], [-0.50, -0.87, 7.31, -0.91], atol=1e-9)


def test_every_step_of_a_decoder_head():
    steps = gattn.steps(X, W_Q, W_K, W_V, TokenGraph.causal(6), tokens=TOKENS)
    q, k, v = X @ W_Q, X @ W_K, X @ W_V
    scaled = q @ k.T / 2
    masked = np.where(np.tri(6, dtype=bool), scaled, -np.inf)
    attention = softmax(masked)
    expected = {"x": X, "w_q": W_Q, "w_k": W_K, "w_v": W_V, "q": q, "k": k, "v": v}
    expected |= {"scores": q @ k.T, "scaled": scaled, "masked": masked}
    expected |= {"attention": attention, "output": attention @ v}
    assert list(steps) == list(expected)
    for name, table in expected.items():
        np.testing.assert_allclose(steps[name], table, atol=1e-12, err_msg=name)
    assert list(steps["attention"].columns) == list(steps["attention"].index) == TOKENS
    np.testing.assert_allclose(steps.head.to_dense(), attention, atol=1e-12)
    np.testing.assert_allclose(steps.head.score, scaled[np.tri(6, dtype=bool)], atol=1e-12)


@pytest.mark.parametrize("kind", ["booleans", "numbers", "graph"])
def test_masks_of_every_kind_agree(kind):
    allowed = np.tri(6, dtype=bool)
    masks = {
        "booleans": allowed,
        "numbers": np.where(allowed, 0.0, -np.inf),
        "graph": TokenGraph.causal(6),
    }
    expected = gattn.steps(X, W_Q, W_K, W_V, TokenGraph.from_mask(torch.from_numpy(allowed)))
    found = gattn.steps(X, W_Q, W_K, W_V, masks[kind])
    np.testing.assert_allclose(found["output"], expected["output"], atol=1e-14)


def test_tables_show_themselves():
    steps = gattn.steps(X, W_Q, W_K, W_V, tokens=["<b>", "new", "ideas", "for", "a", "song"])
    assert "scaled = scores / √d" in repr(steps)
    assert "&lt;b&gt;" in steps._repr_html_()
    assert "<b>new" not in steps._repr_html_()


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ShapeError, match=r"w_q \(3, 4\)"):
        gattn.steps(X, W_Q[:3], W_K, W_V)
    with pytest.raises(ShapeError, match="one dim"):
        gattn.steps(X, W_Q[:, :3], W_K, W_V)
    with pytest.raises(ShapeError, match="5 x 5, but there are 6"):
        gattn.steps(X, W_Q, W_K, W_V, TokenGraph.causal(5))
    with pytest.raises(ShapeError, match="6 tokens"):
        gattn.steps(X, W_Q, W_K, W_V, tokens=["one"])


def test_parameters_are_numbers_too():
    w_q = torch.nn.Parameter(torch.from_numpy(W_Q))
    x = torch.from_numpy(X).requires_grad_()
    found = gattn.steps(x, w_q, W_K.tolist(), torch.from_numpy(W_V), TokenGraph.causal(6))
    expected = gattn.steps(X, W_Q, W_K, W_V, np.tri(6, dtype=bool))
    for name, table in expected.items():
        np.testing.assert_allclose(found[name], table, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("wrong", ["a", [[1.0, 2.0], [3.0]], None, [["a"]]], ids=repr)
def test_what_is_no_array_is_named(wrong):
    for place, name in enumerate(["x", "w_q", "w_k", "w_v", "mask"]):
        given = [X, W_Q, W_K, W_V, TokenGraph.causal(6)]
        given[place] = wrong
        if name != "mask" or wrong is not None:
            with pytest.raises(ShapeError, match=f"{name} must be an array of numbers"):
                gattn.steps(*given)
