"""Runs parts of a model again with marked inputs, and reads what the marks reached."""


class UnprovedError(Exception):
    """Says why a call's layout could not be proved."""


class NoTokensError(UnprovedError):
    """Says why a call is proved to be no attention between the tokens of its module's input."""


class UntoldError(UnprovedError):
    """Says why a call cannot be read by itself; what was proved of others holds all the same."""


class LearnedError(UnprovedError):
    """Says that a call's keys and values are the same for all inputs, and so no tokens."""
