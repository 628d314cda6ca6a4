"""`buddy-tui completion SHELL`: prints a script that completes command lines in bash, zsh or fish.

The script has the verbs, and the options of each verb with their choices and files, as the parsers define them. It
starts no Python.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

from buddy.app.cli import VERBS
from buddy.app.cli.arguments import Parser

PROGRAM = "buddy-tui"
SHELLS = {
    "bash": f'add to ~/.bashrc:  eval "$({PROGRAM} completion bash)"',
    "zsh": f'add to ~/.zshrc, after compinit:  eval "$({PROGRAM} completion zsh)"',
    "fish": f"{PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish",
}
# The longest help of an option in the lists of zsh and fish, in characters.
MAX_HELP_CHARACTERS = 80
# The verb of a command line that opens the workbench.
WORKBENCH = "workbench"
# The verbs that are completed, with their summaries. Only a workbench starts the verb `engine`.
_COMPLETED_VERBS = {verb: summary for verb, summary in VERBS.items() if verb != "engine"}


def make_parser() -> Parser:
    todo = "\n".join(f"  {shell:5} {text}" for shell, text in SHELLS.items())
    parser = Parser("completion", VERBS["completion"], f"To install it:\n{todo}")
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell")
    return parser


def main(words: Sequence[str]) -> int:
    shell = make_parser().parse_args(list(words)).shell
    options_of_verb = read_options()
    print({"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[shell](options_of_verb), end="")
    return 0


class Option(NamedTuple):
    """An option of a verb: its names, help, the choices of its value, and whether the value is a file or a folder.

    `takes_value` is false for a flag. An option without names stands for a positional argument.
    """

    names: tuple[str, ...]
    help: str
    takes_value: bool = False
    choices: tuple[str, ...] = ()
    path_kind: Literal["", "file", "folder"] = ""


def read_options() -> dict[str, list[Option]]:
    """The options of each verb, and of the workbench, from their parsers."""
    modules = {verb: import_module(f"buddy.app.cli.{verb}") for verb in (WORKBENCH, *VERBS)}
    return {verb: list(_options_of(module.make_parser())) for verb, module in modules.items()}


def _options_of(parser: argparse.ArgumentParser) -> Iterable[Option]:
    """Yields the options and positional arguments of a parser, except hidden ones."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        choices = tuple(str(choice) for choice in action.choices or ())
        full_help = argparse.HelpFormatter("")._expand_help(action)
        help_text = textwrap.shorten(full_help, MAX_HELP_CHARACTERS, placeholder=" …")
        path_kind = "" if choices else _path_kind(action)
        yield Option(tuple(action.option_strings), help_text, action.nargs != 0, choices, path_kind)


def _path_kind(action: argparse.Action) -> Literal["", "file", "folder"]:
    """Whether the value of an option or argument is a file or a folder, by its metavar and type.

    Empty if the value is neither, or is on another machine.
    """
    name = str(action.metavar or action.dest).upper()
    if action.dest.startswith("remote"):
        return ""
    if name in ("DIR", "FOLDER"):
        return "folder"
    is_file = "FILE" in name or name in ("PATH", "PAGE", "SOURCE") or action.type is Path
    return "file" if is_file and action.nargs != 0 else ""


# ---- bash ----------------------------------------------------------------------------------------------------------

# The script sets `words` to the candidates, and `files` to `file` or `folder` if these are candidates too.
# `bash_script` replaces the names between @: VERBS is a pattern for all verbs, VERB_WORDS their list, OPTIONS the
# options of each verb. VALUES and ARGUMENTS are the candidates for the values of options and for positional arguments.
_BASH_TEMPLATE = r"""# Completion of buddy-tui in bash, by `buddy-tui completion bash`.
_buddy_tui() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words= files= word index
    # bash splits --option=value at the sign.
    if [[ $cur == "=" ]]; then
        cur=
    elif [[ $prev == "=" ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    COMPREPLY=()
    case $verb in
        @VERBS@) ;;
        *) verb=workbench ;;
    esac
    for (( index = 1; index < COMP_CWORD; index++ )); do
        if [[ ${COMP_WORDS[index]} == "--" ]]; then
            prev= verb=script
        fi
    done
    case "$verb $prev" in
@VALUES@
        "script "*) files=file ;;
        *)
            case $verb in
@OPTIONS@
            esac
            if [[ $cur != -* ]]; then
                case $verb in
@ARGUMENTS@
                    *) words= ;;
                esac
            fi
            if (( COMP_CWORD == 1 )) && [[ $cur != -* ]]; then
                words="@VERB_WORDS@" files=file
            fi
            ;;
    esac
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(
        if [[ $words ]]; then compgen -W "$words" -- "$cur"; fi
        if [[ $files == file ]]; then compgen -f -- "$cur"; fi
        if [[ $files == folder ]]; then compgen -d -- "$cur"; fi
    )
    if [[ $files ]]; then
        compopt -o filenames 2> /dev/null
    fi
}
complete -F _buddy_tui buddy-tui
"""


