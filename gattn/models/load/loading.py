"""Finds and loads models and tokenizers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import nn

from gattn.checks import warn
from gattn.errors import ModelError
from gattn.models.load.limits import check_vocabulary
from gattn.models.load.offline import EMBEDDED, offline_models
from gattn.models.load.scripts import check_script, is_script
from gattn.models.load.trusting import check_files
from gattn.models.load.walking import modules_of, names_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Model: TypeAlias = str | Path | PreTrainedModel | None

EMBEDDED_PATH = Path(__file__).parents[1] / "embedded"

META = "The model is on the device 'meta', which holds shapes and no numbers: load its weights."

_HEADS = ("pooler", "classifier", "lm_head", "score", "head.")


def load_model(name: str | Path | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model, ready to run, and its tokenizer.

    Parameters
    ----------
    name : str or Path, optional
        A folder, a hub name such as "gpt2", or "embedded" (the default): the small model that
        comes with gattn. Only a hub name uses the network, and only where the model is not in the
        local cache yet.

    Returns
    -------
    (PreTrainedModel, PreTrainedTokenizerBase)
        The model, in evaluation mode, and its tokenizer.

    Raises
    ------
    ModelError
        If there is no such model, it has no safetensors weights, or weights that attention
        needs are missing. Pickled weights, kernels from the hub and a model's own code are never
        run; models that name them are refused.
    """
    import transformers

    place = EMBEDDED_PATH if name is None or name == EMBEDDED else name
    if not isinstance(place, (str, Path)):
        raise ModelError(
            f"load_model takes the name or the folder of a model, such as 'gpt2', not "
            f"{_kind_of(place)}; functions that take model= take a loaded one, too."
        )
    try:
        _ask_hub(str(place))
        check_files(place)
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        model_class = _class_of(config)
        with _quiet(place == EMBEDDED_PATH):
            model, found = model_class.from_pretrained(
                place, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        tokenizer = load_tokenizer(place)
    except ModelError:
        raise
    except Exception as error:  # Files can be wrong in many ways.
        raise not_loaded(place, error) from error
    if missing := sorted(found["missing_keys"]):
        # Poolers and heads come after all attention, which does not need them.
        needed = [name for name in missing if not _is_head(name, model)]
        shown = needed or missing
        said = f"{place} holds no weights for {', '.join(shown[:5])}"
        said += " ..." if len(shown) > 5 else ""
        if needed:
            raise ModelError(
                f"{said}: they would be random, and so would the attention. Load a whole model."
            )
        warn(f"{said}: they are random.")
    return model.eval(), tokenizer


def _class_of(config: Any) -> Any:
    """Find the class of a model; nothing else that a configuration names is built."""
    import transformers

    for name in config.architectures or []:
        named = getattr(transformers, str(name), None)
        if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
            return named
    return transformers.AutoModel


def _is_head(name: str, model: PreTrainedModel) -> bool:
    """Return whether a weight is used only after all attention."""
    base = model.base_model_prefix
    is_outside = model.base_model is not model and not name.startswith(f"{base}.")
    return is_outside or any(word in name for word in _HEADS)


def _ask_hub(name: str) -> None:
    """Ask the hub once for a model that is not here: transformers would try for half a minute."""
    import huggingface_hub as hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        if Path(name).exists() or hub.try_to_load_from_cache(name, "config.json") is not None:
            return
    except HFValidationError:  # A path, then.
        raise FileNotFoundError(f"there is no folder {name}") from None
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"))
    except HfHubHTTPError:
        return  # It answered; transformers explains it best.
    except Exception as error:  # Networks fail in many ways.
        raise ConnectionError(f"the hub does not answer: {error}") from error


@contextmanager
def _quiet(is_quiet: bool) -> Iterator[None]:
    """Show no progress bar for a model that loads instantly."""
    from transformers.utils import logging

    if not is_quiet or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def load_tokenizer(place: str | Path, *, offline: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; `offline` never asks the network."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        place, trust_remote_code=False, local_files_only=offline
    )
    # Without files some of transformers' tokenizers are empty: all words are unknown then.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"{str(place)!r} has no tokenizer with a vocabulary.")
    return tokenizer


def find_tokenizer(model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """Find the tokenizer in the place the model came from, without network; None if missing."""
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    try:
        return load_tokenizer(name, offline=True) if name else None
    except Exception:  # Only a convenience: a text then asks for tokenizer=.
        return None


def not_loaded(place: str | Path, error: Exception) -> ModelError:
    """Say that a model could not be loaded, why, and what could."""
    reason = " ".join(str(error).split())[:300]
    if isinstance(error, ImportError):
        return ModelError(
            f"The model {str(place)!r} could not be loaded, since a package that it needs is "
            f"missing or broken here (its own files may be whole). Install or mend the package. "
            f"The reason given: {reason}"
        )
    return ModelError(
        f"The model {str(place)!r} could not be loaded: expected a folder or a hub name with "
        f"config.json, safetensors weights and a tokenizer. Models that are here offline: "
        f"{', '.join(offline_models())}. The reason given: {reason}"
    )


def input_device(model: nn.Module) -> torch.device:
    """Return the device of a model's inputs; offloaded weights are fetched while it runs."""
    device: torch.device = next((x.device for x in model.parameters()), torch.device("cpu"))
    if device.type != "meta":
        return device
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)  # Where accelerate says how a module runs.
        for one in (hook, *getattr(hook, "hooks", ())):
            if getattr(one, "execution_device", None) is not None:
                return torch.device(one.execution_device)
    raise ModelError(META)


def model_name(model: nn.Module) -> str:
    """Name a model as a trace names it."""
    config = getattr(model, "config", None)
    return name_of(str(getattr(config, "_name_or_path", "") or type(model).__name__))


def name_of(place: str) -> str:
    """Name the model at a place: a folder of this machine just by its own name."""
    if Path(place) == EMBEDDED_PATH:
        return EMBEDDED
    # Files and pages are shared, and should not reveal where on a disk the model was.
    return Path(place).name if Path(place).is_absolute() else place


def resolved(
    model: Model, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a model and its tokenizer, or take those that were given."""
    check_tokenizer(tokenizer)
    if model is None or isinstance(model, (str, Path)):
        loaded, found = load_model(model)
        return loaded, tokenizer or found
    if isinstance(model, nn.Module):
        model = cast("PreTrainedModel", as_written(model))
    config = getattr(model, "config", None)  # Any model may have one, of any type.
    if not isinstance(model, nn.Module) or not callable(getattr(config, "get_text_config", None)):
        raise ModelError(
            "model must be a hub name, a folder or a transformers model, not "
            f"{_kind_of(model)}. For any other PyTorch model, pass a function that calls it, "
            "such as lambda: model(x), in place of the text; or open gattn.capturing(model) and "
            "call the model inside."
        )
    if tokenizer is None:
        return model, find_tokenizer(model)
    check_vocabulary(tokenizer, model)
    return model, tokenizer


def check_module(function: str, model: object) -> None:
    """Refuse what is not a module, in a context of some function."""
    if isinstance(model, nn.Module):
        return
    do = "gattn.load_model(name) loads one"
    if callable(model):
        do = (
            "pass the module that it calls, and call the function inside the context; "
            "gattn.capture(function, module) and gattn.effect(function, edits, model=module) call "
            "a function themselves"
        )
    if isinstance(model, type):
        do = f"create one, as in {model.__name__}(...)"
    raise ModelError(f"{function} takes a torch.nn.Module, not {_kind_of(model)}: {do}.")


def _kind_of(model: object) -> str:
    """Name what kind of thing was given in place of a model."""
    if isinstance(model, type):
        return f"the class {model.__name__}"
    return "a function" if isroutine(model) else type(model).__name__


def check_tokenizer(tokenizer: object) -> None:
    """Refuse what is not a tokenizer of transformers."""
    if tokenizer is None:  # What needs none does not wait for transformers to load.
        return
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        if isinstance(tokenizer, list | tuple):
            raise ModelError(
                f"tokenizer must be a transformers tokenizer, not {tokenizer!r:.60}: names of "
                "tokens are given as tokens=[...]."
            )
        raise ModelError(
            "tokenizer must be a transformers tokenizer, such as "
            f"AutoTokenizer.from_pretrained(name), not {tokenizer!r:.60}. With one of "
            "another library, encode the text yourself and name its tokens by tokens=; a "
            "tokenizers.Tokenizer can be wrapped, as in "
            "transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)."
        )


def is_any_model(model: object) -> bool:
    """Return whether a model is one of PyTorch, but not of transformers."""
    return isinstance(model, nn.Module) and not is_transformers(_unwrapped(model))


def is_transformers(model: nn.Module) -> bool:
    """Return whether a model is one of transformers."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def as_written(model: nn.Module) -> nn.Module:
    """Return the model that `torch.compile` wrapped, or the model itself."""
    model = _unwrapped(model)
    kinds = set(map(type, modules_of(model)))
    if not any(issubclass(kind, (torch.fx.GraphModule, torch.jit.ScriptModule)) for kind in kinds):
        return model
    has_parts = not is_transformers(model)
    for name, module in names_of(model).items():
        is_graph = isinstance(module, torch.fx.GraphModule) and not _runs_modules(module)
        if is_script(module) and name and has_parts:
            check_script(name, module)
        elif is_graph or is_script(module):
            what = f"{name} in the model" if name else "The model"
            raise ModelError(
                f"{what} was scripted, traced or exported: its code is now a graph of operations, "
                "which never asks how to compute attention. Pass the model as it was before that; "
                "torch.compile is fine."
            )
    return model


def _unwrapped(model: nn.Module) -> nn.Module:
    while "_orig_mod" in model._modules:
        model = model.get_submodule("_orig_mod")
    return model


def _runs_modules(module: nn.Module) -> bool:
    """Return whether a traced module calls torch-geometric's own ones, as `to_hetero` makes it."""
    library = sys.modules.get("torch_geometric.nn.conv")
    return library is not None and any(
        isinstance(part, library.MessagePassing) for part in module.modules()
    )
