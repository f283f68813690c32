"""Runs parts of a model again with marked inputs, and reads what the marks reached."""


class UnprovedError(Exception):
    """Says why a call's layout could not be proved."""
