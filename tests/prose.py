"""`python -m tests.prose`, a part of `make lint`: finds misspelled words, and phrases that are not technical English.

Phrases are searched in Markdown, and in docstrings, comments and strings of at least three words in Python files. Code
in backquotes is not searched.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# The files and folders that use no banned phrase. Add a folder when its text is rewritten.
CHECKED = (
    ".ci",
    "README.md",
    "api",
    "app",
    "benchmarks",
    "buddy_tui.py",
    "compiler",
    "docs",
    "mlir.py",
    "samples",
    "tests/api",
    "tests/app",
    "tests/benchmarks",
    "tests/docs",
    "tests/protocol",
    "tests/reliability",
    "tests/runtime",
    "tests/support",
    "tests/themes",
    "tests/training",
    "themes",
)

# Pattern of a phrase, and what to write instead.
BANNED = {
    r"\bwhat (came|comes) of\b": "the result, the outcome",
    r"\bwhat (it|they|this) (came|comes|come) to\b": "the result, the total",
    r"\b(is|are) (told|said) of\b": "is notified of, is reported",
    r"\bwhat is none\b|\bof which there (is|are) none\b": "does not exist, unknown X",
    r"\bthere is none of\b|\bthat there (is|are) none of\b": "unknown X",
    r"\bif there is none\b": "or an empty string, without an X",
    r"\bwhat there is\b": "the available X",
    r"\bnobody watches\b": "without keeping stages",
    r"\ba road\b|\broads? (in|of|to)\b|\bby the road\b": "a frontend, a path, a lowering",
    r"\ba flavour\b|\bflavours\b": "a dialect",
    r"\bways? out\b": "an export, a fallback",
    r"\bunder way\b": "running, in progress",
    r"\bhands? up\b|\bhung up\b": "disconnect",
    r"\blets? (it |them )?go\b": "release, free",
    r"\bput aside\b": "saved to X",
    r"\bin vain\b": "not applied",
    r"\bbeside (eager|the others?|torch|numpy)\b": "compared with",
    r"\bin turn\b": "interleaved",
    r"\b(hand|hands|handed|handing) over\b": "pass, submit",
    r"\bis gone\b|\bare gone\b": "has exited, was deleted, is lost",
    r"\bbegun\b": "started",
    r"\banew\b": "again",
    r"\bmended?\b": "fix, correct",
    r"\bback end\b": "backend",
    r"\bwhoever\b|\bsomebody\b": "the caller, the user, another process",
    r"\bwhere (it|they) lies?\b": "in place",
    r"\bdear to\b": "expensive to",
    r"\bcut off\b": "truncated, disconnected",
}
# What codespell reads; words that it must not correct are in pyproject.toml.
SPELLED = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "app",
    "benchmarks",
    "compiler",
    "docs",
    "samples",
    "tests",
    "themes",
)
_PHRASES = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in BANNED.items()]
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


class Finding(NamedTuple):
    """A banned phrase, and where it is: the file's text starts at line 1."""

    line: int
    phrase: str
    better: str


def findings(text: str, first_line: int = 1) -> Iterator[Finding]:
    """The banned phrases in `text`, also across line breaks."""
    prose = re.sub(r"\s", " ", _CODE.sub(lambda code: re.sub(r"\S", " ", code.group()), text))
    for pattern, better in _PHRASES:
        for found in pattern.finditer(prose):
            yield Finding(first_line + text.count("\n", 0, found.start()), found.group(), better)


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """The comments and strings of Python code, each with its first line; strings of up to two words are left out."""
    kinds = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type in kinds and len(token.string.split()) > 2):
            yield token.start[0], token.string


def findings_in(path: Path) -> list[Finding]:
    """The banned phrases of a Python or Markdown file."""
    text = path.read_text("utf-8")
    parts = prose_of(text) if path.suffix == ".py" else [(1, text)]
    return [finding for line, part in parts for finding in findings(part, line)]


def checked_files() -> list[Path]:
    """The Python and Markdown files in `CHECKED`."""
    places = [ROOT / name for name in CHECKED]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return [file for file in files if file.suffix in (".py", ".md")]


def misspelled() -> str:
    """The report of codespell, "" without findings."""
    words = [sys.executable, "-m", "codespell_lib", *SPELLED]
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout.strip()


def main() -> int:
    """Prints the findings; returns 1 if there are any."""
    lines = [
        f"{path.relative_to(ROOT)}:{line}: '{phrase}': write {better}"
        for path in checked_files()
        for line, phrase, better in findings_in(path)
    ]
    spelling = misspelled()
    print("\n".join([*lines, *([spelling] if spelling else [])]) or "the prose is in order")
    return 1 if lines or spelling else 0


if __name__ == "__main__":
    sys.exit(main())
