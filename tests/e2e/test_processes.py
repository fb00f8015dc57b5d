"""What must hold however the lab ends, and the command line, with the real vLLM."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.lab import App, cli, data_folder, gone, wait_for

MOST_SECONDS_AFTER_THE_APP = 10.0


def test_a_killed_app_takes_its_server_along(tmp_path: Path) -> None:
    app = App(data_folder(tmp_path / "data"))
    try:
        server = app.server()
        app.kill()
        wait_for("the end of the server", lambda: gone(server), MOST_SECONDS_AFTER_THE_APP)
    finally:
        app.close()
    answer, code = cli(app.data_dir, "stop")
    assert (answer["found"], code) == (False, 0)


def test_compare_starts_a_server_measures_and_stops_it_again(tmp_path: Path) -> None:
    data = data_folder(tmp_path / "data")
    answer, code = cli(data, "compare", "--max-tokens", "20", "--repeats", "1", "--users", "1,4")
    assert code == 0, answer
    assert answer["ratio"] > 1
    for engine in ("hf", "vllm"):
        numbers = answer["engines"][engine]
        assert numbers["output_tokens"] == 20
        for name in ("load_s", "generate_s", "throughput_tok_s", "ttft_ms", "tpot_ms"):
            assert numbers[name] > 0, (engine, name)
    ratios = {ratio["users"]: ratio for ratio in answer["level_ratios"]}
    assert ratios[4]["against_sequential"] > 1
    assert not (data / "state" / "server.json").exists()
    assert cli(data, "stop")[0]["ended_processes"] == []
    saved = cli(data, "runs")[0]["runs"]
    assert [run["results"]["ratio"] for run in saved] == [answer["ratio"]]
