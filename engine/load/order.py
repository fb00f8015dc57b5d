"""What the app tells the sending process about one level, and what that process tells back: plain JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from engine.metrics import RequestTrace, ServerTimings

CANCELLED = "Cancelled."


class Prompt(NamedTuple):
    """What one user asks: text, turn by turn, or ``tokens`` made up tokens (then ``turns`` is empty)."""

    max_tokens: int
    turns: tuple[str, ...] = ()
    tokens: int = 0


@dataclass(frozen=True)
class Vocabulary:
    """Token ids that made-up prompts are cut from, and the ids that every prompt of this model begins with."""

    lead: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class LevelOrder:
    """One level. Conversation number i asks ``prompts[i % len(prompts)]``.

    Closed loop: ``users`` of them at once, each taking the next as soon as its last is over, until ``conversations``
    have begun or ``duration_s`` has passed. Open loop: ``arrivals_s`` after the start, whatever happens meanwhile.
    ``salt`` makes nonces that no other level has.
    """

    prompts: tuple[Prompt, ...]
    users: int = 0
    conversations: int | None = None
    duration_s: float | None = None
    arrivals_s: tuple[float, ...] | None = None
    vocabulary: Vocabulary = Vocabulary()
    chat: bool = False
    nonce: bool = True
    salt: str = ""
    ignore_eos: bool = False
    temperature: float = 0.0
    timeout_s: float = 300.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict`` after JSON."""
        prompts = tuple(Prompt(most, tuple(turns), tokens) for most, turns, tokens in values["prompts"])
        words = values["vocabulary"]
        arrivals = values["arrivals_s"]
        return cls(
            **dict(values)
            | {
                "prompts": prompts,
                "vocabulary": Vocabulary(tuple(words["lead"]), tuple(words["ids"])),
                "arrivals_s": None if arrivals is None else tuple(arrivals),
            }
        )


class Sent(NamedTuple):
    """One request of a level: the how manieth, whose lane, which turn of its conversation, and what came of it."""

    number: int
    user: int
    turn: int
    trace: RequestTrace


@dataclass(frozen=True)
class LevelOutcome:
    """A level that is over. ``stopped`` says why before its end (empty: it reached it). Times are on one clock."""

    sent: tuple[Sent, ...]
    began_s: float
    cpu_s: float
    loop_lag_p99_ms: float | None
    stopped: str = ""

    @property
    def traces(self) -> list[RequestTrace]:
        return [one.trace for one in self.sent]


def pack(sent: Sent) -> list[Any]:
    """Without the words: times and counts as a JSON list."""
    trace = sent.trace
    server = trace.server
    return [
        *(sent.number, sent.user, sent.turn, trace.sent_s, trace.intended_s, trace.first_choice_s),
        *(trace.finish_s, trace.ended_s, trace.chunk_times_s, trace.prompt_tokens, trace.output_tokens),
        *(trace.cached_tokens, trace.finish_reason, trace.error, trace.expected_tokens, trace.remedy),
        *(trace.rejected, trace.status, [server.ttft_ms, server.queue_ms, server.mean_itl_ms] if server else None),
    ]


def unpack(row: Sequence[Any]) -> Sent:
    number, user, turn, sent_s, intended_s, first_choice_s, finish_s, ended_s, times, *rest = row
    prompt_tokens, output_tokens, cached, reason, error, expected, remedy, rejected, status, server = rest
    trace = RequestTrace(
        sent_s=sent_s,
        intended_s=intended_s,
        first_choice_s=first_choice_s,
        finish_s=finish_s,
        ended_s=ended_s,
        chunk_times_s=tuple(times),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached,
        finish_reason=reason,
        error=error,
        expected_tokens=expected,
        remedy=remedy,
        rejected=rejected,
        status=status,
        server=ServerTimings(*server) if server else None,
    )
    return Sent(number, user, turn, trace)
