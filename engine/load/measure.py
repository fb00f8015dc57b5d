"""A load test on a server that is ready: level after level, each warmed up, sent and summed up."""

from __future__ import annotations

import resource
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from engine.config import Endpoint, LoadTestConfig
from engine.dialects import by_key
from engine.errors import ConfigError, RequestInterrupted
from engine.load.board import LoadBoard
from engine.load.levels import level_result
from engine.load.order import CANCELLED, LevelOrder, LevelOutcome, Prompt
from engine.load.process import LoadGenerator
from engine.load.profiles import Level, knee_of, levels_of, saturated
from engine.load.prompt_files import read_prompts
from engine.load.prompts import PromptSet, Tokenizer, ask_tokenizer, prompts_of
from engine.load.results import LevelResult, LoadResults
from engine.load.slo import slo_of
from engine.load.watch import MetricsWatch
from engine.metrics import RequestTrace
from engine.telemetry.host import CoreWatch, OtherWork
from engine.telemetry.prometheus import scrape

WARM_UP_TOKENS = 8
MOST_WARM_UPS = 1000
OPEN_LOOP_WARM_UPS = 8
SPARE_FILES = 64
NOT_FORCED_NOTE = "This server is not known to force the length of answers: they end where the model ends them."
CACHED_NOTE = "All requests have one and the same prompt: the prefix cache answers for most of it."
NO_NONCE_NOTE = "Prompts repeat without a nonce: the prefix cache may answer for them."


class Cancelled(Exception):
    """The load test was called off; what was measured is on the board."""


@dataclass(frozen=True)
class _Task:
    """A level and all that is needed to send it."""

    index: int
    level: Level
    order: LevelOrder


def measure(
    endpoint: Endpoint,
    config: LoadTestConfig,
    board: LoadBoard | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    watch_cores: Callable[[], CoreWatch | None] = lambda: None,
) -> LoadResults:
    """All levels of ``config`` on a server that nobody else uses meanwhile. Blocks.

    Raises Cancelled, or a LabError: before anything is sent for what can't work, and when the server fails so many
    requests in a row that it must be gone. What was measured until then is on the ``board``.
    """
    board = board or LoadBoard(config)
    return _Measurement(endpoint, config, board, cancelled, watch_cores).run()


def _can_force(endpoint: Endpoint) -> bool:
    """Whether this engine knows ``ignore_eos``; one that nobody has recognised tells by its metrics."""
    return by_key(endpoint.engine or scrape(endpoint).engine).ignore_eos


