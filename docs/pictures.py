"""Makes the pictures of the docs from the workbench on the real engine: `python docs/pictures.py [--tiny]`.

Each picture is an SVG in `docs/pictures/`. `tour` is an animated one: screens of one session, one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
PATIENCE = 120.0
CELL = 12.2
Act = Callable[[Workbench, Any], Awaitable[None]]


async def until(pilot: Any, condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds, and then until the screen has been drawn."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
        await pilot.pause(0.05)
    await pilot.pause(0.3)


async def compiled(app: Workbench, pilot: Any) -> None:
    state = app.state
    await until(
        pilot, lambda: state.problem is not None or (not state.busy and state.compiled_recipe is not None), "IR"
    )
    if state.problem is not None:
        raise RuntimeError(str(state.problem))
    await until(pilot, lambda: app.ir.chosen_stage is None or app.ir.document.text == app.ir.chosen_stage.text, "lines")


def settle(app: Workbench) -> None:
    """Leave out the last message, and what packages print with paths of this machine."""
    app.context.status.message = ""
    app.update_border_lines()
    app.state.printout[:] = [line for line in app.state.printout if "site-packages" not in line]
    app.outputs.update_from(frozenset({"outputs"}))


async def select_node(app: Workbench, pilot: Any, name: str) -> None:
    """Put the cursor of the graph on the first node whose name begins with `name`; the other panes follow."""
    node = next(row for row in app.graph.rows if row.name.startswith(name))
    row = app.graph.row_of_node(node.stable)
    assert row is not None
    app.graph.move_to(row)
    await pilot.pause(0.6)


async def overview(app: Workbench, pilot: Any) -> None:
    """All four panes after a run, with the IR of the fused phase."""
    await run_and_compare(app, pilot)
    await select_node(app, pilot, "gelu")


async def assembly(app: Workbench, pilot: Any) -> None:
    """The IR pane alone, on the assembly."""
    await pilot.press("tab", "tab", "0")
    await compiled(app, pilot)
    await pilot.press("/", *"vfmadd", "enter")
    await until(pilot, lambda: bool(app.ir.search.matches.lines) or not app.ir.search.matches.pattern, "matches")


async def failure(app: Workbench, pilot: Any) -> None:
    """A pass that another one needs, switched off."""
    await pilot.press("tab")
    passes = app.passes
    passes.move_to(next(place for place, row in enumerate(passes.rows) if row.name == "one-shot-bufferize"))
    await pilot.press("space")
    await until(pilot, lambda: app.state.problem is not None, "the failure")
    await pilot.press("exclamation_mark")
    await pilot.pause(1.0)


PICTURE: dict[str, tuple[tuple[int, int], str, Act]] = {
    "workbench": ((160, 50), "buddy-dark", overview),
    "light": ((160, 50), "buddy-light", overview),
    "narrow": ((80, 24), "buddy-dark", assembly),
    "failure": ((120, 40), "buddy-dark", failure),
}


async def open_graph(app: Workbench, pilot: Any) -> None:
    """The graph, with one node's lines marked in the IR."""
    await pilot.press("4")
    await compiled(app, pilot)
    await select_node(app, pilot, "gelu")


async def step_to_change(app: Workbench, pilot: Any) -> None:
    """The diff of the next pass that changed something."""
    await pilot.press("tab", "tab", "right_curly_bracket")
    await compiled(app, pilot)
    await pilot.press("d", "d")
    await pilot.pause(1.5)


async def disable_pass(app: Workbench, pilot: Any) -> None:
    """The passes, with one switched off and everything compiled again."""
    await pilot.press("d", "shift+tab")
    passes = app.passes
    passes.move_to(next(place for place, row in enumerate(passes.rows) if row.name == "fuse-epilogues"))
    await pilot.press("space")
    await pilot.pause(0.5)
    await compiled(app, pilot)


async def show_assembly(app: Workbench, pilot: Any) -> None:
    await pilot.press("tab", "0")
    await compiled(app, pilot)
    await pilot.pause(0.6)


async def run_and_compare(app: Workbench, pilot: Any) -> None:
    """The outputs compared with eager."""
    await pilot.press("r")
    await until(pilot, lambda: app.state.report is not None and not app.state.busy, "the report")
    await pilot.press("4")
    await compiled(app, pilot)


