"""Surveys: a model over a corpus, every head's graph and scores in a folder of Parquet files."""
