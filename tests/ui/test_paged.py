"""Contiguous vs paged: what is simulated follows the controls, and the command says the same."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from components import kv_form, palette
from components.block_map import block_map_data
from engine.cli.simulate import config_of
from engine.config import SimulationConfig
from engine.kv.command import simulate_command
from engine.kv.presets import ANIMATIONS
from engine.kv.recording import record
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import assert_no_live_markup, errors, keys, nodes, said, titles


def opened(open_page: OpenPage, **query: str) -> AppTest:
    at = open_page(fakes.make_lab(fakes.READY), "paged", **query)
    assert not at.exception
    return at


def drawn(at: AppTest) -> dict[str, Any]:
    """What the browser was given."""
    (node,) = [node for node in nodes(at) if (getattr(node, "key", None) or "").endswith("_map")]
    return json.loads(node.proto.json)


def command(at: AppTest) -> list[str]:
    return shlex.split(next(code.value for code in at.code if "engine simulate" in code.value))


@pytest.mark.parametrize("name", ANIMATIONS)
def test_a_preset_is_recorded_and_drawn(open_page: OpenPage, name: str) -> None:
    at = opened(open_page, paged_preset=kv_form.SHORT_TITLES[name])
    assert drawn(at) == json.loads(json.dumps(block_map_data(record(ANIMATIONS[name].config))))


def test_the_page_says_that_it_is_a_simulation_and_by_which_rules(open_page: OpenPage) -> None:
    at = opened(open_page)
    assert titles(at) == ["Contiguous vs paged"]
    assert "Simulation" in said(at)
    assert "Steps have no duration here" in " ".join(said(at).split())
    assert "arXiv 2309.06180" in said(at)
    assert {"paged_running", "paged_sizes", "paged_tables"} <= keys(at)
    assert_no_live_markup(at)


def test_a_changed_setting_changes_both_sides_and_the_command(open_page: OpenPage) -> None:
    at = opened(open_page)
    at.select_slider(key="lab_page").set_value(64)
    at.slider(key="lab_memory").set_value(2048)
    at.selectbox(key="lab_left").set_value("contiguous_pow2")
    at.run()
    assert not at.exception
    payload = drawn(at)["payload"]
    assert payload["slots"] == 2048
    assert [side["allocator"] for side in payload["sides"]] == ["contiguous_pow2", "paged"]
    assert [side["unit"] for side in payload["sides"]] == [16, 64]
    assert {"--block-size", "64", "--memory-tokens", "2048", "contiguous_pow2,paged"} <= set(command(at))


def test_the_choices_come_from_the_address(open_page: OpenPage) -> None:
    at = opened(open_page, paged_preset="Tight memory", tight_page="8", tight_seed="7")
    assert drawn(at)["payload"] == json.loads(
        json.dumps(record(replace(ANIMATIONS["tight"].config, block_size=8, seed=7)))
    )


@pytest.mark.parametrize(
    "query",
    [{"paged_preset": "none"}, {"lab_page": "17"}, {"lab_memory": "1e99"}, {"lab_seed": "-1"}, {"lab_seed": "inf"}],
)
def test_an_address_that_makes_no_sense_leaves_the_preset(open_page: OpenPage, query: dict[str, str]) -> None:
    at = opened(open_page, **query)
    assert drawn(at) == json.loads(json.dumps(block_map_data(record(ANIMATIONS["lab"].config))))


def test_what_cannot_be_simulated_is_a_message(open_page: OpenPage) -> None:
    """A page of all of the memory still works; a longer prompt than the whole memory is rejected, and said."""
    at = opened(open_page)
    at.select_slider(key="lab_page").set_value(256)
    at.slider(key="lab_memory").set_value(256)
    at.run()
    assert not at.exception and not errors(at)
    assert drawn(at)["payload"]["sides"][1]["blocks"] == 1


@pytest.mark.parametrize("name", ANIMATIONS)
def test_the_command_simulates_the_same(name: str) -> None:
    config = replace(ANIMATIONS[name].config, seed=3, block_size=32)
    assert parsed(simulate_command(config)) == config


def parsed(line: str) -> SimulationConfig:
    """The configuration that the command line makes of a command."""
    import argparse

    from engine.cli.simulate import register

    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    return config_of(parser.parse_args(shlex.split(line)[3:]))


def test_the_same_recording_has_the_same_id_and_another_one_has_not() -> None:
    config = ANIMATIONS["tight"].config
    first, again = block_map_data(record(config)), block_map_data(record(config))
    other = block_map_data(record(replace(config, seed=1)))
    assert first["id"] == again["id"] != other["id"]


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("free", [palette.MEMORY_LIGHT["free"], palette.MEMORY_DARK["free"]])
def test_every_request_and_token_states_stand_out_from_free_memory(free: str) -> None:
    theme = palette.MEMORY_LIGHT if free == palette.MEMORY_LIGHT["free"] else palette.MEMORY_DARK
    assert min(contrast(colour, free) for colour in (*palette.REQUESTS, theme["tokens"])) >= 3


def test_neighbouring_requests_have_different_colours() -> None:
    assert len(set(palette.REQUESTS)) == len(palette.REQUESTS)
