"""Every combination of chosen values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from engine.tuning.knobs import Value


def combinations(space: Mapping[str, tuple[Value, ...]]) -> Iterator[dict[str, Value]]:
    """In the order of the values, the last setting changing fastest; a value that is given twice counts once."""
    names = tuple(space)
    for values in product(*(tuple(dict.fromkeys(space[name])) for name in names)):
        yield dict(zip(names, values, strict=True))
