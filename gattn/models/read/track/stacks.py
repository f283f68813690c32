"""Names the stacks of a model, and tells which of its modules are alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.hugging_face.generating import callers
from gattn.models.hugging_face.media import modality

_CROSS = ("cross", "encoder_attn", "encdecattention")
_OTHER_TOKENS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")

Kind = tuple[str, str, type[nn.Module]]
"""What modules have in common that are alike: list of layers, path within a layer, and type."""


def home(name: str) -> str:
    """Return the path of the list of layers that a module is in."""
    parts = name.split(".")
    number = next((n for n, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[:number])


def kinds(modules: Mapping[str, nn.Module]) -> dict[Kind, list[str]]:
    """List the names of modules that are alike."""
    found: dict[Kind, list[str]] = {}
    for name, module in modules.items():
        found.setdefault((*kind_of(name), type(module)), []).append(name)
    return found


def kind_of(name: str) -> tuple[str, str]:
    """Return the list of layers that a module is in, and its path within a layer."""
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    number = next((n for n, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[:number]), ".".join(parts[number + 1 :])


def stack_name(module: nn.Module, name: str, is_encoder_decoder: bool) -> str | None:
    """Name a module's stack by its path; None if the path does not tell."""
    parts = name.lower().split(".")
    number = max((n for n, part in enumerate(parts) if part.isdigit()), default=-1)
    if (
        any(word in part for part in parts[number + 1 :] for word in _CROSS)
        or getattr(module, "is_cross_attention", False)
        or _reads_other_tokens(module)
    ):
        return "cross"
    if kind := modality(name):
        return kind
    if is_encoder_decoder:
        return next((part for part in parts if part in ("encoder", "decoder")), "decoder")
    if parts[0] == "text_model":
        return "text"
    is_causal = getattr(module, "is_causal", None)
    return None if is_causal is None else "decoder" if is_causal else "encoder"


def _reads_other_tokens(module: nn.Module) -> bool:
    """Return whether a running module was given other tokens besides its own."""
    for frame in callers():
        if frame.f_locals.get("self") is module:
            arguments = frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
            given = [frame.f_locals.get(name) for name in arguments]
            own = next((x for x in given if isinstance(x, Tensor)), None)
            others = [frame.f_locals.get(name) for name in _OTHER_TOKENS if name in arguments]
            return any(isinstance(x, Tensor) and x is not own for x in others)
    return False


def check_seen(
    model: nn.Module,
    known: Mapping[Kind, Sequence[str]],
    names: Iterable[str],
    layers: int | None,
) -> None:
    """Refuse a call in which the attention of some layers was not seen.

    `known` lists modules that are alike, one per layer (see `kinds`), and `names` those that were
    seen. Models that run fewer `layers` than they hold say so.
    """
    names = set(names)
    for kind in {(*kind_of(name), type(model.get_submodule(name))) for name in names}:
        alike = list(known[kind])
        seen = [name for name in alike if name in names]
        if len(seen) < len(alike) and seen != alike[:layers]:
            missing = next(name for name in alike if name not in seen)
            raise CaptureError(
                f"The attention of {missing} was not seen, but that of {seen[0]} was: the "
                "model skipped it, or computed it in code that does not ask transformers' "
                "interface, such as a graph or a replaced forward. Layers cannot be numbered, "
                "so this call is refused."
            )
