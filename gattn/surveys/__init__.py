"""Surveys: a model over a corpus, every head's graph and scores in a folder of Parquet files."""

from importlib.util import find_spec

import lazy_loader

from gattn.errors import DependencyError

if any(find_spec(name) is None for name in ("duckdb", "filelock", "pyarrow")):
    raise DependencyError("Surveys need pyarrow, DuckDB and filelock: pip install 'gattn[survey]'.")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
