"""Where weights come from: a local folder, the hub, or the bundled SmolLM2-135M. Never silently another model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.config import Settings


class ModelOrigin(StrEnum):
    """Compare with ``==``: a reloaded module makes a second class."""

    HUB = "hub"
    BUNDLED = "bundled"
    LOCAL = "local"


@dataclass(frozen=True)
class ModelSource:
    """A model ready on disk; ``detail`` says in words which weights these are."""

    model_id: str
    path: Path
    origin: ModelOrigin
    detail: str
    weights_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "model_id": self.model_id,
            "path": str(self.path),
            "origin": str(self.origin),
            "detail": self.detail,
            "weights_bytes": self.weights_bytes,
        }


def resolve(model_id: str, settings: Settings, progress: Callable[[str], None] | None = None) -> ModelSource:
    """Make the model ready."""
    raise NotImplementedError


def find_ready(model_id: str, settings: Settings) -> ModelSource | None:
    """What is on disk already."""
    raise NotImplementedError
