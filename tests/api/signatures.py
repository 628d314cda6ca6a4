"""`python -m tests.api.signatures --write` writes the signatures of `buddy.api` to a file, which a test compares.

A line that changes or disappears breaks plug-ins: see the policy in `api/__init__.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import buddy.api

FILE = Path(__file__).with_name("signatures.txt")


def signatures() -> list[str]:
    """Returns a line for each public name, and for each public member of a class that this project defines."""
    return [line for name in buddy.api.__all__ for line in _lines(name, getattr(buddy.api, name))]


def _lines(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield f"{name}: module {value.__name__.removeprefix('buddy.compiler.')}"
    elif inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"class {name}({bases}){_signature(value)}"
        yield from (f"  {name}.{line}" for line in _members(value))
    elif inspect.isfunction(value):
        yield f"def {name}{_signature(value)}"
    elif isinstance(value, int | str):
        yield f"{name} = {value!r}"
    else:
        yield f"{name}: {type(value).__name__.lstrip('_') if not hasattr(value, '__origin__') else value}"


def _members(cls: type) -> Iterator[str]:
    """Yields the public members that the class or a base of this project defines, and the fields of a struct."""
    fields = {field.name: field for field in msgspec.structs.fields(cls)} if issubclass(cls, msgspec.Struct) else {}
    for name, field in fields.items():
        yield f"{name}: {_type(field.type)}" + (" (required)" if field.required else "")
    if dataclasses.is_dataclass(cls) and not _signature(cls):
        yield from (
            f"{field.name}: {field.type}" for field in dataclasses.fields(cls) if not field.name.startswith("_")
        )
    yield from (f"{name}: {text}" for name, text in vars(cls).get("__annotations__", {}).items() if "ClassVar" in text)
    for name, member in inspect.getmembers(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        is_listed = owner is not cls and owner in _PUBLIC_CLASSES
        is_ours = owner.__module__.startswith("buddy.") and not (name.startswith("_") or name in fields or is_listed)
        if is_ours and inspect.isfunction(member):
            yield f"{name}{_signature(member)}"
        elif is_ours and isinstance(member, property):
            yield f"{name}: property"
        elif is_ours and inspect.ismethod(member):
            yield f"{name}{_signature(member)} (of the class)"


def _type(type_: Any) -> str:
    return getattr(type_, "__name__", None) if isinstance(type_, type) else str(type_).replace("typing.", "")


def _signature(function: Any) -> str:
    """Returns the signature of a function or constructor; "" for structs, and for classes that are not constructed."""
    if inspect.isclass(function) and (issubclass(function, msgspec.Struct) or getattr(function, "_is_protocol", False)):
        return ""
    signature = inspect.signature(function)
    if any(name.startswith("_") for name in signature.parameters):
        return ""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature))


_PUBLIC_CLASSES = {value for name in buddy.api.__all__ if inspect.isclass(value := getattr(buddy.api, name))}


if __name__ == "__main__":
    text = "\n".join([*signatures(), ""])
    if "--write" in sys.argv:
        FILE.write_text(text, "utf-8")
    else:
        print(text, end="")
