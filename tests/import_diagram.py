"""Which folder imports which, and which modules import each other in a circle, imports inside functions included.

python -m tests.import_diagram            prints the diagram of docs/explanation/architecture.md, in Mermaid's language
python -m tests.import_diagram --write    puts it there
python -m tests.import_diagram --cycles   lists the folders that reach themselves, with an import of each direction
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
MARK = re.compile(r"(<!-- by tests/import_diagram.py -->\n).*?(<!-- end -->)", re.S)
Edges = dict[str, set[str]]


@cache
def contracts() -> tuple[dict[str, Any], ...]:
    """The contracts of pyproject.toml that put folders into layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    return tuple(contract for contract in settings["contracts"] if contract["type"] == "layers")


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Every import of one module of `buddy` by another, by full names, as the import contracts see them."""
    import grimp

    graph = grimp.build_graph("buddy.app", "buddy.compiler", "buddy.themes", cache_dir=None)
    return tuple((name, other) for name in graph.modules for other in graph.find_modules_directly_imported_by(name))


def folder(module: str) -> str:
    """`compiler/passes` for `buddy.compiler.passes.kernels.walk`; the package alone for what lies in no folder."""
    parts = module.split(".")[1:3]
    return "/".join(parts) if (ROOT / "/".join(parts)).is_dir() else parts[0]


def folder_edges(*, exceptions: bool) -> Edges:
    """The folders that each folder imports, with or without what the contracts list as exceptions."""
    listed = set() if exceptions else {line for contract in contracts() for line in contract.get("ignore_imports", ())}
    found: Edges = defaultdict(set)
    for name, other in imports():
        a, b = folder(name), folder(other)
        if a != b and f"{name} -> {other}" not in listed:
            found[a].add(b)
    return found


def reachable(edges: Edges, start: str) -> set[str]:
    """The folders that `start` imports, directly or through others."""
    seen: set[str] = set()
    pending = [*edges.get(start, ())]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += edges.get(name, ())
    return seen


def cycles(edges: Edges) -> list[str]:
    """The folders that reach themselves."""
    return sorted(name for name in edges if name in reachable(edges, name))


def diagram() -> str:
    """One arrow for each import of a folder that does not follow from others (the transitive reduction)."""
    edges = folder_edges(exceptions=False)
    both = {(a, b) for a in edges for b in edges[a] if a in edges.get(b, ())}
    lines = ["```mermaid", "graph TD"]
    for top in ("app", "compiler"):
        inside = sorted(name for name in {*edges, *(b for found in edges.values() for b in found)} if name != top)
        lines.append(f"  subgraph {top}")
        lines += [f"    {_id(name)}[{name.split('/')[1]}]" for name in inside if name.startswith(f"{top}/")]
        lines.append("  end")
    lines.append("  themes")
    for a in sorted(edges):
        for b in sorted(edges[a] - {"app", "compiler"}):
            # Of two folders that import each other, the first stands for both.
            others = [c for c in edges[a] - {b} if (a, c) not in both and ((b, c) not in both or c < b)]
            if a in ("app", "compiler") or ((a, b) in both and a > b) or any(b in reachable(edges, c) for c in others):
                continue
            lines.append(f"  {_id(a)} {'<-->' if (a, b) in both else '-->'} {_id(b)}")
    return "\n".join([*lines, "```"])


def _id(name: str) -> str:
    return name.replace("/", "_")


def written(page: str) -> str:
    """The page with today's diagram."""
    return MARK.sub(lambda found: f"{found[1]}{diagram()}\n{found[2]}", page)


def main(words: list[str]) -> int:
    if words == ["--cycles"]:
        for name in cycles(folder_edges(exceptions=True)):
            print(name)
    elif words == ["--write"]:
        PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(diagram())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
