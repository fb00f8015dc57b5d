"""From a price per hour to a price per million output tokens, at the throughput that was measured."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import ConfigError
from engine.imports.values import mapping, number
from engine.report.points import Point
from engine.store import Run

DEAREST_PER_HOUR = 1_000_000.0
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def check_price(per_hour: float | None) -> float | None:
    """Raises ConfigError for what can't be a price."""
    if per_hour is not None and not 0 < per_hour <= DEAREST_PER_HOUR:
        raise ConfigError(
            f"A price of {per_hour} per hour can't be.", f"Give more than 0, up to {DEAREST_PER_HOUR:,.0f}."
        )
    return per_hour


def gpus_of(run: Run) -> int | None:
    """How many GPUs its server used; None for a machine without, and where that isn't known."""
    hardware = mapping(mapping(run.environment).get("hardware"))
    server = mapping(mapping(run.config).get("server"))
    if hardware.get("device") != "cuda" or not server:
        return None
    gpus = 1
    for name in PARALLEL:
        gpus *= int(number(server.get(name)) or 1)
    return gpus


def per_hour_of(run: Run, price: float) -> float:
    """What all that served it costs per hour; ``price`` is per GPU where it used GPUs, else of the machine."""
    return price * (gpus_of(run) or 1)


def per_million_tokens(per_hour: float | None, throughput_tok_s: float | None) -> float | None:
    """Price of a million output tokens, in the currency of the price; None where one of the two is unknown."""
    if per_hour is None or not throughput_tok_s:
        return None
    return per_hour / (throughput_tok_s * 3600) * 1_000_000


def costs(points: Sequence[Point], per_hour: float | None) -> tuple[float | None, ...]:
    return tuple(per_million_tokens(per_hour, point.values.get("throughput_tok_s")) for point in points)


def unit_of(run: Run) -> str:
    """Of what the price is: “GPU”, or “machine”."""
    return "GPU" if gpus_of(run) else "machine"


def text_of(cost: float | None) -> str:
    """Three figures: 0.0123, 4.56, 1,230."""
    return "—" if cost is None else f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
