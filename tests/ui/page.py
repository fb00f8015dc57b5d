"""What a person reads on a page that AppTest ran, and checks that every page shares."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30
HOSTILE = "<script>alert(1)</script> **bold** $x$ :red[x] `code`"
ESCAPED = re.compile(r"\\([\\`*_{}\[\]()<>#+\-.!|~$:&])")
LIVE_MARKUP = re.compile(r"(?<!\\)(<script|\*\*bold|\$x\$|:red\[|`code)")
RAW_KINDS = {
    "text",
    "code",
    "arrow_data_frame",
    "dataframe",
    "text_area",
    "text_input",
    "chat_input",
    "selectbox",
    "multiselect",
    "plotly_chart",
}
NOT_READ = {"id", "formId", "url", "queryParamKey", "cssContent", "jsContent", "htmlContent"}


def nodes(at: AppTest) -> list[Any]:
    """Every element and container of the page, the sidebar and the toasts."""
    return [node for node in at if getattr(node, "proto", None) is not None]


def strings(value: Any, name: str = "") -> list[str]:
    """All text inside a message's dictionary, identifiers left out."""
    if isinstance(value, dict):
        return [text for key, inner in value.items() if key not in NOT_READ for text in strings(inner, key)]
    if isinstance(value, list):
        return [text for inner in value for text in strings(inner, name)]
    return [value] if isinstance(value, str) else []


def read(node: Any) -> str:
    """One element as a person reads it: tags and escapes are gone."""
    if node.type == "html":
        return unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", node.proto.body, flags=re.DOTALL))
    if node.type in ("table", "dataframe"):
        return node.value.to_string()
    texts = " ".join(strings(MessageToDict(node.proto)))
    return texts if node.type in RAW_KINDS else ESCAPED.sub(r"\1", texts)


def said(at: AppTest) -> str:
    """Everything the page says."""
    return "\n".join(read(node) for node in nodes(at))


def labels(at: AppTest) -> set[str]:
    """Labels of the buttons that can be pressed."""
    return {ESCAPED.sub(r"\1", button.label) for button in at.button if not button.disabled}


def press(at: AppTest, label: str) -> AppTest:
    """Press the one button with this label and run the page."""
    (button,) = [button for button in at.button if ESCAPED.sub(r"\1", button.label) == label]
    return button.click().run()


def part(at: AppTest, key: str) -> str:
    """What the container with this key says."""
    return "\n".join(read(node) for node in at.get_by_key(key) if getattr(node, "proto", None) is not None)


def has_a_lone_zero(text: str) -> bool:
    """Whether a 0 (or 0.0 …) stands there as a number of its own."""
    return re.search(r"(?<![\d.,:])0(?:\.0+)?(?![\d.,:])", text) is not None


def table(at: AppTest) -> str:
    """Our own tables, as text."""
    return "\n".join(
        read(node) for node in nodes(at) if node.type == "html" and '<table class="lab-table"' in node.proto.body
    )


def titles(at: AppTest) -> list[str]:
    return [ESCAPED.sub(r"\1", title.value) for title in at.title]


def links(at: AppTest) -> set[str]:
    return {link.label for link in at.page_link}


def keys(at: AppTest) -> set[str]:
    return {node.key for node in nodes(at) if getattr(node, "key", None)}


def errors(at: AppTest) -> list[str]:
    return [ESCAPED.sub(r"\1", error.value) for error in at.error]


def metrics(at: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in at.metric}


def assert_no_live_markup(at: AppTest) -> None:
    """Nothing of HOSTILE is markup anywhere on the page: in our HTML, in markdown, in labels."""
    for node in nodes(at):
        if node.type == "html":
            assert not re.search("<script", node.proto.body), node.proto.body
        elif node.type == "table":  # its cells are markdown
            assert not LIVE_MARKUP.search(node.value.to_string())
        elif node.type not in RAW_KINDS:
            for text in strings(MessageToDict(node.proto)):
                assert not LIVE_MARKUP.search(text), f"{node.type}: {text}"
