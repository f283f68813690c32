"""What can go wrong, one small family of exceptions.

Every message says what was expected, what arrived and what to do.
"""


class GattnError(Exception):
    """The base of every error that gattn raises on purpose."""


class ShapeError(GattnError, ValueError):
    """Tensors, or a tensor and a token graph, do not fit each other."""


class GraphError(GattnError, ValueError):
    """A token graph cannot be built or combined as asked."""


class ContractError(GattnError, ValueError):
    """A weight function or normalizer does not keep its contract."""


class SelectionError(GattnError, KeyError):
    """A layer, head, stack, token or position that is not there was asked for."""

    # A KeyError shows the repr of its message.
    __str__ = Exception.__str__


class ModelError(GattnError, ValueError):
    """A model or tokenizer cannot be found, loaded or used as asked."""


class CaptureError(GattnError, ValueError):
    """Attention cannot be captured, or what was captured cannot be trusted."""


class DependencyError(GattnError, ImportError):
    """A package is missing that only some users need."""


class EditError(GattnError, ValueError):
    """An edit cannot be applied, or has nothing to edit."""


class FileError(GattnError, ValueError):
    """A file is damaged, foreign, or of a kind that gattn does not write."""
