"""What the rules by name do not say: changes to the tiny configuration of single model types."""

from __future__ import annotations

from typing import Any

CHANGES: dict[str, dict[str, Any]] = {}
