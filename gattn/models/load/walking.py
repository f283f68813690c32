"""Lists the modules of a model."""

from __future__ import annotations

from torch import nn

from gattn.models.load.scripts import is_script

# Functions within functions that call themselves would hold the model until garbage is collected.


# Scripted parts are listed, but not what is in them: only they are called.


def modules_of(model: nn.Module) -> list[nn.Module]:
    """List a model's modules as `model.modules()` does, without naming them, which takes longer."""
    found: dict[nn.Module, None] = {}
    _list(model, found)
    return list(found)


def names_of(model: nn.Module) -> dict[str, nn.Module]:
    """List a model's modules by name, as `model.named_modules()` does, but faster."""
    found: dict[str, nn.Module] = {}
    _name(model, "", found, set())
    return found


def _list(module: nn.Module, found: dict[nn.Module, None]) -> None:
    found[module] = None
    for part in module._modules.values():
        if part is not None and part not in found:
            if part._modules and not is_script(part):
                _list(part, found)
            else:
                found[part] = None


def _name(module: nn.Module, name: str, found: dict[str, nn.Module], known: set[nn.Module]) -> None:
    known.add(module)
    found[name] = module
    path = f"{name}." if name else ""
    for part, inner in module._modules.items():
        if inner is not None and inner not in known:
            if inner._modules and not is_script(inner):
                _name(inner, f"{path}{part}", found, known)
            else:
                known.add(inner)
                found[f"{path}{part}"] = inner
