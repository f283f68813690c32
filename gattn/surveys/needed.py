"""Raises an error if the packages that surveys need are missing."""

from importlib.util import find_spec

from gattn.errors import DependencyError

if any(find_spec(name) is None for name in ("duckdb", "filelock", "pyarrow")):
    raise DependencyError("Surveys need pyarrow, DuckDB and filelock: pip install 'gattn[survey]'.")
