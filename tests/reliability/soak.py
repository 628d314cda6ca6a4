"""Soak test: a day of work in one session, in an hour. No action may leave anything behind.

One session of the real workbench on the real engine, on a small program with several graphs: all actions of the
workbench, thousands of times in an order drawn from the seed, with regular measurements of every process.

    python -m tests.reliability soak --output soak.jsonl                     # the campaign
    python -m tests.reliability.soak soak.jsonl.samples --plot soak.svg      # the measurements, as a table and a plot
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from textual.geometry import Size
from textual.widgets import Input, TextArea

from buddy.app import actions
from buddy.app.workbench.app import MainScreen
from buddy.app.workspace import history, session_file
from buddy.app.workspace.settings import Settings
from buddy.compiler.engine.one_shot_requests import MAX_FORMS
from buddy.compiler.support import files
from buddy.themes.palette import themes
from tests.reliability.campaign import Attempt, Campaign, Fault, Tried
from tests.reliability.holdings import Sample, Watch, growths, leaks, risen_kinds, watched, without_kinds
from tests.reliability.user import Drilled, User

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
COUNT = 5_000
EVERY = 100
# Time limit for an action in seconds.
PATIENCE = 120.0
# The number of passes that are toggled.
_TOGGLED = 4
# Sizes of terminals.
_SIZES = ((80, 24), (100, 30), (60, 20), (40, 10))
# Not drawn from the registry: quitting, restarting the engine, edits of the recipe and writing files (which are done
# separately), external editors, searches and measurements that take minutes.
_NOT = frozenset({
    "quit", "rerun", "cancel", "run-all", "palette", "graph.toggle", "graph.lowering", "graph.extract", "graph.script",
    "graph.numerics", "graph.beside", "outputs.numerics", "ir.write", "ir.edit", "ir.edit-here", "edits", "reset",
    "save", "compare-recipes", "compare-presets", "inputs", "reproducer", "frontend", "backend", "backend.flags",
    "export", "target", "profile", "profile.modules", "profile.roofline", "profile.hot", "threads", "auto", "watch",
    "bisect", "phase.number",
})  # fmt: skip
# The panes with a search, and its action.
_SEARCHES: tuple[tuple[actions.Pane, str], ...] = (("ir", "search"), ("graph", "search"), ("graph", "graph.filter"))
# The texts typed at prompts.
_TYPED = ("add", "3", "op:mm", "", "%0", "x", "12")


class Day:
    """Performs actions: each is done, waited for, and undone."""

    def __init__(self, app: Drilled, pilot: Any, folder: Path, chance: random.Random) -> None:
        self.app, self._pilot, self._folder, self._chance = app, pilot, folder, chance
        self._user = User(app, folder, chance)
        self.done: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.cost: Counter[str] = Counter()
        self.recipes: set[int] = set()
        self._acts: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "toggle": (10, self._toggle),
            "undo or redo": (12, self._undo),
            "run": (6, self._run),
            "resize": (4, self._resize),
            "open": (1, self._open),
            "page": (20, self._page),
            "diff": (8, self._diff),
            "search": (8, self._search),
            "export": (2, self._export),
            "another graph": (6, self._graph),
            "theme": (2, self._theme),
            "any action": (34, self._any),
        }

    async def begin(self) -> None:
        await self._until(lambda: self.app.state.engine == "ready" and bool(self.app.state.captured), "the program")
        await self._settled()

    async def fill(self) -> None:
        """Fills all bounded caches as far as the session can: the maximum number of edits of each graph, every
        resulting recipe compiled, every stage of a graph shown in all its forms, the maximum number of runs,
        every action tried, and every theme shown at every size.
        """
        for graph in range(len(self.app.state.graphs)):
            self.app.graph_commands.show(graph)
            await self._settled()
            await self._fill_edits()
            await self._fill_recipes()
        await self._fill_stages()
        await self._fill_forms()
        for _ in range(session_file.MAX_RUNS):
            await self._run()
            await self._settled()
        await self._fill_screens()

    async def _fill_edits(self) -> None:
        """Toggles passes faster than they are compiled, until the undo history is full."""
        while len(self.app.workspace.past_edits) < history.MAX_UNDO_EDITS:
            await self._switch(self._chance.choice(self._rows()))
            await asyncio.sleep(0)
        await self._settled()

    async def _fill_recipes(self) -> None:
        """Compiles all recipes of a graph that toggles lead to: each differs from the next by one toggle, cyclically
        (a Gray code).
        """
        for number in range(1, 2**_TOGGLED + 1):
            rows = self._rows()
            await self._switch(rows[min((number & -number).bit_length(), len(rows)) - 1])
            await self._until(lambda: self.app.state.compiled_recipe == self.app.workspace.recipe, "a compilation")
        await self._settled()

    async def _fill_stages(self) -> None:
        """Shows each stage in its generic form on the way to the first one, compared with the previous stage line by
        line on the way to the last, and by structure on the way back.
        """
        self.app.context.layout.show_pane("ir")
        walks = (
            (("ir.generic",), "ir.previous"),
            (("ir.generic", "ir.diff"), "ir.next"),
            (("ir.diff",), "ir.previous"),
        )
        for shown, step in walks:
            for action in (*shown, *[step] * len(self.app.state.board.rows())):
                await self.app.perform(actions.BY_ID[action])
                await self._settled()
        await self.app.perform(actions.BY_ID["ir.diff"])
        await self._settled()

    async def _fill_forms(self) -> None:
        """Requests as many generic forms as the engine caches, of random stages."""
        self.app.context.layout.show_pane("ir")
        await self.app.perform(actions.BY_ID["ir.generic"])
        for _ in range(MAX_FORMS):
            self.app.graph_commands.show(self._chance.randrange(len(self.app.state.graphs)))
            await self._settled()
            self.app.ir.choose(self._chance.choice(self.app.ir.rows))
            await self._settled()
        if self.app.ir.stages.generic:
            await self.app.perform(actions.BY_ID["ir.generic"])
        await self._settled()

    async def _fill_screens(self) -> None:
        for pane in self.app.context.layout.visible_order:
            for action in actions.ACTIONS:
                self.app.context.layout.show_pane(pane)
                if self._may(action, pane) and (action.pane == pane or action.id not in self.tried):
                    await self._do(action)
                    await self._settled()
                    await self._user.go_back()
        for size, theme in product(_SIZES, themes()):
            await self._pilot.resize_terminal(*size)
            self.app.theme = theme
            for pane in self.app.context.layout.visible_order:
                self.app.context.layout.show_pane(pane)
                await self._settled()

    async def act(self) -> None:
        """One action, until it is complete and the main screen is back."""
        names = list(self._acts)
        (name,) = self._chance.choices(names, [weight for weight, _ in self._acts.values()])
        start = time.process_time()
        await self._acts[name][1]()
        await self._settled()
        await self._user.go_back()
        self.recipes.add(hash(self.app.workspace.recipe))
        self.done[name] += 1
        self.cost[name] += time.process_time() - start

    async def rest(self) -> None:
        """Waits until nothing is running, and closes what does not belong to the program."""
        await self._user.go_back()
        await self._settled()
        self.app.told.clear()
        for path in self._folder.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    async def _settled(self) -> None:
        await asyncio.sleep(0.01)
        await self._until(lambda: self.app.state.engine == "ready" and not self._busy(), "the end of what was started")
        await asyncio.sleep(0.01)

    def _busy(self) -> bool:
        state = self.app.state
        return bool(state.busy or self.app.situation().busy or state.jobs or self.app.context.jobs.is_busy)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {PATIENCE:g} s for {what}: {self.app.state.jobs} {self.app.state.problem}")
            await asyncio.sleep(0.005)

    # ---- actions -------------------------------------------------------------------------------------------------

    async def _press(self, *keys: str) -> None:
        await self._user.press(*keys)

    async def _toggle(self) -> None:
        await self._switch(self._chance.choice(self._rows()))

    def _rows(self) -> list[int]:
        """The rows of a few passes, so that the recipes, and their stages, are all known."""
        return [
            number
            for number, row in enumerate(self.app.passes.rows)
            if row.step is not None and row.step.name in ("cse", "canonicalize") and row.step.level == "mlir"
        ][:_TOGGLED]

    async def _switch(self, row: int) -> None:
        self.app.context.layout.show_pane("passes")
        # Without a wait: a frame from the engine may move the cursor to the pass of the stage on the screen.
        self.app.passes.cursor = row
        await self.app.perform(actions.BY_ID["passes.toggle"])

    async def _undo(self) -> None:
        await self._press(self._chance.choice(("u", "ctrl+r")))

    async def _run(self) -> None:
        await self._press("r")

    async def _resize(self) -> None:
        width, height = self._chance.choice(_SIZES)
        await self._pilot.resize_terminal(width, height)
        assert self.app.size == Size(width, height)

    async def _open(self) -> None:
        self.app.session.reload((self.app.workspace.source,))
        await self._until(lambda: bool(self.app.state.captured), "the program")

    async def _page(self) -> None:
        self.app.context.layout.show_pane("ir")
        await self._press(*self._chance.choice((("[", "["), ("]",), ("pagedown",), ("G",), ("g", "g"), ("W",), ("m",))))

    async def _diff(self) -> None:
        self.app.context.layout.show_pane("ir")
        await self._press("]", self._chance.choice("dD"), "c")

    async def _search(self) -> None:
        pane, action = self._chance.choice(_SEARCHES)
        self.app.context.layout.show_pane(pane)
        await self.app.perform(actions.BY_ID[action])
        if self._user.typing:
            await self._type(self._chance.choice(("add", "%0", "a.*b", "nothing")), "enter")
            await self._press(*(("n",) if action == "search" else ()))

    async def _export(self) -> None:
        self.app.export_commands._export_to(str(self._folder / "made"), ("object",))
        await self._settled()
        shutil.rmtree(self._folder / "made", ignore_errors=True)

    async def _graph(self) -> None:
        self.app.graph_commands.show(self._chance.randrange(len(self.app.state.graphs)))

    async def _theme(self) -> None:
        self.app.theme = self._chance.choice(list(themes()))

    async def _any(self) -> None:
        """Any available action in a pane."""
        self.app.context.layout.show_pane(pane := self._chance.choice(self.app.context.layout.visible_order))
        possible = [action for action in actions.ACTIONS if self._may(action, pane)]
        await self._do(self._chance.choice(possible))

    async def _do(self, action: actions.Action) -> None:
        """Performs an action; answers its prompts, and closes what it opens."""
        self.tried[action.id] += 1
        await self.app.perform(action)
        await self._settled()
        if self._user.typing:
            await self._type(self._chance.choice(_TYPED), "escape" if self._chance.random() < 0.3 else "enter")
        elif not isinstance(self.app.screen, MainScreen):
            await self._press("down", "down", "pagedown", "up")
            if self._in_field:
                await self._press("x", "backspace")

    async def _type(self, text: str, end: str) -> None:
        """Types at a prompt: in a pane the same letters would extract nodes and remove passes."""
        await self._until(lambda: self._in_field, "a line to type on")
        await self._press(*text, end)

    @property
    def _in_field(self) -> bool:
        return isinstance(self.app.focused, Input | TextArea)

    def _may(self, action: actions.Action, pane: str) -> bool:
        edits = action.pane == "passes" and action.id != "passes.details"
        here = action.pane in (pane, "any", "app")
        return here and not edits and action.id not in _NOT and not action.blocked(self.app.situation())


async def soak(seed: int, count: int, watch: Watch, told: Callable[[Sample], None], fill: bool = True) -> Tried:
    """`count` actions in one session, after filling the caches with `fill`; `told` receives regular samples."""
    chance = random.Random(f"soak {seed}")
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, tempfile.TemporaryDirectory(prefix="soak-") as store:
        app = Drilled(str(SAMPLES / "two_models.py"), store=Path(store), settings=Settings(), directory=folder)
        async with app.run_test(size=_SIZES[0]) as pilot:
            day = Day(app, pilot, Path(folder), chance)
            await day.begin()
            if fill:
                await day.fill()
            for number in range(count + 1):
                if number % EVERY == 0 or number == count:
                    await day.rest()
                    told(sample := await watch.sample(number))
                    samples.append(without_kinds(sample))
                if number < count:
                    await day.act()
    facts = _facts(samples) | {f"ms of {name}": [round(day.cost[name] * 1000 / day.done[name], 1)] for name in day.cost}
    facts["actions of the registry"] = [len(day.tried)]
    facts |= {"graphs": [len(app.state.graphs)], "recipes": [len(day.recipes)]}
    return Tried(dict(day.done), tuple(Fault("leak", said, f"seed {seed}") for said in leaks(samples)), facts)


def _facts(samples: list[Sample]) -> dict[str, list[float]]:
    found = {f"growth of {name}, %": [round(value * 100, 2)] for name, value in growths(samples).items()}
    used = growths(samples, "in_use").items()
    found |= {f"growth of what {name} has in use, %": [round(value * 100, 2)] for name, value in used}
    for role in samples[-1].held:
        found[f"MiB of {role}"] = [round(sample.held[role].own / 1024, 1) for sample in samples if role in sample.held]
    return found


@contextmanager
def environment() -> Iterator[None]:
    """A separate cache, one thread, and an allocator that returns free memory, so that only live memory is measured."""
    here, wanted = os.getcwd(), {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    with (
        tempfile.TemporaryDirectory(prefix="soak-cache-") as cache,
        patch.dict(os.environ, wanted | {"BUDDY_CACHE": cache}),
    ):
        os.chdir(cache)
        try:
            yield
        finally:
            os.chdir(here)


@contextmanager
def _trial() -> Iterator[Attempt]:
    kept = Path(os.environ.get("BUDDY_SOAK_SAMPLES") or "soak.samples").resolve()

    def attempt(seed: int, cases: int) -> Tried:
        # Samples of an interrupted session do not belong to this one.
        kept.unlink(missing_ok=True)
        return asyncio.run(soak(seed, cases, watch, lambda each: files.append_json_line(kept, each)))

    with environment(), watched() as watch:
        yield attempt


CAMPAIGN = Campaign("soak", "a day's work in one session, and what is left of it", COUNT, COUNT, _trial)


# ---- reports ---------------------------------------------------------------------------------------------------------


def table(samples: list[Sample]) -> list[str]:
    """Memory, files, threads and objects at the end of the warm-up and at the end, and the growth by the line."""
    first, last = samples[int(len(samples) * 0.4)], samples[-1]
    lines = [
        "| process | MiB in use | growth | MiB of pages | growth | open files | threads | objects of Python |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    used = growths(samples, "in_use")
    for role, value in growths(samples).items():
        if role == "all":
            lines.append(f"| all | | {used[role]:+.2%} | | {value:+.2%} | | | |")
            continue
        before, after = first.held[role], last.held[role]
        lines.append(
            f"| {role} | {before.in_use / 1024:.1f} to {after.in_use / 1024:.1f} | {used[role]:+.2%} | "
            f"{before.own / 1024:.1f} to {after.own / 1024:.1f} | {value:+.2%} | {before.files} to {after.files} | "
            f"{before.threads} to {after.threads} | {before.objects:,} to {after.objects:,} |"
        )
    return lines


def plot(samples: list[Sample], path: Path) -> None:
    """Memory of each process over the actions, relative to the end of the warm-up."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    for role in samples[-1].held:
        axes.plot([s.actions for s in samples], [s.held[role].own / 1024 for s in samples], label=role)
    axes.axvline(samples[int(len(samples) * 0.4)].actions, color="grey", linestyle=":", label="end of warm-up")
    axes.set_xlabel("actions")
    axes.set_ylabel("private memory, MiB")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    axes.legend(loc="upper center", ncols=5)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the samples of a soak")
    parser.add_argument("--plot", type=Path, help="write a picture")
    options = parser.parse_args()
    samples = files.read_json_lines(options.file, Sample)
    print("\n".join(table(samples)))
    for role in samples[-1].held:
        print(role, risen_kinds(samples, role))
    print("\n".join(leaks(samples)) or "nothing grew")
    if options.plot:
        plot(samples, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
