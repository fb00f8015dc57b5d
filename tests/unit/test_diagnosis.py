"""Every row of failures.yaml has a log of its own (which are real: tests/fixtures/logs/README.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import ServerConfig
from engine.server.diagnosis import (
    MAX_LINE_CHARS,
    diagnose,
    diagnose_file,
    diagnose_request_error,
    exit_words,
    parse_line,
    read_lines,
)
from engine.server.failures import Scope, fill, load_rules
from engine.server.state import Diagnosis

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
STARTS = sorted((LOGS / "starts").glob("*.log"))
RULES = {rule.name: rule for rule in load_rules()}
CONFIG = ServerConfig(max_model_len=2048, max_num_seqs=32)
WRAPPER = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
WRAPPER_TRACEBACK = ["(APIServer pid=1) Traceback (most recent call last):", WRAPPER]

# Rule → the change of settings that its log leads to, None where no setting cures it.
EXPECTED_CHANGES: dict[str, dict[str, object] | None] = {
    "bfloat16_on_old_gpu": {"dtype": "half"},
    "fp8_kv_cache_on_old_gpu": {"kv_cache_dtype": "auto"},
    "attention_backend_unsupported": {"attention_backend": "TRITON_ATTN"},
    "shared_memory_exceeded": None,
    "gpu_kernels_missing": None,
    "gpu_memory_taken": None,
    "sampler_out_of_memory": {"max_num_seqs": 16},
    "no_memory_for_kv_cache": {"gpu_memory_utilization": 0.95},
    "kv_cache_too_small": {"max_model_len": 864},
    "gpu_out_of_memory": {"enforce_eager": True},
    "cpu_memory_share_too_high": {"kv_cache_gib": 1},
    "cpu_kv_cache_larger_than_ram": {"kv_cache_gib": None},
    "ram_exhausted": {"max_num_seqs": 16},
    "disk_full": None,
    "cuda_runtime_mismatch": None,
    "gpu_driver_too_old": None,
    "no_gpu_found": None,
    "torchvision_mismatch": None,
    "nvcc_missing": None,
    "vllm_package_missing": None,
    "vllm_not_installed": None,
    "notebook_output": None,
    "illegal_instruction": None,
    "unrecognized_arguments": None,
    "invalid_argument": None,
    "max_model_len_too_long": {"max_model_len": 8192},
    "batch_below_sequences": {"max_num_batched_tokens": 256},
    "batch_below_length": {"max_num_batched_tokens": 2048},
    "block_size_unsupported": {"block_size": None},
    "too_few_gpus": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
    "port_taken": {"port": None},
    "model_gated": None,
    "model_missing": None,
    "model_offline": None,
    "model_folder_invalid": None,
    "weights_damaged": None,
    "model_needs_own_code": None,
    "model_unsupported": None,
    "chat_template_missing": None,
    "engine_illegal_instruction": None,
    "engine_killed": {"max_num_seqs": 16},
    "engine_signal": None,
    "engine_died": None,
    "worker_killed": {"max_num_seqs": 16},
    "engine_failed": None,
}
# The configuration that led to a log, where the default one would not have.
CONFIGS: dict[str, dict[str, Any]] = {
    "bfloat16_on_old_gpu": {"dtype": "bfloat16"},
    "fp8_kv_cache_on_old_gpu": {"kv_cache_dtype": "fp8"},
    "attention_backend_unsupported": {"attention_backend": "FLASH_ATTN"},
    "cpu_kv_cache_larger_than_ram": {"kv_cache_gib": 400},
    "max_model_len_too_long": {"max_model_len": 100_000},
    "batch_below_sequences": {"max_num_seqs": 256},
    "batch_below_length": {"max_num_batched_tokens": 512},
    "block_size_unsupported": {"block_size": 16},
    "too_few_gpus": {"tensor_parallel_size": 2},
    "port_taken": {"port": 18100},
}
CRASHES = {"engine_died": 0}


def explain(lines: list[str], *, exit_code: int | None = 1, was_ready: bool = False, **settings: Any) -> Diagnosis:
    return diagnose(lines, exit_code=exit_code, config=replace(CONFIG, **settings), was_ready=was_ready)


def explain_log(name: str, config: ServerConfig | None = None) -> Diagnosis:
    return diagnose_file(
        LOGS / f"{name}.log",
        exit_code=CRASHES.get(name, 1),
        config=config or replace(CONFIG, **CONFIGS.get(name, {})),
        was_ready=name in CRASHES,
    )


def test_every_rule_has_a_log_and_every_log_a_rule() -> None:
    # *_2.log and so on are more logs of the same rule.
    logs = {path.stem for path in LOGS.glob("*.log") if not path.stem[-1].isdigit()}
    assert logs == set(RULES) == set(EXPECTED_CHANGES)


@pytest.mark.parametrize("name", RULES)
def test_log_leads_to_its_rule_with_a_filled_text_and_the_fix(name: str) -> None:
    found = explain_log(name)
    assert found.name == name
    assert "{" not in found.cause + found.remedy and "—" not in found.cause + found.remedy
    assert (found.fix.changes if found.fix else None) == EXPECTED_CHANGES[name]
    if found.fix:
        assert "{" not in found.fix.label and "—" not in found.fix.label


@pytest.mark.parametrize("path", sorted(LOGS.glob("*_[0-9].log")), ids=lambda path: path.stem)
def test_further_logs_of_a_rule(path: Path) -> None:
    found = diagnose_file(path, exit_code=1, config=CONFIG, was_ready=False)
    assert found.name == path.stem.rpartition("_")[0]
    assert "{" not in found.cause + found.remedy and "—" not in found.cause + found.remedy


@pytest.mark.parametrize("name", RULES)
def test_evidence_holds_the_matching_line_without_its_prefix(name: str) -> None:
    evidence = explain_log(name).evidence
    assert any(RULES[name].matches(line) for line in evidence)
    assert len(evidence) <= 5
    assert all(len(line) <= MAX_LINE_CHARS and "pid=" not in line[:30] for line in evidence)


@pytest.mark.parametrize("path", STARTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("was_ready", [False, True])
def test_healthy_starts_match_no_rule(path: Path, was_ready: bool) -> None:
    found = diagnose_file(path, exit_code=None, config=CONFIG, was_ready=was_ready)
    assert found.name == "unknown"
    assert found.fix is None


@pytest.mark.parametrize("path", STARTS, ids=lambda path: path.stem)
def test_healthy_starts_hold_no_words_of_a_rule_before_their_stop(path: Path) -> None:
    texts = [parse_line(line).text for line in read_lines(path)]
    end = next((n for n, text in enumerate(texts) if "shutdown triggered" in text), len(texts))
    assert [(rule.name, text) for text in texts[:end] for rule in RULES.values() if rule.matches(text)] == []


def test_a_stop_from_outside_is_named() -> None:
    path = LOGS / "starts" / "start_default.log"
    found = diagnose_file(path, exit_code=0, config=CONFIG, was_ready=True)
    assert "asked to stop by another program" in found.cause


@pytest.mark.parametrize("position", ["before", "after"])
def test_the_exact_beats_the_wrapper_wherever_it_stands(position: str) -> None:
    cause = ["(EngineCore pid=2) ValueError: No available memory for the cache blocks. Try increasing it."]
    lines = cause + WRAPPER_TRACEBACK if position == "before" else WRAPPER_TRACEBACK + cause
    assert explain(lines).name == "no_memory_for_kv_cache"


def test_sampler_warm_up_beats_the_out_of_memory_that_it_wraps() -> None:
    lines = [
        "(EngineCore pid=2) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "(EngineCore pid=2) RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
    ]
    assert explain(lines).name == "sampler_out_of_memory"


def test_a_missing_repository_is_not_gated_though_its_message_says_401_and_gated() -> None:
    lines = read_lines(LOGS / "model_missing.log")
    assert any("401" in line for line in lines) and any("gated" in line for line in lines)
    assert explain(lines).name == "model_missing"
    assert any("401" in line for line in read_lines(LOGS / "model_gated.log"))


def test_unknown_failure_shows_the_first_exception_of_the_engine() -> None:
    lines = [
        "(APIServer pid=1) Traceback (most recent call last):",
        "(EngineCore pid=2) ERROR 12-01 04:44:48 [core.py:1231] EngineCore failed to start.",
        "(EngineCore pid=2) ERROR 12-01 04:44:48 [core.py:1231] Traceback (most recent call last):",
        '(EngineCore pid=2) ERROR 12-01 04:44:48 [core.py:1231]   File "a.py", line 1, in f',
        "(APIServer pid=1) ValueError: something the server said",
        "(EngineCore pid=2) ERROR 12-01 04:44:48 [core.py:1231] flux.CapacitorError: 1.21 gigawatts needed",
        "(EngineCore pid=2) ERROR 12-01 04:44:48 [core.py:1231]",
        "(EngineCore pid=2) Process EngineCore:",
        "(EngineCore pid=2) Traceback (most recent call last):",
        "(EngineCore pid=2) KeyError: 'later'",
        *WRAPPER_TRACEBACK,
    ]
    found = explain(lines)
    assert found.name == "exception"
    assert "engine stopped with flux.CapacitorError: 1.21 gigawatts needed" in found.cause
    assert found.evidence[-1] == "flux.CapacitorError: 1.21 gigawatts needed"
    assert found.evidence[-2].strip().startswith("File")


def test_a_worker_s_exception_beats_the_engine_s_wrapper() -> None:
    lines = [
        "(Worker_TP1 pid=3) ERROR 12-01 04:44:48 [multiproc_executor.py:953] Traceback (most recent call last):",
        "(Worker_TP1 pid=3) ERROR 12-01 04:44:48 [multiproc_executor.py:953] ncclError: no link",
        "(EngineCore pid=2) ERROR 12-01 04:44:48 [core.py:1231] Traceback (most recent call last):",
        "(EngineCore pid=2) ERROR 12-01 04:44:48 [core.py:1231] Exception: WorkerProc initialization failed due to it.",
        *WRAPPER_TRACEBACK,
    ]
    assert "ncclError: no link" in explain(lines).cause


def test_a_validation_error_shows_what_was_wrong() -> None:
    lines = [
        "(APIServer pid=1) Traceback (most recent call last):",
        "(APIServer pid=1) pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "(APIServer pid=1)   Value error, the moon is full",
    ]
    assert "the moon is full" in explain(lines).cause


def test_without_a_traceback_the_last_lines_and_the_signal_are_shown() -> None:
    lines = [f"line {n}" for n in range(30)] + ["(APIServer pid=1) WARNING 12-01 04:39:06 [utils.py:626] [shutdown] x"]
    found = explain(lines, exit_code=-11)
    assert found.name == "unknown"
    assert "SIGSEGV" in found.cause
    assert found.evidence == tuple(f"line {n}" for n in range(22, 30))


@pytest.mark.parametrize(("code", "name"), [(-9, "engine_killed"), (137, "engine_killed"), (-4, "illegal_instruction")])
def test_a_signal_is_explained_when_the_log_says_nothing(code: int, name: str) -> None:
    assert explain([], exit_code=code).name == name


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "still running"),
        (0, "exit code 0"),
        (1, "exit code 1"),
        (-6, "SIGABRT"),
        (134, "SIGABRT"),
        (-10, "SIGUSR1"),
    ],
)
def test_exit_words(code: int | None, words: str) -> None:
    assert words in exit_words(code)


def test_exit_code_0_that_nobody_asked_for_is_a_crash() -> None:
    found = explain(["(APIServer pid=1) INFO:     Finished server process [1]"], exit_code=0, was_ready=True)
    assert "died while it was serving" in found.cause
    assert "did not ask" in found.cause


def test_a_server_killed_from_outside_leaves_a_clean_log() -> None:
    found = diagnose_file(LOGS / "crashes" / "api_killed.log", exit_code=-9, config=CONFIG, was_ready=True)
    assert found.name == "engine_killed"
    assert "Application startup complete." not in " ".join(found.evidence)


@pytest.mark.parametrize("log", ["worker_killed.log", "worker_killed_2.log"])  # while it idled, while it answered
def test_a_killed_worker_is_named_though_the_engine_reports_an_exception_of_its_own(log: str) -> None:
    found = diagnose_file(LOGS / "crashes" / log, exit_code=0, config=CONFIG, was_ready=True)
    assert found.name == "engine_died"
    assert any("VllmWorker-0 died unexpectedly" in line for line in found.evidence)


def test_failures_of_single_requests_do_not_explain_a_crash() -> None:
    lines = [
        "(APIServer pid=1) INFO:     Application startup complete.",
        "(APIServer pid=1) ERROR 12-01 04:45:51 [serving.py:820] Traceback (most recent call last):",
        "(APIServer pid=1) ERROR 12-01 04:45:51 [serving.py:820] ValueError: As of transformers v4.44, default chat "
        "template is no longer allowed, so you must provide a chat template",
        "(APIServer pid=1) WARNING 12-01 04:45:52 [core_client.py:702] [shutdown] MPClient: engine core exited "
        "unexpectedly; starting cleanup",
    ]
    assert explain(lines, exit_code=0, was_ready=True).name == "engine_died"


def test_what_the_start_survived_does_not_explain_a_crash() -> None:
    lines = [
        "(EngineCore pid=2) ERROR 12-01 04:44:48 [a.py:1] Could not find nvcc",
        "(APIServer pid=1) INFO:     Application startup complete.",
        "(EngineCore pid=2) ERROR 12-01 04:45:48 [core.py:1513] EngineCore encountered a fatal error.",
        "(EngineCore pid=2) ERROR 12-01 04:45:48 [core.py:1513] Traceback (most recent call last):",
        "(EngineCore pid=2) ERROR 12-01 04:45:48 [core.py:1513] AssertionError",
        "(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ]
    found = explain(lines, was_ready=True)
    assert found.name == "exception"
    assert "AssertionError" in found.cause


def test_words_said_in_passing_lose_to_the_real_exception() -> None:
    lines = [
        "(EngineCore pid=2) WARNING 12-01 04:44:48 [a.py:1] Could not find nvcc, using the other sampler",
        "(APIServer pid=1) INFO 12-01 04:44:48 [a.py:1] non-default args: {'model': 'SafetensorError'}",
        "(EngineCore pid=2) ERROR 12-01 04:44:49 [core.py:1231] Traceback (most recent call last):",
        "(EngineCore pid=2) ERROR 12-01 04:44:49 [core.py:1231] ZeroDivisionError: division by zero",
    ]
    assert "ZeroDivisionError" in explain(lines).cause
    assert explain(lines[:1]).name == "nvcc_missing"


def test_a_fix_that_changes_nothing_is_not_offered() -> None:
    assert explain_log("bfloat16_on_old_gpu", replace(CONFIG, dtype="half")).fix is None
    assert explain_log("no_memory_for_kv_cache", replace(CONFIG, gpu_memory_utilization=0.98)).fix is None


def test_the_next_fix_is_offered_when_the_first_is_spent() -> None:
    fix = explain_log("gpu_out_of_memory", replace(CONFIG, enforce_eager=True)).fix
    assert fix is not None
    assert fix.changes == {"gpu_memory_utilization": 0.8}
    assert fix.label == "Lower gpu_memory_utilization to 0.8"


def test_a_new_start_takes_another_port_even_if_none_was_chosen() -> None:
    fix = explain_log("port_taken", CONFIG).fix
    assert fix is not None and fix.changes == {"port": None}


def test_a_fix_is_a_valid_configuration_or_absent() -> None:
    line = "ValueError: Free memory on device cuda:0 ({}/15.0 GiB) on startup is less than desired GPU memory utilization (0.9, 13.5 GiB)."
    fitting = explain([line.format("9.0")]).fix
    assert fitting is not None and fitting.changes == {"gpu_memory_utilization": 0.58}
    assert explain([line.format("0.5")]).fix is None


def test_without_an_estimate_the_kv_cache_rule_still_explains_and_offers_memory() -> None:
    found = explain(["ValueError: To serve at least one request with the model's max seq len (2048), more is needed."])
    assert "2048" in found.cause
    assert found.fix is not None and found.fix.changes == {"gpu_memory_utilization": 0.95}


def test_older_wording_of_the_kv_cache_rule() -> None:
    line = (
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in "
        "KV cache (1776). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
    )
    found = explain([line], max_model_len=4096)
    assert found.name == "kv_cache_too_small"
    assert found.fix is not None and found.fix.changes == {"max_model_len": 1776}


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("As of transformers v4.44, default chat template is no longer allowed, so you must", "chat_template_missing"),
        ("out of resource: shared memory, Required: 81920, Hardware limit: 65536.", "shared_memory_exceeded"),
    ],
)
def test_request_errors(message: str, name: str) -> None:
    found = diagnose_request_error(message)
    assert found is not None and found.name == name
    assert "—" not in found.cause


def test_the_reply_of_a_real_server_to_a_chat_without_template() -> None:
    found = diagnose_request_error((LOGS / "chat_template_missing.reply").read_text("utf-8"))
    assert found is not None and found.name == "chat_template_missing"


@pytest.mark.parametrize("message", ["", "This model's maximum context length is 2048 tokens.", "Illegal instruction"])
def test_other_request_errors_speak_for_themselves(message: str) -> None:
    assert diagnose_request_error(message) is None


@pytest.mark.parametrize(
    ("line", "text", "process", "level"),
    [
        (
            "(EngineCore pid=7) ERROR 12-01 04:44:48 [core.py:1231] ValueError: x",
            "ValueError: x",
            "EngineCore",
            "ERROR",
        ),
        (
            "(EngineCore_DP0 pid=7) ERROR 12-01 04:44:48 [v1/engine/core.py:12]   File",
            "  File",
            "EngineCore_DP0",
            "ERROR",
        ),
        ("ERROR 04-01 10:00:00 core.py:58] ValueError: x", "ValueError: x", "", "ERROR"),
        ("\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO:     Started", "Started", "APIServer", "INFO"),
        ("(RayWorkerWrapper pid=12, ip=10.0.0.1) ValueError: x", "ValueError: x", "RayWorkerWrapper", ""),
        ("(EngineCore pid=7)   File", "  File", "EngineCore", ""),
        ("ValueError: (a) b", "ValueError: (a) b", "", ""),
        ("(nothing) ERROR", "(nothing) ERROR", "", ""),
        ("", "", "", ""),
    ],
)
def test_prefixes_are_split_off(line: str, text: str, process: str, level: str) -> None:
    parsed = parse_line(line)
    assert (parsed.text, parsed.process, parsed.level) == (text, process, level)


def test_a_huge_log_is_read_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    path.write_text("first\n" + "".join(f"middle {n:05}\n" for n in range(2000)) + "last\n", "utf-8")
    lines = read_lines(path, head_bytes=100, tail_bytes=100)
    assert lines[0] == "first" and lines[-1] == "last"
    assert len(lines) < 20
    assert all(line in ("first", "last") or len(line) == len("middle 00000") for line in lines)


@pytest.mark.parametrize("size", range(190, 211))
def test_a_log_of_about_the_bound_loses_and_doubles_nothing(tmp_path: Path, size: int) -> None:
    path = tmp_path / "some.log"
    text = ("0123456789abcdef\n" * 20)[: size - 1] + "\n"
    path.write_text(text, "utf-8")
    lines = read_lines(path, head_bytes=100, tail_bytes=100)
    if size <= 200:
        assert lines == text.splitlines()
    else:
        assert set(lines) <= set(text.splitlines())


def test_a_missing_log_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    gone = diagnose_file(tmp_path / "none.log", exit_code=1, config=CONFIG, was_ready=False)
    assert gone.name == "unknown" and gone.evidence == ()
    path = tmp_path / "bytes.log"
    path.write_bytes(b"\xff\xfe\x00\nTraceback (most recent call last):\nValueError: \xff\n")
    assert "ValueError" in diagnose_file(path, exit_code=1, config=CONFIG, was_ready=False).cause


def test_long_lines_are_cut() -> None:
    found = explain(["Traceback (most recent call last):", "ValueError: " + "x" * 10_000])
    assert max(map(len, (found.cause, *found.evidence))) <= MAX_LINE_CHARS + 50


def test_rules_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for text in ("- {name: a, cause: b, remedy: c}", "- {name: a, cause: b, remedy: c, match: [x], colour: red}"):
        path = tmp_path / f"{len(text)}.yaml"
        path.write_text(text, "utf-8")
        with pytest.raises(ValueError, match="Rule a"):
            load_rules(path)


def test_rule_texts_name_only_what_can_be_known() -> None:
    known = set(CONFIG.to_dict())
    for rule in RULES.values():
        groups = {name for pattern in rule.patterns for name in pattern.groupindex}
        for text in (rule.cause, rule.remedy, *(fix.label for fix in rule.fixes)):
            assert "—" not in fill(text, dict.fromkeys(known | groups, "x")), rule.name
        assert rule.scope in Scope
