"""A load test that another tool measured, as a run: its numbers under its own convention, ours unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.imports.mark import Origin, imported
from engine.load.conventions import Values
from engine.store import Run
from engine.units import number


@dataclass(frozen=True)
class ForeignLevel:
    """One level; ``numbers`` by the names of ``engine.load.conventions``. What the file doesn't say is None."""

    label: str
    users: int | None = None
    rate_req_s: float | None = None
    requests_ok: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    goodput_req_s: float | None = None
    numbers: Values = field(default_factory=dict)

    def to_dict(self, convention: str) -> dict[str, Any]:
        parts = (self.requests_ok, self.failed, self.cancelled)
        return {
            "label": self.label,
            "users": self.users,
            "rate_req_s": self.rate_req_s,
            "requests": None if None in parts else sum(part or 0 for part in parts),
            "requests_ok": self.requests_ok,
            "failed": self.failed,
            "cancelled": self.cancelled,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "goodput_req_s": self.goodput_req_s,
            "conventions": {convention: dict(self.numbers)},
        }


def load_run(
    levels: Sequence[ForeignLevel],
    origin: Origin,
    *,
    model: str,
    created_at: str = "",
    config: Mapping[str, Any] | None = None,
) -> Run:
    speeds = [speed for level in levels if (speed := level.numbers.get("throughput_tok_s")) is not None]
    labels = levels[0].label if len(levels) == 1 else f"{levels[0].label} to {levels[-1].label}"
    title = f"{origin.name}, {labels}" + (f": up to {number(max(speeds))} tok/s" if speeds else "")
    return imported(
        "load",
        title,
        origin,
        created_at=created_at,
        duration_s=_whole_s(levels),
        config=dict(config or {}),
        model={"model_id": model} if model else {},
        results={"levels": [level.to_dict(origin.format) for level in levels], "notes": [_note(origin)]},
    )


def _whole_s(levels: Sequence[ForeignLevel]) -> float | None:
    parts = [level.numbers.get("duration_s") for level in levels]
    return None if None in parts else sum(part or 0.0 for part in parts)


def _note(origin: Origin) -> str:
    return f"Measured by {origin.name}, by its own definitions. The file doesn't say on which hardware."


def load_label(users: int | None, rate_req_s: float | None) -> str:
    """As our own levels are called, so that equal loads are found equal."""
    if rate_req_s is not None:
        at_most = f", at most {users} at once" if users is not None else ""
        return f"{rate_req_s:g} requests/s{at_most}"
    if users is None:
        return "All at once"
    return "1 user" if users == 1 else f"{users} users"
