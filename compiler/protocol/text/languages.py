"""The languages of stages: their names, the suffixes of files with such text, and how a comment starts."""

from __future__ import annotations

from typing import Literal, NamedTuple

Language = Literal["fx", "buddy", "mlir", "llvm", "asm", "ptx", "hlo", "python", "cpp", "text"]


class LanguageFacts(NamedTuple):
    """`title` stands in sentences. `comment` starts a comment in a file that also has the stage's name."""

    title: str
    suffix: str
    comment: str


LANGUAGES: dict[str, LanguageFacts] = {
    "fx": LanguageFacts("an FX graph", ".txt", "#"),
    "buddy": LanguageFacts("a Buddy graph", ".txt", "#"),
    "mlir": LanguageFacts("MLIR", ".mlir", "//"),
    "llvm": LanguageFacts("LLVM IR", ".ll", ";"),
    "asm": LanguageFacts("assembly", ".s", "#"),
    "ptx": LanguageFacts("PTX", ".ptx", "//"),
    "hlo": LanguageFacts("HLO", ".hlo", "//"),
    "python": LanguageFacts("Python code", ".py", "#"),
    "cpp": LanguageFacts("C++", ".cpp", "//"),
    "text": LanguageFacts("text", ".txt", "#"),
}
