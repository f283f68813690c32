"""Surveys read back: traces as they were captured, tables as pandas has them."""

import json
import pickle
import shutil

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from packaging.version import Version
from same import assert_same_head, assert_same_trace

import gattn
from gattn.analysis import head_table
from gattn.errors import DependencyError, FileError, SelectionError
from gattn.surveys.ask import sql
from gattn.surveys.ask.comparison import compare_heads
from gattn.surveys.ask.statistics import head_statistics
from gattn.surveys.inputs.inputs import read_inputs
from gattn.surveys.store import queue
from gattn.surveys.store.checksums import sign
from gattn.surveys.store.parts import part_path
from gattn.surveys.store.tables import TABLES

TEXTS = [
    "The dog chased the cat, and the cat chased the dog",
    "The river",
    "nul \x00 and \U0001f600 and ‮ \"quotes\" 'too'; drop table heads; --",
    "A tall green lamp stood by the river; a tall green lamp\n\tstood",
    "dog",
    "one two three one two three one two three",
]
HOSTILE = "a [b] c*? 'quo\"ted' x=1 %s é"
IDS = [[5, 9, 7, 9, 7, 12, 9], [4], [8, 8, 30, 8, 8]]


def write(out, texts=TEXTS, model=None, **options):
    """Write a survey whose heads have the scores of one analysis; most take long."""
    options = {"keep": gattn.All(), "most_tokens": 1, "analyses": [head_table]} | options
    return gattn.survey(texts, model, out=out, progress=False, **options)


@pytest.fixture(scope="module")
def loaded():
    return gattn.load_model()


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    """Two parts, one of which has failures; the folder's name is hostile."""
    folder = tmp_path_factory.mktemp("surveys") / HOSTILE
    texts = [*TEXTS, "", *(f"the dog number {n} and the cat" for n in range(80))]
    return write(folder, texts, keep=gattn.Threshold(0.02), most_tokens=4096)


# Traces