def bash_script(options_of_verb: dict[str, list[Option]]) -> str:
    """The script for bash from version 3.2 on, which does not need the package bash-completion."""
    # The patterns "VERB OPTION" of the options with a value, by the assignment that completes the value.
    patterns_of_value: dict[str, list[str]] = {}
    option_lines, argument_lines = [], []
    for verb, options in options_of_verb.items():
        for option in options:
            if option.names and option.takes_value:
                patterns = [f'"{verb} {name}"' for name in option.names]
                patterns_of_value.setdefault(_bash_value(option), []).extend(patterns)
        names = " ".join(name for option in options for name in option.names)
        option_lines.append(f'                {verb}) words="{names}" ;;')
        arguments = [_bash_value(option) for option in options if not option.names]
        if any(argument != ":" for argument in arguments):
            argument_lines.append(f"                    {verb}) words= {arguments[0]} ;;")
    value_lines = [f"        {' | '.join(patterns)}) {value} ;;" for value, patterns in patterns_of_value.items()]
    return (
        _BASH_TEMPLATE.replace("@VERBS@", " | ".join(VERBS))
        .replace("@VALUES@", "\n".join(value_lines))
        .replace("@OPTIONS@", "\n".join(option_lines))
        .replace("@ARGUMENTS@", "\n".join(argument_lines))
        .replace("@VERB_WORDS@", " ".join(_COMPLETED_VERBS))
    )


def _bash_value(option: Option) -> str:
    """The shell assignment that completes the value of an option; `:`, which does nothing, if it can be any text."""
    if option.choices:
        return f'words="{" ".join(option.choices)}"'
    return f"files={option.path_kind}" if option.path_kind else ":"


# ---- zsh -----------------------------------------------------------------------------------------------------------


def zsh_script(options_of_verb: dict[str, list[Option]]) -> str:
    """The script for zsh, which must run after `compinit`."""
    verbs = " ".join(f"'{_zsh_text(verb, ':')}:{_zsh_text(text)}'" for verb, text in _COMPLETED_VERBS.items())
    lines = [
        f"#compdef {PROGRAM}",
        f"# Completion of {PROGRAM} in zsh, by `{PROGRAM} completion zsh`.",
        "_buddy_tui() {",
        "    local -a verbs",
        f"    verbs=({verbs})",
        "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then",
        "        _describe -t verbs verb verbs",
        "        _files",
        "        return",
        "    fi",
        "    case $words[2] in",
    ]
    for verb in VERBS:
        specs = " ".join(_zsh_specs(options_of_verb[verb]))
        lines.append(f"        {verb}) shift words; (( CURRENT-- )); _arguments {specs} ;;")
    lines += [f"        *) _arguments {' '.join(_zsh_specs(options_of_verb[WORKBENCH]))} ;;", "    esac", "}"]
    # `eval` registers the function. From a file in a folder of $fpath, zsh calls it.
    return "\n".join(
        [
            *lines,
            f'if [[ $funcstack[1] == _buddy_tui ]]; then _buddy_tui "$@"; else compdef _buddy_tui {PROGRAM}; fi',
            "",
        ]
    )


def _zsh_specs(options: Sequence[Option]) -> Iterable[str]:
    """Yields the arguments of zsh's `_arguments`: one for each name of an option, and one for positional arguments."""
    positional = next((option for option in options if not option.names), None)
    for option in options:
        for name in option.names:
            value = f":value:{_zsh_action(option)}" if option.takes_value else ""
            assign = "=" if option.takes_value and name.startswith("--") else ""
            yield f"'*{name}{assign}[{_zsh_text(option.help, '[]')}]{value}'"
    action = _zsh_action(positional) if positional is not None else ""
    yield f"'*:argument:{action}'"


def _zsh_action(option: Option) -> str:
    """The action of `_arguments` that completes a value."""
    if option.choices:
        return f"({' '.join(option.choices)})"
    return {"file": "_files", "folder": "_files -/", "": " "}[option.path_kind]


def _zsh_text(text: str, special: str = "[]:") -> str:
    """A text for the inside of single quotes, with backslashes before the `special` characters."""
    escaped = "".join(f"\\{character}" if character in special else character for character in text)
    return escaped.replace("'", "'\\''")


# ---- fish ----------------------------------------------------------------------------------------------------------


def fish_script(options_of_verb: dict[str, list[Option]]) -> str:
    """The script for fish."""
    no_verb = f"not __fish_seen_subcommand_from {' '.join(VERBS)}"
    lines = [f"# Completion of {PROGRAM} in fish, by `{PROGRAM} completion fish`."]
    lines += [
        f"complete -c {PROGRAM} -n __fish_use_subcommand -a {verb} -d {_fish_text(text)}"
        for verb, text in _COMPLETED_VERBS.items()
    ]
    for verb, options in options_of_verb.items():
        condition = no_verb if verb == WORKBENCH else f"__fish_seen_subcommand_from {verb}"
        lines += [f"complete -c {PROGRAM} -n {_fish_text(condition)} {_fish_option(option)}" for option in options]
    return "\n".join([*lines, ""])


def _fish_option(option: Option) -> str:
    """The arguments of fish's `complete` for an option or a positional argument.

    With `-r`, an option needs a value, and fish lists files for it; with `-x`, it needs a value that is not a file.
    """
    choices = [f"-f -a {_fish_text(' '.join(option.choices))}"] if option.choices else []
    description = f"-d {_fish_text(option.help)}"
    if not option.names:
        return " ".join([*choices, description]) if choices else "-d ''"
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    value: list[str] = []
    if option.takes_value:
        value = ["-r"] if option.path_kind else ["-x"]
    return " ".join([*names, *value, *choices, description])


def _fish_text(text: str) -> str:
    """A text in single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
