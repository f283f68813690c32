"""Surveys: a model over a corpus, every head's graph and scores in a folder of Parquet files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
