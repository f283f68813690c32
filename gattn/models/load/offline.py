"""Lists the models that load without a network."""

from __future__ import annotations

from typing import Any

EMBEDDED = "embedded"
"""The name of the small model that comes with gattn."""


def offline_models() -> list[str]:
    """List the models that load without network: the embedded one, and the hub's cached ones."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except (CacheNotFound, OSError):
        return [EMBEDDED]
    cached = sorted(
        repository.repo_id
        for repository in repositories
        if repository.repo_type == "model" and _has_weights(repository)
    )
    return [EMBEDDED, *cached]


def _has_weights(repository: Any) -> bool:
    names = {file.file_name for revision in repository.revisions for file in revision.files}
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)
