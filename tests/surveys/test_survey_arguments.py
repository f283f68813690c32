"""Arguments of surveys that cannot be right are refused, whatever their type."""

import numpy as np
import pandas as pd
import pytest

import gattn
from gattn.errors import OptionError, SelectionError


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    folder = tmp_path_factory.mktemp("surveys") / "survey"
    return gattn.survey(["The dog chased", "A cat"], out=folder, progress=False)


@pytest.mark.parametrize("wrong", ["a", 0.5, None, True, np.bool_(True), [0]])
def test_texts_layers_and_heads_are_whole_numbers(survey, wrong):
    with pytest.raises(SelectionError, match="text_id must be a whole number, not"):
        survey.trace(wrong)
    for place in ((wrong, 0, 0), (0, wrong, 0), (0, 0, wrong)):
        with pytest.raises(SelectionError, match="must be a whole number, not"):
            survey.graph(*place)
    if wrong is not None:
        for name in ("text_id", "layer", "head"):
            with pytest.raises(SelectionError, match=f"{name} must be a whole number, not"):
                survey.edges(**{name: wrong})


def test_numbers_of_numpy_and_numbers_that_no_column_holds(survey):
    expected = survey.edges(text_id=1, layer=2, head=3)
    assert len(expected)
    found = survey.edges(text_id=np.int64(1), layer=np.uint8(2), head=np.int32(3))
    pd.testing.assert_frame_equal(found, expected)
    assert survey.graph(np.int64(1), np.int64(2), np.int64(3)).graph.num_edges == len(expected)
    for number in (-1, 10**30, -(10**30)):
        for name in ("text_id", "layer", "head"):
            assert not len(survey.edges(**{name: number}))
        with pytest.raises(SelectionError, match="has no head at"):
            survey.graph(0, number, 0)
        with pytest.raises(SelectionError, match=f"Text {number} was not chosen"):
            survey.trace(number)


def test_stacks_queries_and_tables_are_texts(survey):
    for call, message in (
        (lambda: survey.edges(stack=3), "stack must be the name of one"),
        (lambda: survey.graph(0, 0, 0, stack=3), "stack must be the name of one"),
        (lambda: survey.sql(3), "query as text, not 3"),
        (lambda: survey.polars(["edges"]), "No table"),
    ):
        with pytest.raises(SelectionError, match=message):
            call()


def test_surveys_are_compared_with_surveys(survey):
    for wrong in ("x", None, survey.folder, survey.heads):
        with pytest.raises(SelectionError, match=r"must be a Survey, as gattn\.open_survey"):
            survey.compare(wrong, "induction")
    with pytest.raises(OptionError, match=r"compare\(\) has no option tests=; did you mean test="):
        survey.compare(survey, "entropy", tests="t")
    with pytest.raises(OptionError, match=r"statistics\(\) has no option foo=: it has confidence"):
        survey.statistics("entropy", foo=3)