# The screens of the animated picture: the caption, and what leads there from the screen before.
TOUR: tuple[tuple[str, Act], ...] = (
    ("buddy-tui samples/bert.py: the graph, the passes, the IR", open_graph),
    ("} and d: what the next pass changed", step_to_change),
    ("space on a pass: everything after it is compiled again", disable_pass),
    ("0: assembly, and the nodes that each line comes from", show_assembly),
    ("r: run, and compare every output with eager PyTorch", run_and_compare),
)
TOUR_SIZE = (132, 38)
SECONDS_PER_SCREEN = 3.5


async def tour(source: str, arguments: tuple[str, ...]) -> str:
    """An animated SVG of a session in the workbench."""
    screens = []
    with tempfile.TemporaryDirectory() as store:
        app = Workbench(source, arguments, settings=Settings("buddy-dark"), store=Path(store))
        async with app.run_test(size=TOUR_SIZE) as pilot:
            await compiled(app, pilot)
            for caption, act in TOUR:
                await act(app, pilot)
                settle(app)
                await pilot.pause(0.3)
                screens.append(app.export_screenshot(title=caption, simplify=True))
    return animate(screens)


def animate(screens: list[str]) -> str:
    """One SVG that shows the given ones, of the same size, one after another without end.

    The names of their styles are different, because Textual derives them from the content.
    """
    box = re.search(r'viewBox="[^"]*"', screens[0])
    assert box is not None
    total = len(screens) * SECONDS_PER_SCREEN
    share = 100 / len(screens)
    style = (
        f".screen {{ visibility: hidden; animation: screens {total:g}s step-end infinite }}\n"
        f"@keyframes screens {{ 0% {{ visibility: visible }} {share:g}% {{ visibility: hidden }} }}\n"
    )
    parts = []
    for number, screen in enumerate(screens):
        content = re.sub(r"^.*?<svg[^>]*>|</svg>\s*$", "", screen, flags=re.S)
        parts.append(f'<g class="screen" style="animation-delay: {number * SECONDS_PER_SCREEN:g}s">{content}</g>')
    body = "\n".join(parts)
    return f'<svg {box[0]} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>\n{body}\n</svg>\n'


async def picture(name: str, source: str, arguments: tuple[str, ...]) -> str:
    if name == "tour":
        return await tour(source, arguments)
    size, theme, act = PICTURE[name]
    with tempfile.TemporaryDirectory() as store:
        app = Workbench(source, arguments, settings=Settings(theme), store=Path(store))
        async with app.run_test(size=size) as pilot:
            await compiled(app, pilot)
            await act(app, pilot)
            settle(app)
            await pilot.pause(0.3)
            return app.export_screenshot(title="buddy-tui", simplify=True)


def for_rsvg(svg: str) -> str:
    """The picture for a renderer that drops spaces at the ends of texts and does not stretch them to their length."""

    def placed(found: re.Match[str]) -> str:
        x, text = float(found.group(2)), found.group(4)
        kept = text.lstrip("\xa0")
        shift = (len(text) - len(kept)) * CELL
        return f"{found.group(1)}{x + shift:g}{found.group(3)}{kept}</text>"

    plain = svg.replace("&#160;", "\xa0")
    moved = re.sub(r'(<text class="[^"]*-r\d+" x=")([\d.]+)("[^>]*>)([^<]*)</text>', placed, plain)
    return re.sub(r"font-size: 20px", "font-size: 20.26px", moved)


def write(name: str, svg: str, png: bool) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.svg"
    path.write_text(svg, "utf-8")
    if png:
        converter = shutil.which("rsvg-convert") or "rsvg-convert"
        command = [converter, "--width", "1600", "--output", str(path.with_suffix(".png"))]
        subprocess.run(command, input=for_rsvg(svg).encode(), check=True)
    print(path.relative_to(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small BERT, for a quick look")
    parser.add_argument("--png", action="store_true", help="PNGs too, next to the SVGs, by rsvg-convert")
    names = [*PICTURE, "tour"]
    parser.add_argument("names", nargs="*", default=names, help=f"of {', '.join(names)}; all by default")
    options = parser.parse_args()
    for name in options.names:
        source = "samples/bert.py"
        write(name, asyncio.run(picture(name, source, ("--tiny",) if options.tiny else ())), options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
