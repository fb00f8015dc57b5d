"""What every slot of a memory is used for, kept up to date from event to event.

Between two events each running sequence turns one reserved slot into a token state per step, so that nothing has to
be counted again: the cost of a simulation grows with its events, not with steps times requests.
"""

from __future__ import annotations

from engine.kv.stay import Stay


class Ledger:
    """Slots by kind at ``step``; the five kinds always add up to ``slots``.

    ``external`` starts with ``unusable``: what is left over beyond whole units. ``growing`` is the number of
    sequences that get a token in each step.
    """

    def __init__(self, slots: int, unusable: int) -> None:
        self.slots = slots
        self.step = 0
        self.tokens = 0
        self.reserved = 0
        self.internal = 0
        self.external = unusable
        self.free = slots - unusable
        self.growing = 0

    def advance(self, step: int) -> None:
        grown = self.growing * (step - self.step)
        self.tokens += grown
        self.reserved -= grown
        self.step = step

    def enter(self, stay: Stay, tokens: int, reserved: int, internal: int, external: int = 0, shared: int = 0) -> None:
        """A stay begins. ``shared`` of its token slots are in memory already, since others hold them too."""
        stay.tokens = tokens
        self.tokens += tokens - shared
        self.free -= tokens - shared
        self.growing += stay.sequences
        self.extend(stay, reserved, internal, external)

    def extend(self, stay: Stay, reserved: int, internal: int, external: int = 0, tokens: int = 0) -> None:
        """A stay gets more slots; ``tokens`` of them hold a copy already."""
        stay.tokens += tokens
        stay.reserved += reserved
        stay.internal += internal
        stay.external += external
        self.tokens += tokens
        self.reserved += reserved
        self.internal += internal
        self.external += external
        self.free -= tokens + reserved + internal + external

    def leave(self, stay: Stay, shared: int = 0) -> None:
        """A stay ends in this step. ``shared`` of its token slots stay in use, since others hold them too."""
        grown = stay.sequences * (self.step - stay.start)
        tokens, reserved = stay.tokens + grown, stay.reserved - grown
        self.tokens -= tokens - shared
        self.reserved -= reserved
        self.internal -= stay.internal
        self.external -= stay.external
        self.free += tokens - shared + reserved + stay.internal + stay.external
        self.growing -= stay.sequences
