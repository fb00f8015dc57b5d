"""Named configurations: the workshop's and people's own; load, save, delete, take along, bring in."""

from __future__ import annotations

import streamlit as st

from components import errors, tune_draft
from components.format import plain
from engine.config import ServerConfig
from engine.errors import LabError
from engine.server.state import ServerSnapshot
from engine.services import LabServices
from engine.tuning.knobs import changed, in_words
from engine.tuning.profiles import MOST_NAME, Profile, Profiles, export, parse


def show(services: LabServices) -> None:
    server, profiles = services.supervisor.snapshot(), Profiles(services.store)
    try:
        found = profiles.list()
    except LabError as error:
        errors.show(error)
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        save_button(services, tune_draft.base_of(server), "Save what runs now" if server.ready else "Save the settings")
        _take_along(tuple(profile for profile in found if not profile.preset))
        _bring_in(profiles)
    for profile in found:
        _row(profiles, profile, server)


def _row(profiles: Profiles, profile: Profile, server: ServerSnapshot) -> None:
    with st.container(border=True, key=f"tune_profile_{profile.name}"):
        words, buttons = st.columns([5, 2], vertical_alignment="center")
        with words:
            st.markdown(f"**{plain(profile.name)}** · {plain(settings(profile.config))}")
            if profile.note:
                st.caption(plain(profile.note))
        with buttons.container(horizontal=True, horizontal_alignment="right"):
            if not profile.preset and st.button(
                "Delete", icon=":material/delete:", type="tertiary", key=f"tune_delete_{profile.name}"
            ):
                with errors.shown():
                    profiles.delete(profile.name)
                    st.rerun()
            st.button(
                "Load",
                icon=":material/tune:",
                key=f"tune_load_{profile.name}",
                help="Sets the knobs to it. Nothing restarts before you apply it.",
                on_click=tune_draft.load,
                args=(server, profile.config, profile.name),
            )


def settings(config: ServerConfig) -> str:
    """What it says of length and number, and what else is not as usual."""
    plain_ones = {"max_model_len": config.max_model_len, "max_num_seqs": config.max_num_seqs}
    return in_words(plain_ones | changed(ServerConfig(), config))


def save_button(services: LabServices, config: ServerConfig, label: str = "Save as a profile") -> None:
    """A name, then it is kept; one that has this name already is replaced."""
    with st.popover(label, icon=":material/bookmark_add:"), st.form("tune_save", border=False, clear_on_submit=True):
        name = st.text_input("Name", max_chars=MOST_NAME, key="tune_save_name")
        note = st.text_input("Note", max_chars=200, key="tune_save_note", placeholder="may be left out")
        pressed = st.form_submit_button("Save", icon=":material/bookmark_add:", type="primary")
    if pressed:
        with errors.shown():
            saved = Profiles(services.store).save(name, config, note)
            st.toast(f"Saved {plain(saved.name)}", icon=":material/bookmark_added:")
            st.rerun()


def _take_along(own: tuple[Profile, ...]) -> None:
    if not own:
        return
    for label, kind, mime in (("JSON", "json", "application/json"), ("YAML", "yaml", "application/yaml")):
        st.download_button(
            f"Export as {label}",
            export(own, kind),  # type: ignore[arg-type]
            f"vllm-lab-profiles.{kind}",
            mime,
            icon=":material/download:",
            key=f"tune_export_{kind}",
            on_click="ignore",
        )


def _bring_in(profiles: Profiles) -> None:
    with st.popover("Import", icon=":material/upload:"):
        with st.form("tune_import", border=False, clear_on_submit=True):
            file = st.file_uploader("Profiles that were exported here", ["json", "yaml", "yml"], key="tune_import_file")
            pressed = st.form_submit_button("Import", icon=":material/upload:", type="primary")
        if pressed and file is not None:
            with errors.shown():
                added = profiles.add(parse(file.getvalue().decode("utf-8", "replace")))
                st.toast(f"Imported {len(added)} {'profile' if len(added) == 1 else 'profiles'}")
                st.rerun()
