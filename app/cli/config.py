"""`buddy-tui config`: shows the settings and their values, where they are stored, and the keys of all actions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.actions import ACTIONS, PANE_TITLES
from buddy.app.actions.key_map import Keymap, describe_clashes
from buddy.app.cli import FAILURE, VERBS
from buddy.app.cli.arguments import Parser
from buddy.app.reports.formatting import table
from buddy.app.workspace.settings import FIELD_SUMMARIES, Settings, load_settings, settings_path, themes_folder
from buddy.themes.palette import DEFAULT, themes


def make_parser() -> Parser:
    parser = Parser("config", VERBS["config"])
    parser.add_argument("--keys", action="store_true", help="list every action: id, pane and keys")
    parser.add_argument(
        "--template", action="store_true", help="print a settings file with every field and its default"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(list(words))
    if options.template:
        print(settings_template())
        return 0
    path = settings_path()
    settings, problems = load_settings(path)
    Keymap(settings.keys)  # the constructor applies the keys to the actions
    if options.json:
        print(json.dumps({**_settings_json(path, settings, problems), "actions": _action_rows()}, indent=2))
    elif options.keys:
        rows = [[action["id"], action["pane"], ", ".join(action["keys"]), action["title"]] for action in _action_rows()]
        print(table(["id", "pane", "keys", "action"], rows, left_aligned=frozenset(["id", "pane", "keys", "action"])))
    else:
        print(_settings_text(path, settings, problems))
    return FAILURE if problems else 0


def _settings_json(path: Path, settings: Settings, problems: Sequence[str]) -> dict[str, object]:
    return {
        "file": str(path),
        "exists": path.exists(),
        "settings": {**msgspec.to_builtins(settings), "theme": settings.theme or DEFAULT},
        "themes_folder": str(themes_folder(path)),
        "themes": list(themes()),
        "problems": list(problems),
    }


def _action_rows() -> list[dict[str, Any]]:
    """Every action with its pane, keys and title, for `--json` and `--keys`. `own_keys` are the default keys."""
    return [
        {
            "id": action.id,
            "pane": PANE_TITLES.get(action.pane, "everywhere"),
            "keys": list(action.keys),
            "own_keys": list(action.default_keys),
            "title": action.title,
        }
        for action in ACTIONS
    ]


def _settings_text(path: Path, settings: Settings, problems: Sequence[str]) -> str:
    """The text output: paths, current values, remapped keys, themes, problems, and keys that clash."""
    values = {"theme": settings.theme or DEFAULT}
    values |= {name: str(getattr(settings, name)).lower() for name in ("auto_run", "equal_nan", "reopen")}
    fields = [[name, values[name], meaning] for name, meaning in FIELD_SUMMARIES.items() if name in values]
    field_heading, key_heading = ["field", "value", "meaning"], ["action", "keys", "default"]
    remapped = [
        [action.id, ", ".join(action.keys) or "no key", ", ".join(action.default_keys)]
        for action in ACTIONS
        if action.is_remapped
    ]
    parts = [
        f"settings: {path}{'' if path.exists() else ' (not found: the defaults are used)'}",
        table(field_heading, fields, left_aligned=frozenset(field_heading)),
        table(key_heading, remapped, left_aligned=frozenset(key_heading)) if remapped else "",
        f"themes: {', '.join(themes())}\n  user themes: {themes_folder(path)}/*.toml",
        "\n".join(f"problem: {problem}" for problem in problems),
        "\n".join(describe_clashes()),
    ]
    return "\n\n".join(part for part in parts if part)


def settings_template() -> str:
    """A settings file with every field at its default."""
    lines = [
        f"# {FIELD_SUMMARIES['theme']}: {', '.join(themes())}",
        f'theme = "{DEFAULT}"',
        f"# {FIELD_SUMMARIES['auto_run']}",
        "auto_run = false",
        f"# {FIELD_SUMMARIES['equal_nan']}",
        "equal_nan = false",
        f"# {FIELD_SUMMARIES['bell_after']}",
        "bell_after = 10.0",
        f"# {FIELD_SUMMARIES['reopen']}",
        "reopen = true",
        f"# {FIELD_SUMMARIES['memory']}",
        "# memory = 16.0",
        f"# {FIELD_SUMMARIES['timeout']}",
        "timeout = 120.0",
        "",
        f"# {FIELD_SUMMARIES['keys']} (`buddy-tui config --keys`): a character, a name such as",
        '# "space" or "ctrl+g", a sequence of two such as "g d", a list of these, or "" for no key',
        "[keys]",
        '# "graph.toggle" = ["f6", "space"]',
    ]
    return "\n".join(lines)
