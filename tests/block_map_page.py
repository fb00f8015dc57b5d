"""The block map alone on a page of its own, as Streamlit mounts it: in a shadow root, with the theme as variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from components.block_map import HTML, block_map_data, script, styles

THEMES = {
    "light": ("#FBFCFE", "#F0F4FA", "#0F1B2D", "#D8E0EC", "#1F6FCB"),
    "dark": ("#0B111C", "#141D2C", "#EAF0F8", "#27344A", "#2F7FDB"),
}
VARIABLES = ("background-color", "secondary-background-color", "text-color", "border-color", "primary-color")


def page(payload: Mapping[str, Any], theme: str = "light", left_px: int = 312) -> str:
    """HTML; the map is ``.block-map``, and ``left_px`` leaves room where the app has its sidebar."""
    colours = THEMES[theme]
    variables = ";".join(f"--st-{name}:{colour}" for name, colour in zip(VARIABLES, colours, strict=True))
    shadow, data = _inline(f"<style>{styles()}</style>{HTML}"), _inline(block_map_data(payload))
    return f"""<!doctype html><meta charset="utf-8"><body style="margin:0;background:{colours[0]}">
<div style="padding:96px 40px 0 {left_px}px"><div id="host" style="{variables};--st-font:sans-serif"></div></div>
<script type="module">
{script().replace("export default function", "const mount = function")}
const shadow = document.getElementById("host").attachShadow({{ mode: "open" }});
shadow.innerHTML = {shadow};
mount({{ parentElement: shadow, data: {data} }});
</script>"""


def _inline(value: object) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value).replace("</", "<\\/")