class _Measurement:
    def __init__(
        self,
        endpoint: Endpoint,
        config: LoadTestConfig,
        board: LoadBoard,
        cancelled: Callable[[], bool],
        watch_cores: Callable[[], CoreWatch | None],
    ) -> None:
        self._endpoint, self._config, self._board = endpoint, config, board
        self._cancelled, self._watch_cores = cancelled, watch_cores
        self._read = cache(read_prompts)  # a file of many megabytes is read for one level, not for each

    def run(self) -> LoadResults:
        levels = levels_of(self._config)
        _check_open_files(levels)
        self._board.plan(levels)
        self._board.change_results(slo=slo_of(self._config))
        self._board.say("Preparing the prompts")
        tokenizer = ask_tokenizer(self._endpoint)
        forces = self._config.force_length and _can_force(self._endpoint)
        self._note_choices(forces)
        with LoadGenerator() as generator:
            for index, level in enumerate(levels):
                self._check()
                prompts = self._prompts(level, tokenizer)
                task = _Task(index, level, self._order(level, prompts, forces))
                if not index:
                    self._try_one(generator, task)
                result = self._measure(generator, task)
                self._board.change_results(knee=knee_of(self._board.results.levels))
                if self._config.profile == "ramp" and index < len(levels) - 1 and self._is_saturated(index, result):
                    self._board.change_results(saturated=True)
                    break
        return self._board.results

    def _prompts(self, level: Level, tokenizer: Tokenizer) -> PromptSet:
        prompts = prompts_of(self._config, level, tokenizer, self._check, self._read)
        for note in prompts.notes:
            self._board.note(note)
        return prompts

    def _note_choices(self, forces: bool) -> None:
        config = self._config
        if config.force_length and not forces:
            self._board.note(NOT_FORCED_NOTE)
        if config.same_prompt:
            self._board.note(CACHED_NOTE)
        elif not config.nonce:
            self._board.note(NO_NONCE_NOTE)

    def _order(self, level: Level, prompts: PromptSet, forces: bool) -> LevelOrder:
        config = self._config
        turns = max((len(prompt.turns) for prompt in prompts.prompts), default=1) or 1
        return LevelOrder(
            prompts.prompts,
            users=level.users or 0,
            conversations=None if level.requests is None else max(-(-level.requests // turns), level.users or 0),
            duration_s=None if level.arrivals_s is not None else level.duration_s,
            arrivals_s=level.arrivals_s,
            vocabulary=prompts.vocabulary,
            chat=prompts.chat,
            nonce=config.nonce and not config.same_prompt,
            salt=secrets.token_hex(8),
            ignore_eos=forces,
            temperature=config.temperature,
            timeout_s=config.timeout_s,
        )

    def _try_one(self, generator: LoadGenerator, task: _Task) -> None:
        """One request, so that what no request can do is said before a thousand fail."""
        self._board.say("Trying one request")
        outcome = self._send(generator, _first_only(task.order))
        for trace in outcome.traces:
            if (failure := trace.failure()) is not None:
                raise failure

    def _measure(self, generator: LoadGenerator, task: _Task) -> LevelResult:
        warmed = self._warm_up(generator, task) if self._config.warm_up else None
        self._board.begin(task.index, task.level, warming_up=False)
        cores = self._watch_cores()
        with MetricsWatch(self._endpoint) as watch:
            outcome = generator.run(
                self._endpoint,
                task.order,
                lambda event: self._board.progress(event, watch.waiting),
                self._cancelled,
            )
        others = _without_client(cores.read() if cores else None, outcome)
        result = level_result(
            task.level,
            outcome,
            watch,
            slo_of(self._config),
            warmed=warmed,
            lengths_forced=task.order.ignore_eos,
            others=others,
        )
        self._board.add(result)
        self._check(outcome)
        return result

    def _warm_up(self, generator: LoadGenerator, task: _Task) -> Sequence[RequestTrace]:
        """As many requests at once as the level has, with its own prompts and short answers."""
        self._board.begin(task.index, task.level, warming_up=True)
        outcome = self._send(generator, _warm_up_order(task))
        return outcome.traces if task.level.users == len(outcome.traces) else []

    def _send(self, generator: LoadGenerator, order: LevelOrder) -> LevelOutcome:
        outcome = generator.run(self._endpoint, order, cancelled=self._cancelled)
        self._check(outcome)
        return outcome

    def _check(self, outcome: LevelOutcome | None = None) -> None:
        if self._cancelled():
            raise Cancelled
        if outcome is not None and outcome.stopped and outcome.stopped != CANCELLED:
            raise RequestInterrupted(outcome.stopped, "Look at the server's log.")

    def _is_saturated(self, index: int, result: LevelResult) -> bool:
        return index > 0 and saturated(self._board.results.levels[index - 1], result)


def _check_open_files(levels: Sequence[Level]) -> None:
    """Every request in flight is an open file of the sending process; said here, not by ten thousand failures."""
    most = max((level.users or 0) for level in levels)
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and most + SPARE_FILES > allowed:
        raise ConfigError(
            f"{most:,} users need more open files than the {allowed:,} that this system allows a process.",
            "Use fewer users, or raise the hard limit (ulimit -Hn).",
        )


def _first_only(order: LevelOrder) -> LevelOrder:
    first = order.prompts[0]
    short = Prompt(min(first.max_tokens, WARM_UP_TOKENS), first.turns[:1], first.tokens)
    return replace(order, prompts=(short,), users=1, conversations=1, duration_s=None, arrivals_s=None, salt="first")


def _warm_up_order(task: _Task) -> LevelOrder:
    order = task.order
    users = order.users or min(OPEN_LOOP_WARM_UPS, len(order.arrivals_s or ()))
    if task.level.users is None and order.arrivals_s and not any(order.arrivals_s):
        users = len(order.arrivals_s)  # a burst
    users = min(users, MOST_WARM_UPS)
    prompts = tuple(prompt._replace(max_tokens=min(prompt.max_tokens, WARM_UP_TOKENS)) for prompt in order.prompts)
    return replace(
        order,
        prompts=prompts,
        users=users,
        conversations=users,
        duration_s=None,
        arrivals_s=None,
        salt=f"{order.salt} warm-up",
    )


def _without_client(others: OtherWork | None, outcome: LevelOutcome) -> OtherWork | None:
    """The sending process is no part of the server, but its time is told apart."""
    ends = [trace.ended_s for trace in outcome.traces if trace.ended_s is not None]
    if others is None or not ends or max(ends) <= outcome.began_s:
        return others
    own = outcome.cpu_s / (max(ends) - outcome.began_s)
    return replace(others, busy_cores=max(0.0, others.busy_cores - own))
