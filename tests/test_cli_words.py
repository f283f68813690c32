"""The command line answers in its own terms."""

import pytest

from gattn.cli import command, main

EFFECT = ["effect", "The dog chased the", "--cut", "1.1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*EFFECT, "--metric", "probability"], "'probability' takes target: pass --target"),
        ([*EFFECT, "--metric", "kl", "--target", " cat"],
         "got --target ' cat'; --metric 'probability' takes "
         "target, --metric 'logit_difference'"),
        (["compare", "The dog", "--cut", "9.1"], "Cut(layer=9, head=1) had nothing to edit"),
        (["flow", "A dog and a dog", "--query", "dog"], "query is one token, but 'dog' is at the "
         "positions 2, 5: pass one of these. `gattn tokens TEXT` lists all tokens."),
        (["flow", "A dog and a dog", "--query", "cat"], "No query 'cat'; the"),
    ],
)  # fmt: skip
def test_errors_name_options(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_only_options_are_written_as_options():
    options = {"target": None, "layer": 1, "text": "", "num_gpus": 1}
    for message, expected in (
        ("pass target=.", "pass --target."),
        ("num_gpus='x' and target=\"y\"", "--num-gpus 'x' and --target \"y\""),
        ("Cut(layer=1, target='x') and layer= too", "Cut(layer=1, target='x') and --layer too"),
        ("text= and layer=[1] and layer=1", "text= and layer=[1] and layer=1"),
        ("my_target= and a.target=", "my_target= and a.target="),
    ):
        assert command._in_options(message, options) == expected


def test_warnings_are_one_line(tmp_path, capsys):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        path = tmp_path / "dog.svg"
        assert main(["draw", "The dog", "--keep", "threshold:2", "-o", str(path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("gattn: warning: Threshold(2.0) keeps no")]
    assert not [line for line in lines if "UserWarning" in line]
