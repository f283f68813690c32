"""Functions of a user that run a model: any callable in place of a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from torch import nn

from gattn.errors import CaptureError, ModelError
from gattn.models.doors.attaching import attached
from gattn.models.load.encoding import Inputs
from gattn.models.load.loading import as_written, check_tokenizer, is_any_model, resolved
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.names.naming import Naming
from gattn.models.run.opening import opened
from gattn.models.run.prompt import Prompt
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

Runnable: TypeAlias = "Inputs | Callable[[], Any]"
"""A text, or what else a model takes; or a function without arguments that calls the model."""


def prepared(
    inputs: Runnable,
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None = None,
    naming: Naming | None = None,
) -> Prompt:
    """Load a model if need be, and prepare what it is run on."""
    known = resolved_for(inputs, model, tokenizer)
    prompt = RunFunction(inputs, *known) if callable(inputs) else Prompt.of(inputs, *known)
    prompt.naming = naming or prompt.naming
    return prompt


def resolved_for(
    inputs: Runnable, model: Model, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a model and its tokenizer if need be; a function comes with the model that it calls."""
    if callable(inputs):
        _check_function(inputs)
        if not isinstance(model, nn.Module):
            said = "none was given" if model is None else f"not {model!r:.60}"
            raise ModelError(
                f"A function that runs a model needs model=, the module that it calls; {said}."
            )
        if is_any_model(model):
            check_tokenizer(tokenizer)
            return cast("PreTrainedModel", as_written(model)), tokenizer
    return resolved(model, tokenizer)


class RunFunction(Prompt):
    """A function without arguments that calls a model: any number of times, on any inputs."""

    def __init__(
        self,
        function: Callable[[], Any],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        super().__init__(model, tokenizer, {})
        self._function = function

    @property
    def name(self) -> str:
        """The function's name; "" if it has none."""
        name = str(getattr(self._function, "__name__", ""))
        return name if name.isidentifier() else ""

    def __str__(self) -> str:
        return f"{self.name}()" if self.name else "The run"

    @property
    def within(self) -> str:
        """Its name within a sentence."""
        return f"{self.name}()" if self.name else "the run"

    @property
    def repeats(self) -> bool:
        """Whether copies can run together: never, since its inputs are its own."""
        return False

    def run(self, context: Context, copies: int = 1, **settings: Any) -> tuple[Any, Tracker]:
        """Call the function in a context; `copies` and `settings` are those of one run."""
        assert copies == 1
        counting, kind = _Counting(), type(self.model).__name__
        with opened(self.model, context) as calls, attached(self.model, counting):
            result = self._function()
            tracker = calls.last
        if not counting.number:
            raise CaptureError(
                f"{self} did not call the {kind} that model= names, so there is nothing to read "
                "or to edit: pass the module that it calls, in this thread, rather than a copy, a "
                "part or what is around it."
            )
        if context.reads_one_call and counting.number > 1:
            raise CaptureError(
                f"{self} called the {kind} {counting.number} times, but this reads one call: pass "
                "a function that calls it once. gattn.capturing records any number of calls, and "
                "gattn.effect edits all of them."
            )
        return result, tracker

    def most_copies(self, tokens: int, logits: int, memory: int) -> int:
        """Return 1: its inputs are its own."""
        return 1


class _Counting(Context):
    """Counts the calls of a model, except those within others."""

    reads_one_call = True
    number = 0

    def begin(self, tracker: Tracker) -> None:
        """Count a call."""
        self.number += 1


def _check_function(function: Callable[..., Any]) -> None:
    """Refuse what cannot be called without arguments."""
    kind = type(function).__name__
    is_data = type(function).__module__.startswith("torch_geometric.data")
    if is_data:  # It can be called, too, and gives its tensors.
        raise CaptureError(
            "A run is a function without arguments that calls the model, such as lambda: "
            f"model(data.x, data.edge_index), not the {kind} itself."
        )
    if isinstance(function, nn.Module):
        raise CaptureError(
            f"A run is a function without arguments that calls the model, such as lambda: "
            f"model(x), not the module itself ({kind}): what is run comes first, then the module."
        )
    try:
        inspect.signature(function).bind()
    except ValueError:  # Some built-in functions do not say what they take.
        return
    except TypeError as error:
        raise CaptureError(
            f"A run is a function without arguments, such as lambda: model(x), but {function!r:.60}"
            f" takes some: {error}."
        ) from error