@pytest.mark.parametrize(
    "keep",
    [gattn.All(), gattn.Threshold(0.05), gattn.TopK(2), gattn.TopMass(0.9), gattn.Threshold(2.0)],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Threshold.2.0. keeps no edge")
def test_traces_are_those_that_were_captured(tmp_path, loaded, keep):
    survey = write(tmp_path / "survey", keep=keep, scores=True, contributions=True, analyses=[])
    assert len(survey) == len(TEXTS)
    for text_id, text in enumerate(TEXTS):
        captured = gattn.capture(text, *loaded, keep=keep, scores=True, contributions=True)
        assert_same_trace(survey.trace(text_id), captured)


def test_a_rule_is_still_a_rule_where_all_edges_were_kept(tmp_path, loaded):
    survey = write(tmp_path / "survey", TEXTS[:1])
    captured = gattn.capture(TEXTS[0], *loaded)
    assert survey.trace(0)[1, 1].graph.rule == captured[1, 1].graph.rule
    assert "Causal" in type(captured[1, 1].graph.rule).__name__


@pytest.mark.parametrize("name", ["gpt-oss", "llama", "mistral", "gemma2", "gpt2"])
def test_sinks_grouped_queries_and_windows_come_back(tmp_path, tiny, name):
    model = tiny(name, "eager")
    for keep in (gattn.All(), gattn.TopK(2)):
        survey = write(
            tmp_path / f"{keep}",
            IDS,
            model,
            keep=keep,
            scores=True,
            contributions="value",
            analyses=[],
        )
        for text_id, ids in enumerate(IDS):
            captured = gattn.capture(
                {"input_ids": torch.tensor([ids])},
                model,
                keep=keep,
                scores=True,
                contributions="value",
            )
            assert_same_trace(survey.trace(text_id), captured)
    heads = list(survey.trace(0).heads())
    assert all((head.sink is not None) == (name == "gpt-oss") for head in heads)
    assert all((head.key_value_head is None) == (name == "gpt2") for head in heads)
    assert all(head.value_norm is not None for head in heads)


def test_stacks_are_listed_in_the_order_in_which_they_ran(tmp_path, tiny):
    rows = [{"input_ids": ids, "decoder_input_ids": [1, 7, 5, 6][: len(ids)]} for ids in IDS]
    survey = write(tmp_path / "survey", rows, tiny("t5"), analyses=[head_table])
    ran = ["encoder", "decoder", "cross"]
    assert list(survey.trace(0).stacks) == ran
    heads, found = survey.heads, survey.statistics("entropy")
    for table in (heads, survey.edges(), survey.edges(tokens=True), found.reset_index()):
        assert list(dict.fromkeys(table["stack"])) == ran
    plain, named = survey.edges(), survey.edges(tokens=True)
    pd.testing.assert_frame_equal(named[plain.columns], plain)
    assert list(found.index) == sorted(found.index, key=lambda one: (ran.index(one[0]), *one[1:]))
    for place, mean in found["mean"].items():
        own = (heads[["stack", "layer", "head"]] == list(place)).all(axis=1)
        assert mean == pytest.approx(heads.loc[own, "entropy"].mean())
    upside_down = heads.sort_values("stack", kind="stable")
    change = gattn.surveys.compare_heads(heads, upside_down, "entropy")
    np.testing.assert_array_equal(change["difference"], 0.0)
    np.testing.assert_array_equal(change["before"], found["mean"])


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_stacks_of_an_encoder_and_a_decoder_come_back(tmp_path, tiny, name):
    model = tiny(name)
    rows = [{"input_ids": ids, "decoder_input_ids": [1, 7, 5, 6][: len(ids)]} for ids in IDS]
    survey = write(tmp_path / "survey", rows, model, keep=gattn.Threshold(0.1), analyses=[])
    for text_id, row in enumerate(rows):
        inputs = {key: torch.tensor([ids]) for key, ids in row.items()}
        captured = gattn.capture(inputs, model, keep=gattn.Threshold(0.1))
        assert sorted(captured.stacks) == ["cross", "decoder", "encoder"]
        assert_same_trace(survey.trace(text_id), captured)
        for stack in captured.stacks:
            assert_same_head(survey.graph(text_id, 1, 2, stack=stack), captured[stack][1, 2])
    with pytest.raises(SelectionError, match="stacks"):
        survey.graph(0, 1, 2)
    edges = survey.edges(text_id=0, stack="cross", layer=1, head=2, tokens=True)
    listed = survey.trace(0)["cross"][1, 2].to_pandas()
    for column in listed.columns:
        assert edges[column].tolist() == listed[column].tolist(), column
    whole = survey.trace(0)
    named = {name: [f"{name} {n}" for n in range(7)] for name in whole.stacks}
    named["decoder"], answer = named["decoder"][:4], ["w", "x", "y", "z"]
    read = gattn.AttentionTrace.from_pandas(
        survey.edges(text_id=0), named, query_tokens={"cross": answer}
    )
    for name, stack in whole.stacks.items():
        assert sorted(read[name]) == sorted(stack)
        for place, head in stack.items():
            np.testing.assert_array_equal(read[name][place].to_dense(), head.to_dense())


def test_words_and_special_tokens_come_back(tmp_path, tiny, tokenizer):
    model = tiny("bert")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = ["The dog chased a fish, walking.", "dog"]
    survey = write(tmp_path / "survey", texts, tmp_path / "model", keep=gattn.TopK(3))
    for text_id, text in enumerate(texts):
        captured = gattn.capture(text, tmp_path / "model", keep=gattn.TopK(3))
        assert captured[0, 0].words[0] is None
        assert captured[0, 0].words[1] == 0
        assert_same_trace(survey.trace(text_id), captured)


def test_one_graph_is_that_of_the_trace(survey):
    trace = survey.trace(3)
    for place, head in trace.only_stack.items():
        assert_same_head(survey.graph(3, *place), head)
        assert_same_head(survey.graph(3, *place, stack="decoder"), head)
    for where in ({"layer": 9, "head": 0}, {"layer": 0, "head": 0, "stack": "encoder"}):
        with pytest.raises(SelectionError, match="no head at"):
            survey.graph(3, **where)


def test_all_traces_are_walked_in_order(survey):
    walked = list(survey.traces())
    assert [text_id for text_id, _ in walked] == [*range(6), *range(7, 87)]
    for text_id, trace in walked[::9]:
        assert_same_trace(trace, survey.trace(text_id))


def test_a_text_that_is_not_there_says_why(survey, tmp_path):
    with pytest.raises(SelectionError, match=r"Text 6 could not be captured: .*empty"):
        survey.trace(6)
    for text_id in (-1, 87, 2**63, 2**200):
        with pytest.raises(SelectionError, match=f"Text {text_id} was not chosen"):
            survey.trace(text_id)
    part = write(tmp_path / "survey", TEXTS, limit=2)
    with pytest.raises(SelectionError, match="Text 4 was not chosen"):
        part.trace(4)


def test_what_is_still_to_do_says_so(survey, tmp_path):
    folder = tmp_path / "survey"
    shutil.copytree(survey.folder, folder)
    second = queue.cut(iter(read_inputs([*TEXTS, *["x"] * 81])))
    next(second)
    first = next(second)[0].text_id
    (folder / "inputs").mkdir(exist_ok=True)
    pq.write_table(
        pa.table({"text_id": list(range(first, 87)), "text": ["x"] * (87 - first)}),
        folder / "inputs" / f"{first:09d}.parquet",
    )
    sign(folder / "inputs" / f"{first:09d}.parquet")
    (folder / "texts" / f"{first:09d}.parquet").unlink()
    stopped = gattn.open_survey(folder)
    assert not stopped.is_complete
    assert survey.is_complete
    with pytest.raises(SelectionError, match=f"Text {first + 1} is still to do"):
        stopped.trace(first + 1)
    # Files of a part without its texts/ are not seen, whoever asks.
    assert len(stopped) == first - 1
    for table in ("heads", "edges", "queries", "tokens"):
        assert stopped.sql(f"select max(text_id) from {table}").iloc[0, 0] == first - 1
        assert stopped.polars(table).select(pl.col("text_id").max()).collect().item() == first - 1
    assert [text_id for text_id, _ in stopped.traces()][-1] == first - 1
    assert stopped.heads["text_id"].max() == first - 1
    assert stopped.edges(layer=0)["text_id"].max() == first - 1
    assert f"{87 - first} to do" in repr(stopped)


# Tables


def test_it_says_what_it_is(survey):
    assert len(survey) == 86
    assert survey.is_complete
    written = repr(survey)
    assert "embedded: 86 texts, 1 failed; keep=Threshold(0.02)" in written
    assert "to do" not in written
    assert pickle.loads(pickle.dumps(survey)) == survey


def test_tables_are_those_of_the_files(survey):
    for name in ("heads", "texts", "failures"):
        files = [
            pq.read_table(p, partitioning=None) for p in sorted((survey.folder / name).iterdir())
        ]
        expected = pa.concat_tables(files, promote_options="permissive").to_pandas()
        found = getattr(survey, name)
        assert list(found.columns) == list(expected.columns)
        if name == "texts":
            assert found.pop("edits").isna().all()
            assert expected.pop("edits").isna().all()
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    assert survey.texts["text"].tolist()[:6] == TEXTS
    assert survey.texts["text_id"].tolist() == [*range(6), *range(7, 87)]
    assert survey.failures["text_id"].tolist() == [6]
    assert "empty" in survey.failures["reason"][0]


def test_heads_have_the_scores_of_each_trace(survey):
    heads = survey.heads.set_index(["text_id", "layer", "head"])
    for text_id in (0, 3, 70):
        trace = survey.trace(text_id)
        table = head_table(gattn.capture(trace.text)).droplevel("stack")  # all edges
        for column in ("entropy", "induction", "previous_token"):
            found = heads.loc[text_id, column]
            np.testing.assert_allclose(found, table[column], atol=1e-5)
        kept = [head.share_kept for head in trace.heads()]
        np.testing.assert_allclose(heads.loc[text_id, "kept"], kept, rtol=1e-6)


def test_edges_are_those_of_the_graphs(survey):
    chosen = survey.edges(layer=2, head=1)
    wanted = ["query", "key", "attention"]
    graphs = {text_id: trace[2, 1].to_pandas()[wanted] for text_id, trace in survey.traces()}
    expected = pd.concat(graphs, names=["text_id", None]).reset_index(level=0)
    pd.testing.assert_frame_equal(
        chosen[["text_id", *wanted]], expected.reset_index(drop=True), check_dtype=False
    )
    assert set(chosen["stack"]) == {"decoder"}
    assert (chosen["attention"].dtype, chosen["layer"].dtype) == (np.float32, np.int32)
    total = sum(head.graph.num_edges for _, trace in survey.traces() for head in trace.heads())
    assert len(survey.edges()) == total == survey.texts["num_edges"].sum()


def test_edges_of_a_text_have_tokens(survey):
    for text_id in (2, 86):
        edges = survey.edges(text_id=text_id, layer=1, head=1, tokens=True)
        listed = survey.trace(text_id)[1, 1].to_pandas()
        for column in listed.columns:
            assert edges[column].tolist() == listed[column].tolist(), column
    assert len(survey.edges(text_id=6)) == len(survey.edges(text_id=1000)) == 0
    assert len(survey.edges(text_id=-1)) == len(survey.edges(stack="x' or 'a'='a")) == 0
    both = survey.edges(head=3, tokens=True)
    assert len(both) == len(survey.edges(head=3))
    pd.testing.assert_frame_equal(both[survey.edges(head=3).columns], survey.edges(head=3))


# SQL


def _of_long_texts(trace):
    is_long = len(trace.tokens) > 4
    heads = head_table(trace)[["entropy"]]
    heads["known"] = np.where(is_long, heads["entropy"], np.nan)
    heads["said"] = "long" if is_long else None
    return heads


def test_a_score_that_a_text_has_not_is_null(tmp_path, loaded):
    survey = write(tmp_path / "survey", TEXTS[:2], loaded[0], analyses=[_of_long_texts])
    lengths = survey.texts["num_tokens"]
    assert (lengths[0] > 4, lengths[1] > 4) == (True, False)
    found = survey.sql(
        "select layer, head, count(known), count(said), avg(known), count_if(isnan(known)) "
        "from heads group by all order by all"
    )
    entropy = survey.heads.query("text_id == 0")["entropy"]
    assert found.iloc[:, 4].tolist() == entropy.tolist()
    assert found.iloc[:, [2, 3, 5]].to_numpy().tolist() == [[1, 1, 0]] * 16
    assert survey.heads["known"].isna().sum() == survey.heads["said"].isna().sum() == 16
    assert survey.polars("heads").select(pl.col("known").mean()).collect().item() == pytest.approx(
        entropy.mean()
    )
    statistics = survey.statistics("known")
    assert statistics["texts"].tolist() == [1] * 16
    assert statistics["mean"].tolist() == entropy.tolist()


def test_sql_gives_the_numbers_of_pandas(survey):
    found = survey.sql("select layer, head, avg(induction) x from heads group by all order by all")
    expected = survey.heads.groupby(["layer", "head"])["induction"].mean().reset_index(name="x")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    edges = survey.edges()
    distances = (edges["query"] - edges["key"]).groupby([edges["layer"], edges["head"]]).mean()
    found = survey.sql(
        'select avg(query - "key") x from edges group by layer, head order by layer, head'
    )
    np.testing.assert_allclose(found["x"], distances)
    counts = survey.sql("select count(*) n from tokens join texts using (text_id)")["n"][0]
    assert counts == survey.texts["num_tokens"].sum()


def test_a_query_opens_the_tables_that_it_names_alone(survey, tmp_path):
    folder = tmp_path / "survey"
    shutil.copytree(survey.folder, folder)
    for path in (folder / "edges").iterdir():
        path.write_bytes(b"no Parquet")
    damaged = gattn.open_survey(folder)
    assert damaged.sql('select count(*) n from "HEADS"')["n"][0] == len(survey.heads)
    assert damaged.statistics("entropy", resamples=100)["texts"].tolist() == [86] * 16
    with pytest.raises(FileError, match="edges"):
        damaged.sql("select count(*) from Edges")
    assert survey.sql("select table_name from duckdb_columns() where column_name = 'key'").shape
    names = survey.sql("select distinct view_name n from duckdb_views() where not internal")["n"]
    assert set(names) == set(TABLES)


def test_text_in_queries_is_text(survey):
    found = survey.sql("select text_id from texts where text like '%drop table%'")
    assert found["text_id"].tolist() == [2]
    assert survey.sql("select text from texts where text_id = 2")["text"][0] == TEXTS[2]
    assert survey.sql("select 'a' || chr(0) || 'b' as x")["x"][0] == "a\x00b"


def test_a_query_is_read_to_its_end(survey):
    """DuckDB before 2 stops at a NUL."""
    if Version(duckdb.__version__) < Version("2"):
        with pytest.raises(SelectionError, match="NUL character"):
            survey.sql("select 1 as x\x00 where false")
        return
    assert survey.sql("select 1 as x\x00 where false").empty
    assert survey.sql("select 'a\x00b' as x")["x"][0] == "a\x00b"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select nothing from heads", "nothing"),
        ("select * from nowhere", "nowhere"),
        ("selec * from heads", "selec"),
        ("", "nothing"),
        ("select '\ud800'", "surrogates"),
        ("select 1; select 2", "SELECT, SELECT"),
        ("select * from heads where head = 'x\x1b[31m'", r"x\\x1b"),
    ],
)
def test_a_query_without_answer_says_why(survey, query, message):
    with pytest.raises(SelectionError, match=message):
        survey.sql(query)
    with pytest.raises(SelectionError) as caught:
        survey.sql("select nothing from heads")
    assert "texts, edges, queries, heads, tokens, failures" in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to 'own.csv'",
        "explain analyze copy (select 1) to 'own.csv'",
        "select 1; copy (select 1) to 'own.csv'",
        "create table own as select 1",
        "drop view heads",
        "attach 'own.db'",
        "export database 'own'",
        "set lock_configuration = false",
        "install httpfs",
        "pragma enable_profiling",
        "call enable_logging(storage = 'file', storage_path = 'own')",
        "from enable_logging(storage = 'file', storage_path = 'own')",
        "from query('copy (select 1) to ''own.csv''')",
        "from read_text('/etc/hostname')",
        "from glob('/etc/*')",
        "from 'elsewhere.parquet'",
        "select getenv('HOME')",
    ],
)
def test_queries_only_read_and_only_the_survey(survey, tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "elsewhere.parquet")
    before = sorted(survey.folder.rglob("*"))
    with pytest.raises(SelectionError):
        survey.sql(query.replace("'own", f"'{tmp_path}/own"))
    with pytest.raises(SelectionError):
        survey.sql(query.replace("'own", "'" + str(survey.folder).replace("'", "''") + "/own"))
    assert sorted(survey.folder.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere.parquet"]


def test_the_configuration_is_locked(survey):
    with pytest.raises(duckdb.Error, match="locked"), sql._connected(survey.folder, {}) as one:
        one.execute("set enable_external_access = true")


def test_a_link_to_the_folder_is_read(survey, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(survey.folder, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    linked = gattn.open_survey("link")
    assert linked.sql("select count(*) n from heads")["n"][0] == len(survey.heads)
    assert linked.polars("texts").collect().height == 86
    assert_same_trace(linked.trace(0), survey.trace(0))


# polars, and the folder as it is


def test_polars_scans_each_table(survey):
    for name in TABLES:
        expected = survey.sql(f"select * from {name}")
        found = survey.polars(name).collect()
        assert found.columns == list(expected.columns)
        assert found.height == len(expected)
        assert found["text_id"].to_list() == expected["text_id"].tolist()
    means = survey.polars("heads").group_by("layer").agg(pl.col("entropy").mean()).sort("layer")
    expected = survey.heads.groupby("layer")["entropy"].mean()
    np.testing.assert_allclose(means.collect()["entropy"], expected)
    assert survey.polars("texts").collect()["text"].to_list()[:6] == TEXTS
    with pytest.raises(SelectionError, match=r"nowhere.*texts, edges"):
        survey.polars("nowhere")


def test_without_polars_an_error_says_how_to_install_it(survey, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(DependencyError, match=r"gattn\[polars\]"):
        survey.polars("heads")


def test_duckdb_and_polars_read_the_folder_as_it_is(survey, tmp_path, monkeypatch):
    shutil.copytree(survey.folder, tmp_path / "survey")
    monkeypatch.chdir(tmp_path)
    for name in TABLES:
        expected = survey.sql(f"select * from {name}")
        with duckdb.connect() as plain:
            found = plain.execute(f"from 'survey/{name}/*.parquet'").df()
        pd.testing.assert_frame_equal(found, expected)
        assert pl.scan_parquet(f"survey/{name}/*.parquet").collect().height == len(expected)


def test_columns_that_some_parts_lack_are_null_there(survey, tmp_path):
    folder = tmp_path / "survey"
    shutil.copytree(survey.folder, folder)
    path = part_path(folder, "edges", 0)
    rows = pq.read_table(path, partitioning=None)
    scores = pa.array(np.arange(len(rows), dtype=np.float32))
    pq.write_table(rows.append_column("score", scores), path)
    sign(path)
    other = gattn.open_survey(folder)
    edges = other.edges()
    assert edges["score"].notna().sum() == len(rows)
    assert edges["score"].isna().any()
    lazily = other.polars("edges").collect()
    assert lazily["score"].null_count() == edges["score"].isna().sum()
    assert other.trace(0)[0, 0].score is not None


def test_a_survey_of_which_nothing_was_captured_has_empty_tables(survey, tmp_path):
    folder = tmp_path / "survey"
    folder.mkdir()
    shutil.copy(survey.folder / "manifest.json", folder)
    empty = gattn.open_survey(folder)
    assert len(empty) == 0
    assert "0 texts, 87 to do" in repr(empty)
    assert list(empty.traces()) == []
    for name, schema in TABLES.items():
        found = empty.sql(f"select * from {name}")
        assert list(found.columns) == schema.names == empty.polars(name).collect().columns
        assert len(found) == empty.polars(name).collect().height == 0
        assert set(schema.names) <= set(survey.sql(f"select * from {name} limit 1").columns)
    kinds = survey.sql("describe edges").set_index("column_name")["column_type"]
    assert empty.sql("describe edges").set_index("column_name")["column_type"].equals(kinds)
    assert len(empty.edges(layer=1, tokens=True)) == 0


def test_a_part_whose_texts_all_failed_is_read(survey, tmp_path):
    folder = tmp_path / "survey"
    shutil.copytree(survey.folder, folder)
    path = part_path(folder, "texts", 0)
    pq.write_table(pq.read_table(path, partitioning=None)[:0], path)
    sign(path)
    for name in ("edges", "queries", "heads", "tokens"):
        part_path(folder, name, 0).unlink()
    rest = gattn.open_survey(folder)
    assert len(rest) == 23
    assert rest.heads["text_id"].min() == 64
    assert next(text_id for text_id, _ in rest.traces()) == 64
    assert rest.failures["text_id"].tolist() == [6]


# Statistics


def test_statistics_and_comparisons_are_those_of_the_tables(survey, tmp_path):
    found = survey.statistics("induction", resamples=100)
    expected = head_statistics(survey.heads, "induction", resamples=100)
    pd.testing.assert_frame_equal(found, expected)
    other = write(tmp_path / "cut", TEXTS, edits=[gattn.Cut(layer=0, head=1)])
    compared = survey.compare(other, "entropy", resamples=100)
    pd.testing.assert_frame_equal(
        compared, compare_heads(survey.heads, other.heads, "entropy", resamples=100)
    )
    for score in ("nothing", 'x" from heads; --', "text_id"):
        with pytest.raises(SelectionError, match="score"):
            survey.statistics(score)


def test_surveys_of_other_texts_are_not_compared(survey, tmp_path):
    other = write(tmp_path / "other", [*TEXTS[:2], "The river!", *TEXTS[3:]])
    with pytest.raises(SelectionError, match=r"different texts: 1 of 6 .* the first is 2\."):
        survey.compare(other, "entropy", resamples=100)
    few = write(tmp_path / "few", TEXTS[:2])
    assert survey.compare(few, "entropy", resamples=100)["texts"].tolist() == [2] * 16


@pytest.fixture
def older(survey, tmp_path):
    """A survey of a gattn that wrote down no version of its definitions."""
    folder = tmp_path / "older"
    shutil.copytree(survey.folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("definitions") == 2
    manifest.pop("sha256")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return gattn.open_survey(folder)


def test_scores_of_other_definitions_are_not_compared(survey, older):
    for score in ("induction", "previous_token", "even_next_token"):
        for one, two in ((survey, older), (older, survey)):
            with pytest.raises(SelectionError, match=rf"{score}' in .*older has an older defini"):
                one.compare(two, score, resamples=100)
    assert len(survey.compare(older, "entropy", resamples=100)) == 16
    assert len(survey.compare(survey, "induction", resamples=100)) == 16


def test_tables_and_statistics_note_older_definitions(survey, older, tmp_path):
    path = tmp_path / "heads.parquet"
    older.heads.query("layer > 0").to_parquet(path)
    tables = {"new": survey.heads.query("layer > 0"), "old": pd.read_parquet(path)}
    tables["unknown"] = pd.DataFrame(tables["new"].to_dict("list"))

    def noted(score, one, other):
        found = compare_heads(tables[one], tables[other], score, resamples=100)
        return [note.split(":")[0] for note in found.notes if "defin" in note]

    old = "induction has the definition of an older gattn"
    differ = "induction is defined differently before and after"
    assert noted("induction", "new", "old") == noted("induction", "old", "new") == [differ]
    assert noted("induction", "old", "old") == noted("induction", "unknown", "old") == [old]
    assert noted("induction", "new", "new") == noted("induction", "unknown", "new") == []
    assert noted("entropy", "new", "old") == noted("entropy", "old", "old") == []
    assert any(note.startswith(old) for note in older.statistics("induction", resamples=100).notes)
    for found in (survey.statistics("induction"), older.statistics("entropy")):
        assert not any("defin" in note for note in found.notes)


def test_token_ids_are_compared_by_their_tokens(tmp_path):
    rows = [{"input_ids": ids} for ids in IDS]
    surveys = [
        write(tmp_path / f"{n}", some)
        for n, some in enumerate([rows, rows[:2], [rows[0], {"input_ids": [6]}, rows[2]]])
    ]
    assert surveys[0].texts["text"].isna().all()
    compared = surveys[0].compare(surveys[1], "entropy", resamples=100)
    assert compared["texts"].tolist() == [2] * 16
    with pytest.raises(SelectionError, match=r"1 of 3 .* the first is 1\."):
        surveys[0].compare(surveys[2], "entropy", resamples=100)


# Errors


def test_what_is_no_survey_is_refused(survey, tmp_path):
    with pytest.raises(FileError, match="not a survey"):
        gattn.open_survey(tmp_path / "nowhere")
    with pytest.raises(FileError, match="not a survey"):
        gattn.open_survey(tmp_path)
    manifest = json.loads((survey.folder / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"schema": 99}))
    with pytest.raises(FileError, match="upgrade gattn"):
        gattn.open_survey(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(FileError, match="manifest"):
        gattn.open_survey(tmp_path)


@pytest.mark.parametrize(
    ("harm", "table"),
    [
        *(("cut", table) for table in ("texts", "edges", "heads")),
        *(("garbled", table) for table in ("texts", "edges", "heads")),
        *(("removed", table) for table in ("edges", "heads")),
    ],
)
def test_damage_is_an_error_that_names_the_place(survey, tmp_path, harm, table):
    folder = tmp_path / "survey"
    shutil.copytree(survey.folder, folder)
    path = part_path(folder, table, 64)
    content = path.read_bytes()
    if harm == "removed":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:4] + bytes(len(content) - 1000) + content[-996:])
    damaged = gattn.open_survey(folder)
    with pytest.raises(FileError, match=table):
        damaged.trace(64)
    with pytest.raises(FileError, match=table):
        damaged.sql(f"select * from {table}")
    with pytest.raises(FileError, match=table):
        list(damaged.traces())
    if table != "texts":
        assert_same_trace(damaged.trace(0), survey.trace(0))
