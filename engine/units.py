"""Numbers as people read them, on a screen and in a report. Unknown is “—”, never 0."""

from __future__ import annotations

from datetime import UTC, datetime

UNKNOWN = "—"


def number(value: float | None, digits: int = 0) -> str:
    """1234.5 → “1,234”; digits are places after the point."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def counted(count: int, one: str, many: str = "") -> str:
    """“1 request”, “1,234 requests”; ``many`` where it isn't made with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def short(value: float | None) -> str:
    """Three figures at most: 0.83, 8.3, 83, 1,234."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    return number(value, 2 if size < 1 else 1 if size < 10 else 0)


def with_unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{short(value)} {unit}"


def speed(tok_s: float | None) -> str:
    return with_unit(tok_s, "tok/s")


def millis(value_ms: float | None) -> str:
    """“12.3 ms” below a second, “1.2 s” above."""
    if value_ms is None:
        return UNKNOWN
    return seconds(value_ms / 1000) if value_ms >= 1000 else f"{value_ms:,.{1 if value_ms < 100 else 0}f} ms"


def seconds(value_s: float | None) -> str:
    """“0.83 s”, “8.3 s”, “42 s”, “2 min 05 s”."""
    if value_s is None:
        return UNKNOWN
    if value_s >= 90:
        return f"{int(value_s) // 60} min {int(value_s) % 60:02d} s"
    return f"{short(value_s)} s"


def roughly(low_s: float, high_s: float) -> str:
    """A time that is only known roughly: “a few seconds”, “about 40 s”, “3 to 5 min”, “up to 20 s”."""
    if high_s < 8:
        return "a few seconds"
    step_s, per_step, unit = (60, 1, "min") if high_s >= 90 else (10, 10, "s")
    low, high = (per_step * round(value_s / step_s) for value_s in (low_s, high_s))
    if low == high:
        return f"about {high} {unit}"
    return f"{low} to {high} {unit}" if low else f"up to {high} {unit}"


def ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}×" if value < 99.5 else f"{value:.0f}×"


def percent(share: float | None) -> str:
    """A share from 0 to 1 → “3.4%”."""
    if share is None:
        return UNKNOWN
    return f"{share * 100:.1f}%" if 0 < share < 0.1 else f"{share * 100:.0f}%"


def size(value_bytes: float | None) -> str:
    """Bytes → “269 MB” or “1.2 GB” (decimal, as file sizes and bandwidth are given)."""
    if value_bytes is None:
        return UNKNOWN
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value_bytes >= factor:
            return f"{short(value_bytes / factor)} {unit}"
    return f"{value_bytes:.0f} B"


def moment(iso_utc: str | None) -> str:
    """ISO time → “1 Dec 2026, 06:40 UTC”; the text itself when it is no such time."""
    if not iso_utc:
        return UNKNOWN
    try:
        when = datetime.fromisoformat(iso_utc)
    except ValueError:
        return iso_utc
    when = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    return f"{when.day} {when:%b %Y, %H:%M} UTC"
