"""Makes the HTML page of a shared report from its contents. The page loads nothing and sends nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from buddy.app.reports.run_report import run_report_text
from buddy.app.reports.share.contents import OnProgress, Send, SharedGraph, collect_contents
from buddy.app.workspace.files import write_bytes_atomically
from buddy.compiler.protocol import Welcome
from buddy.themes.palette import themes

_FOLDER = Path(__file__).parent
# The scripts of the page, in the order in which they run.
_SCRIPTS = ("data.js", "rows.js", "views.js", "page.js")
# The themes of the page.
_LIGHT, _DARK = "buddy-light", "buddy-dark"
# The roles of a theme that the style sheet uses, in addition to all colours of the syntax.
_ROLES = (
    "text", "dim", "faint", "title", "accent", "ok", "warn", "bad", "added", "removed", "added-word", "removed-word",
    "cursor", "match", "linked-line", "bar", "number", "fold",
)  # fmt: skip
# The title of a report is in this many bytes at the start of its file.
_HEAD_BYTES = 4096
# The end of the title of each report.
_TITLE_END = "· buddy-tui</title>".encode()
# A colour of the text, or with `on`, of the background, in a style of a theme.
_COLOUR = re.compile(r"(on )?(#[0-9a-fA-F]{6})")


def make_page(contents: Mapping[str, object], summary: str) -> str:
    """Returns the page as HTML. `summary` is the text that a browser without JavaScript shows."""
    style = f"{_theme_rules()}\n{_read('page.css')}"
    script = "\n".join(map(_read, _SCRIPTS))
    data = json.dumps(contents, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    packed = gzip.compress(data.encode("utf-8", "replace"), 9, mtime=0)
    # A browser uses only this script and this style sheet, and fetches nothing, whatever the program's texts contain.
    policy = f"default-src 'none'; script-src {_hash_of(script)}; style-src {_hash_of(style)}; base-uri 'none'"
    replacements = {
        "TITLE": html.escape(f"{contents['source']} · buddy-tui"),
        "POLICY": html.escape(policy),
        "STYLE": style,
        "SCRIPT": script,
        "SUMMARY": html.escape(summary),
        "DATA": base64.b64encode(packed).decode("ascii"),
    }
    # One pass, so that a marker inside of a value stays as it is.
    return re.sub(r"@([A-Z]+)@", lambda match: replacements[match[1]], _read("page.html"))


def may_be_replaced(path: Path) -> bool:
    """Whether a report may replace `path`: the file does not exist, or is a report. Raises `OSError`."""
    if not path.exists():
        return True
    with path.open("rb") as file:
        return _TITLE_END in file.read(_HEAD_BYTES)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _hash_of(text: str) -> str:
    """Returns the source expression of a content security policy for an inline script or style sheet."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _theme_rules() -> str:
    """Returns CSS rules with the colours of the light theme, and those of the dark theme for readers who prefer it."""
    light, dark = _variables(_LIGHT), _variables(_DARK)
    token_rules = "\n".join(f".syntax-{name} {{ color: var(--syntax-{name}); }}" for name in themes()[_LIGHT].syntax)
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark; {dark} }} }}\n"
        f"{token_rules}"
    )


def _variables(name: str) -> str:
    """Returns the colours of a theme as variables: `--ROLE` and `--ROLE-on` for a role, `--syntax-NAME` for a token."""
    theme = themes()[name]
    styles = {role: theme.roles[role] for role in _ROLES}
    styles |= {f"syntax-{token}": style for token, style in theme.syntax.items()}
    pairs = [("background", theme.colors["background"]), ("panel", theme.colors["panel"])]
    pairs += [("border", theme.variables["border-blurred"])]
    for role, style in styles.items():
        pairs += [(role + ("-on" if on else ""), colour) for on, colour in _COLOUR.findall(style)]
    return " ".join(f"--{variable}: {colour};" for variable, colour in pairs)


async def encode_report(
    graphs: Sequence[SharedGraph], send: Send, welcome: Welcome | None, progress: OnProgress,
    is_shared: Callable[[str], bool] = lambda _path: True,
) -> bytes:  # fmt: skip
    """Returns the file of a report on `graphs`.

    `is_shared` says whether the report has the Python code with that path. Raises what `send` raises.
    """
    import asyncio  # takes time, which a verb that rejects its source saves

    encode = await collect_contents(graphs, send, welcome, progress, is_shared)
    progress("colouring the lines")
    return await asyncio.to_thread(lambda: make_page(encode(), _summary(graphs)).encode("utf-8", "replace"))


async def write_report(
    path: Path, graphs: Sequence[SharedGraph], send: Send, welcome: Welcome | None, progress: OnProgress,
    is_shared: Callable[[str], bool] = lambda _path: True,
) -> int:  # fmt: skip
    """Writes a report on `graphs` to `path`, atomically. Returns its size in bytes.

    After a cancel, there is no file. Raises `OSError` if the file cannot be written, and like `encode_report`.
    """
    import asyncio

    page = await encode_report(graphs, send, welcome, progress, is_shared)
    await asyncio.to_thread(write_bytes_atomically, path, page)
    return len(page)


def _summary(graphs: Sequence[SharedGraph]) -> str:
    """Returns the reports of the runs and the problems of the graphs as text."""
    texts = [
        run_report_text(graph.info, graph.report, graph.assignments) for graph in graphs if graph.report is not None
    ]
    return "\n\n".join([*texts, *(str(graph.problem) for graph in graphs if graph.problem is not None)])
