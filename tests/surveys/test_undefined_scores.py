"""Scores that are not defined in any text are null columns, not missing ones."""

import gattn


def test_a_survey_of_texts_without_repeats_has_the_induction_column(tmp_path, embedded):
    texts = ["A tall lamp", "One green river"]
    survey = gattn.survey(texts, embedded, out=tmp_path, progress=False)
    found = survey.sql("select count(*) n, count(induction) known, avg(induction) mean from heads")
    assert found["n"].item() == 32
    assert found["known"].item() == 0
    assert found["mean"].isna().all()
    (row,) = survey.sql("select avg(entropy) e from heads")["e"]
    assert row > 0
