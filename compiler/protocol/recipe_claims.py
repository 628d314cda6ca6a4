"""What a recipe from another author would do besides computing: run code, or access files that its options name.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import PassStep, Recipe

# Options of MLIR's passes that name a file or folder to write, to read, or to execute (MLIR's `gpu-module-to-binary`
# starts `ptxas` of the given toolkit).
_PLACES = re.compile(
    r"(?:^|[-_])(?:file|filename|path|paths|dir|directory|library|libraries|toolkit|plugin|link-files|l|opts|cmd-options)$"
)
# A step is passed to MLIR's parser as text, so names must be plain, and a value may contain further options or a
# or a pipeline of passes with their own. IR that has been edited by hand is read as a module.
_NAME, _BREAKS, _INNER = re.compile(r"[\w.-]+"), re.compile(r"[\s{}()<>\"',;=]+"), re.compile(r"([\w.-]+)=\S+")
# Flags of IREE's compiler that start programs, load plug-ins, or read and write files. Their values are paths in any
# spelling; so for all other flags only values that are not paths are accepted.
_FLAGS = re.compile(r"dump|path|file|dir|plugin|toolkit|linker|command|load|preprocess|-to(?:$|-)|bitcode|save|trace")
_PLAIN = re.compile(r"[\w.,:+\[\]=-]*")


def claims(recipe: Recipe, allowed: Iterable[str] = ()) -> list[str]:
    """Returns what `recipe` asks for that needs trust in its author, a phrase each.

    Plug-ins of `allowed` paths need none.
    """
    paths = set(allowed)
    found = [f"plug-in {each.path}, which is Python code" for each in recipe.plugins if each.path not in paths]
    found += [claim for step in recipe.steps for claim in _of_step(step)]
    found += [f"the flag {flag}, which may name files or programs" for flag in recipe.backend_flags if _strange(flag)]
    return list(dict.fromkeys(found))


def refusal(found: Iterable[str]) -> str:
    """The error message for a recipe with these claims, with what to do, in one line."""
    return f"it asks for {'; '.join(found)} · --trust allows it, if you trust who wrote it"


def _of_step(step: PassStep) -> Iterator[str]:
    """Includes disabled steps, because a key enables them."""
    if step.level != "mlir" or facts(step.name).holds_ir:
        return
    words = (step.name, step.anchor or "any", *(name for name, _ in step.options))
    yield from (
        f"the pass {step.name[:60]}, with {word[:60]!r} for a name" for word in words if not _NAME.fullmatch(word)
    )
    for name, value in step.options:
        if isinstance(value, str) and (place := _place(name, value)):
            yield f"{place[:60]} of the pass {step.name[:60]}, which names a file"


def _place(name: str, text: str) -> str:
    """The option that names a file: this one, or one inside its text, which MLIR also parses; "" for none."""
    if text and (_PLACES.search(name) or any(map(_is_path, _BREAKS.split(text)))):
        return f"{name}={text}"
    return next((found[0] for found in _INNER.finditer(text) if _PLACES.search(found[1])), "")


def _is_path(word: str) -> bool:
    return word.startswith(("/", "./", "../", "~", "\\")) or "/../" in word


def _strange(flag: str) -> bool:
    name, _, value = flag.lstrip("-").partition("=")
    return _FLAGS.search(name) is not None or _PLAIN.fullmatch(value) is None
