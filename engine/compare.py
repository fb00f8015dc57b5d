"""Hugging Face against vLLM: same weights, dtype, threads, prompt ids and output length.

The two never compute at the same time: Hugging Face is measured first in its own process, that
process ends, then vLLM is measured. Every shape is warmed up once and that is thrown away.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.baseline import HfBaseline, hf_dtype
from engine.client import CompletionRequest, run_concurrently, tokenize
from engine.compare_results import (
    ENGINE_LABELS,
    CompareResults,
    CompareSnapshot,
    CompareState,
    Lane,
    LaneState,
    Level,
    Mode,
    RacePieces,
    Repeat,
    engine_result,
    level_result,
)
from engine.config import CompareConfig, Device, Endpoint, ServerConfig, Settings
from engine.environment import Hardware, collect, detect_hardware
from engine.errors import AlreadyRunning, BaselineError, ConfigError, LabError, ServerError
from engine.models import ModelSource, find_ready
from engine.server.command import uses_eager
from engine.server.supervisor import Supervisor
from engine.store import RunStore, new_run
from engine.telemetry.prometheus import scrape

Prompts = list[list[int]]
NONCE_NOTE = "Every prompt begins with a number of its own, so that prefix caching does not flatter vLLM."
BOTH_FIT_FACTOR, BOTH_FIT_EXTRA = 1.3, int(1.5 * 1024**3)


class _Cancelled(Exception):
    pass


class CompareRunner:
    """One comparison at a time, on its own thread; the result is saved as a run."""

    def __init__(self, settings: Settings, supervisor: Supervisor, store: RunStore) -> None:
        self._settings, self._supervisor, self._store = settings, supervisor, store
        self._lock = threading.Lock()
        self._snapshot = CompareSnapshot()
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        self._baseline: HfBaseline | None = None
        self._began = 0.0
        self._steps_done, self._steps = 0, 1

    def snapshot(self) -> CompareSnapshot:
        with self._lock:
            current = self._snapshot
        return replace(current, elapsed_s=time.monotonic() - self._began) if current.running else current

    def start(self, config: CompareConfig) -> None:
        """Begin and return; raises AlreadyRunning."""
        with self._lock:
            if self._snapshot.running:
                raise AlreadyRunning("A comparison runs already.", "Wait for it, or cancel it.")
            self._cancel.clear()
            self._began = time.monotonic()
            self._steps_done, self._steps = 0, _work(config)
            lanes = tuple(Lane(name, ENGINE_LABELS[name]) for name in config.engines)
            empty = CompareResults(engines={}, notes=(NONCE_NOTE,))
            self._snapshot = CompareSnapshot(
                CompareState.RUNNING, "Beginning", config=config, lanes=lanes, results=empty
            )
            self._thread = threading.Thread(target=self._run, args=(config,), name="compare", daemon=True)
            self._thread.start()

    def cancel(self) -> None:
        """End it soon; what was measured is kept and marked."""
        self._cancel.set()
        baseline = self._baseline
        if baseline is not None:
            baseline.close()

    def run_blocking(self, config: CompareConfig, progress: Callable[[str], None]) -> CompareResults:
        """For the command line: raises LabError unless it was measured wholly."""
        self.start(config)
        thread, last = self._thread, ""
        assert thread is not None
        while thread.is_alive():
            thread.join(0.5)
            message = self.snapshot().message
            if message != last:
                progress(message)
                last = message
        ended = self.snapshot()
        if ended.state != CompareState.DONE or ended.results is None:
            raise BaselineError(ended.error or "The comparison was cancelled.", ended.remedy)
        return ended.results

    # -- on the runner's thread

    def _run(self, config: CompareConfig) -> None:
        state, error, remedy = CompareState.DONE, None, ""
        try:
            self._measure(config)
        except _Cancelled:
            state = CompareState.CANCELLED
        except LabError as problem:
            state, error, remedy = CompareState.FAILED, problem.cause, problem.remedy
            if self._cancel.is_set():
                state, error, remedy = CompareState.CANCELLED, None, ""
        except Exception as problem:  # a fault of ours must not leave the page at "running" for ever
            state, error, remedy = (
                CompareState.FAILED,
                f"{type(problem).__name__}: {problem}",
                "This is a fault of the lab.",
            )
        run_id = None
        try:
            run_id = self._save(config, state)
        except LabError as problem:
            error, remedy = error or problem.cause, remedy or problem.remedy
        self._publish(
            state=state, message=state.value.capitalize(), error=error, remedy=remedy, run_id=run_id, progress=1.0
        )

    def _measure(self, config: CompareConfig) -> None:
        own = not self._supervisor.snapshot().attached
        running = self._supervisor.snapshot().ready
        needs_server = True  # /tokenize gives both engines the very same ids
        if needs_server and not running:
            self._say("Starting the vLLM server")
            with contextlib.suppress(AlreadyRunning):
                self._supervisor.start()
        try:
            self._await_server()
            self._measure_engines(config, own)
        finally:
            if own and not running:
                self._supervisor.stop(wait=True)

    def _measure_engines(self, config: CompareConfig, own: bool) -> None:
        hardware, source = detect_hardware(self._settings), self._source()
        served = self._supervisor.snapshot().config or ServerConfig()
        self._results(weights_bytes=source.weights_bytes, context=self._context(hardware, source, served))
        plan = self._plan(config)
        if "hf" in config.engines:
            apart = own and not _both_fit(hardware, source)
            if apart:
                self._note(
                    "Both engines do not fit into memory together: the server was stopped while Hugging Face ran."
                )
                self._supervisor.stop(wait=True)
            self._measure_hf(config, hardware, source, plan)
            if apart:
                self._supervisor.start(served)
                self._await_server()
        if "vllm" not in config.engines:
            return
        if not (config.eager_against_graphs and own):
            self._measure_vllm(config, "vllm", plan)
            return
        try:
            for name, eager in (("vllm_eager", True), ("vllm", False)):
                self._say(f"Restarting the server: {ENGINE_LABELS[name]}")
                self._restart(replace(served, enforce_eager=eager))
                self._measure_vllm(config, name, plan)
        finally:
            if uses_eager(served, hardware):
                self._supervisor.restart(served)

    def _plan(self, config: CompareConfig) -> dict[int, list[Prompts]]:
        """For every number of users: one list of prompts to warm up, then one for each repeat."""
        endpoint = self._supervisor.endpoint()
        users = sorted({1, *config.users})
        length = len(_ids(endpoint, config.prompt))
        one = lambda: _ids_of_length(endpoint, config.prompt, length)  # noqa: E731
        plan = {n: [[one() for _ in range(n)] for _ in range(config.repeats + 1)] for n in users}
        longest = length
        if endpoint.max_model_len is not None and longest + config.max_tokens > endpoint.max_model_len:
            raise ConfigError(
                f"The prompt has {longest} tokens; with {config.max_tokens} more it exceeds the context of "
                f"{endpoint.max_model_len}.",
                "Shorten the prompt, lower max_tokens, or raise max_model_len.",
            )
        return plan

    def _measure_hf(
        self, config: CompareConfig, hardware: Hardware, source: ModelSource, plan: dict[int, list[Prompts]]
    ) -> None:
        self._say("Loading Hugging Face")
        self._lane("hf", state=LaneState.LOADING)
        log = self._settings.logs_dir / f"baseline-{time.strftime('%Y%m%d-%H%M%S')}.log"
        with HfBaseline(hardware, log) as baseline:
            self._baseline = baseline
            try:
                baseline.load(source.path)
                peak: int | None = None
                for users, groups in plan.items():
                    modes = [Mode.SEQUENTIAL]
                    if users > 1 and config.static_batch:
                        modes.append(Mode.STATIC_BATCH)
                    for mode in modes:
                        repeats = []
                        for number, prompts in enumerate(groups):
                            self._tell_repeat("hf", mode, users, number, config)
                            repeat, used = self._hf_repeat(baseline, prompts, config.max_tokens, mode, race=users == 1)
                            peak = max(peak or 0, used or 0) or None
                            if number:
                                repeats.append(repeat)
                        self._add("hf", users, mode, repeats, baseline.load_s, peak, source.weights_bytes)
            finally:
                self._baseline = None
        self._lane("hf", state=LaneState.DONE)

    def _hf_repeat(
        self, baseline: HfBaseline, prompts: Prompts, new_tokens: int, mode: Mode, *, race: bool
    ) -> tuple[Repeat, int | None]:
        self._check_cancel()
        pieces = self._begin_race("hf") if race else None
        on_piece = (lambda t, text: self._piece("hf", pieces, t, text)) if pieces is not None else None
        batches = [prompts] if mode == Mode.STATIC_BATCH else [[ids] for ids in prompts]
        began = time.perf_counter()
        done = [baseline.generate(batch, new_tokens, on_piece) for batch in batches]
        wall = time.perf_counter() - began if len(done) > 1 else done[0].generate_s
        tokens = sum(one.output_tokens for one in done)
        repeat = replace(
            Repeat.from_traces([one.trace for one in done], steps=new_tokens * len(batches)),
            generate_s=wall,
            output_tokens=tokens,
            throughput_tok_s=tokens / wall,
        )
        return repeat, done[-1].peak_memory_bytes

    def _measure_vllm(self, config: CompareConfig, name: str, plan: dict[int, list[Prompts]]) -> None:
        endpoint = self._supervisor.endpoint()
        load_s = self._supervisor.snapshot().ready_after_s
        weights = self._snapshot.results.weights_bytes if self._snapshot.results else None
        for users, groups in plan.items():
            repeats = []
            for number, prompts in enumerate(groups):
                self._tell_repeat(name, Mode.CONCURRENT, users, number, config)
                repeat = self._vllm_repeat(endpoint, name, prompts, config.max_tokens, race=users == 1)
                if number:
                    repeats.append(repeat)
            self._add(name, users, Mode.CONCURRENT, repeats, load_s, self._server_memory(), weights)
        self._lane(name, state=LaneState.DONE)

    def _vllm_repeat(self, endpoint: Endpoint, name: str, prompts: Prompts, new_tokens: int, *, race: bool) -> Repeat:
        self._check_cancel()
        requests = [CompletionRequest(prompt=ids, max_tokens=new_tokens, ignore_eos=True) for ids in prompts]
        before = self._iterations(endpoint)
        pieces = self._begin_race(name) if race else None
        began = time.perf_counter()

        def on_text(_: int, text: str, t: float) -> None:
            if pieces is not None:
                self._piece(name, pieces, t - began, text)

        traces = run_concurrently(endpoint, requests, on_text, self._cancel)
        self._check_cancel()
        after = self._iterations(endpoint)
        steps = after - before if before is not None and after is not None else None
        repeat = Repeat.from_traces(traces, steps=steps)
        if not repeat.ok:
            crash = self._supervisor.snapshot().diagnosis
            raise ServerError(
                crash.cause if crash else repeat.error or "A request failed.", crash.remedy if crash else ""
            )
        return repeat

    # -- the server

    def _await_server(self) -> None:
        while not self._supervisor.snapshot().ready:
            self._check_cancel()
            with contextlib.suppress(_NotYet):
                self._poll_server()

    def _poll_server(self) -> None:
        snapshot = self._supervisor.snapshot()
        if snapshot.busy:
            self._say(f"Starting the vLLM server: {snapshot.message}")
            time.sleep(0.3)
            raise _NotYet
        self._supervisor.wait_ready(1.0)

    def _restart(self, config: ServerConfig) -> None:
        before = self._supervisor.snapshot().generation
        self._supervisor.restart(config)
        while self._supervisor.snapshot().generation == before:
            self._check_cancel()
            time.sleep(0.1)
        self._await_server()

    def _source(self) -> ModelSource:
        snapshot = self._supervisor.snapshot()
        source = snapshot.source
        if source is None and snapshot.endpoint is not None:
            source = find_ready(snapshot.endpoint.model, self._settings)
        if source is None:
            raise ConfigError(
                "The weights of the attached server's model are not on this machine, so Hugging Face can't run them.",
                "Compare with the lab's own server.",
            )
        return source

    def _server_memory(self) -> int | None:
        """Resident memory of the lab's own server, all processes; None on a GPU and for somebody else's."""
        snapshot = self._supervisor.snapshot()
        if snapshot.pid is None or detect_hardware(self._settings).device != Device.CPU:
            return None
        import psutil

        from engine.server.processes import group_members

        total = 0
        for pid in group_members(snapshot.pid):
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
        return total or None

    @staticmethod
    def _iterations(endpoint: Endpoint) -> int | None:
        with contextlib.suppress(LabError):
            return scrape(endpoint).iterations
        return None

    def _context(self, hardware: Hardware, source: ModelSource, served: ServerConfig) -> dict[str, Any]:
        return {
            "model": source.model_id,
            "weights": source.detail,
            "dtype": hf_dtype(hardware),
            "device": str(hardware.device),
            "threads": len(hardware.cpu_ids),
            "vllm_eager": uses_eager(served, hardware),
        }

    # -- what viewers see

    def _add(
        self,
        name: str,
        users: int,
        mode: Mode,
        repeats: Sequence[Repeat],
        load_s: float | None,
        peak: int | None,
        weights: int | None,
    ) -> None:
        """Add what one shape gave; one user is the headline."""
        results = self._snapshot.results
        assert results is not None
        level: Level = level_result(users, mode, name, repeats, weights_bytes=weights)
        engines = dict(results.engines)
        if users == 1:
            engines[name] = engine_result(repeats, load_s=load_s, peak_memory_bytes=peak, weights_bytes=weights)
            lane = self._snapshot.lane(name)
            race = (*results.race, RacePieces(name, lane.text_pieces if lane else ()))
            self._results(engines=engines, levels=(*results.levels, level), race=race)
        else:
            self._results(levels=(*results.levels, level))

    def _tell_repeat(self, name: str, mode: Mode, users: int, number: int, config: CompareConfig) -> None:
        self._steps_done += 1
        which = f"repeat {number} of {config.repeats}" if number else "warm-up, not counted"
        who = "one request" if users == 1 else f"{users} prompts, {mode.value.replace('_', ' ')}"
        if users == 1:
            self._lane(name, state=LaneState.RUNNING if number else LaneState.WARMING, detail=which)
        else:
            self._lane(name, state=LaneState.DONE)
        self._publish(
            message=f"{ENGINE_LABELS[name]}: {who}, {which}", progress=min(0.99, self._steps_done / (self._steps + 1))
        )

    def _begin_race(self, name: str) -> list[tuple[float, str]]:
        self._lane(name, text_pieces=(), elapsed_s=0.0)
        return []

    def _piece(self, name: str, pieces: list[tuple[float, str]], t: float, text: str) -> None:
        pieces.append((t, text))
        self._lane(name, text_pieces=tuple(pieces), elapsed_s=t)

    def _lane(self, name: str, **changes: Any) -> None:
        with self._lock:
            lanes = self._snapshot.lanes
            if all(lane.engine != name for lane in lanes):
                lanes = (*lanes, Lane(name, ENGINE_LABELS[name]))
            lanes = tuple(replace(lane, **changes) if lane.engine == name else lane for lane in lanes)
            self._snapshot = replace(self._snapshot, lanes=lanes)

    def _note(self, note: str) -> None:
        results = self._snapshot.results
        assert results is not None
        self._results(notes=(*results.notes, note))

    def _results(self, **changes: Any) -> None:
        results = self._snapshot.results
        assert results is not None
        self._publish(results=replace(results, **changes))

    def _say(self, message: str) -> None:
        self._check_cancel()
        self._publish(message=message)

    def _publish(self, **changes: Any) -> None:
        with self._lock:
            self._snapshot = replace(self._snapshot, **changes)

    def _check_cancel(self) -> None:
        if self._cancel.is_set():
            raise _Cancelled

    def _save(self, config: CompareConfig, state: CompareState) -> str | None:
        results = self._snapshot.results
        if results is None or results.empty:
            return None
        snapshot = self._supervisor.snapshot()
        ratio = results.ratio
        title = "HF vs vLLM" if ratio is None else f"HF vs vLLM: {ratio:.2f}×"
        run = new_run(
            "compare",
            title,
            state.value,
            duration_s=time.monotonic() - self._began,
            config=config.to_dict() | {"server": snapshot.config.to_dict() if snapshot.config else None},
            environment=collect(self._settings).to_dict(),
            model=snapshot.source.to_dict() if snapshot.source else {},
            command=snapshot.command,
            results=results.to_dict(),
        )
        self._store.add(run)
        return run.id


class _NotYet(Exception):
    """The server is still starting."""


def _ids(endpoint: Endpoint, prompt: str) -> list[int]:
    """Token ids of the prompt in the chat template, behind a number of its own (always seven digits)."""
    nonce = 1_000_000 + secrets.randbelow(9_000_000)
    return tokenize(endpoint, messages=[{"role": "user", "content": f"[{nonce}] {prompt}"}])


def _ids_of_length(endpoint: Endpoint, prompt: str, length: int) -> list[int]:
    """Prompts of one length only: a static batch then needs no padding. Tokenisers may split numbers unevenly."""
    for _ in range(100):
        ids = _ids(endpoint, prompt)
        if len(ids) == length:
            return ids
    raise ConfigError("No prompts of equal length could be made for this tokeniser.", "Change the prompt a little.")


def _both_fit(hardware: Hardware, source: ModelSource) -> bool:
    """Whether the baseline fits beside the running server, by an estimate."""
    need = int((source.weights_bytes or 0) * BOTH_FIT_FACTOR) + BOTH_FIT_EXTRA
    if hardware.device == Device.CPU:
        return hardware.ram_available_bytes > need
    free = [gpu.memory_free_bytes for gpu in hardware.gpus]
    return bool(free) and free[0] is not None and free[0] > need


def _work(config: CompareConfig) -> int:
    """How many repeats there are in all, warm-ups included: for the progress bar."""
    shapes = 0
    for users in {1, *config.users}:
        if "hf" in config.engines:
            shapes += 2 if users > 1 and config.static_batch else 1
        if "vllm" in config.engines:
            shapes += 2 if config.eager_against_graphs else 1
    return shapes * (config.repeats + 1)
