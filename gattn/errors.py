"""The exceptions of gattn, whose messages say what was expected, what arrived and what to do."""


class GattnError(Exception):
    """The base class of gattn's errors."""


class ShapeError(GattnError, ValueError):
    """Tensors, or a tensor and a token graph, do not fit together."""


class GraphError(GattnError, ValueError):
    """A token graph cannot be built or combined as asked."""


class ContractError(GattnError, ValueError):
    """A weight function or normalizer breaks its contract."""


class SelectionError(GattnError, KeyError):
    """A layer, head, stack, token or position does not exist."""

    # A KeyError shows the repr of its message.
    __str__ = Exception.__str__


class ModelError(GattnError, ValueError):
    """A model or tokenizer cannot be found, loaded or used as asked."""


class CaptureError(GattnError, ValueError):
    """Attention cannot be captured, or cannot be trusted."""


class OptionError(GattnError, TypeError):
    """A function does not have such an option."""


class DependencyError(GattnError, ImportError):
    """An optional package is missing."""


class EditError(GattnError, ValueError):
    """An edit cannot be applied, or has nothing to edit."""


class FileError(GattnError, ValueError):
    """A file is damaged, foreign, or of a format that gattn does not read or write."""
