"""Random recipes for all samples in their tiny forms, and a few small programs, through a real engine.

Each has to end in outputs that match eager, in a diagnostic that says what is wrong and where, or in a reported crash
of a process that the engine replaces. A recipe that ends otherwise is reduced, edit by edit, and printed as TOML for
`buddy-tui run PROGRAM --recipe FILE`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tomli_w

from buddy.app.session.client import EngineError, RequestFailed
from buddy.compiler.protocol import ListPasses, ListPresets, Open, Progress, Run
from buddy.compiler.protocol.plain_values import GraphInfo
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import TORCH_MLIR, Frontend, Recipe
from buddy.compiler.support.delta_debugging import smallest_failing
from tests.reliability.campaign import Attempt, Campaign, Fault, Note, Tried
from tests.reliability.engines import Engine, NotAnswered
from tests.reliability.random_recipes import Choices, Choose, Edit, edited, recipe_of
from tests.reliability.recipe_endings import Arrays, Ending, arrays_of, of_failure, of_run

ROOT = Path(__file__).resolve().parents[2]
# Time limit for a recipe in seconds, most take less than one; then it is cancelled, and has to end.
PATIENCE = 30.0
# Time limit for the script of a program in seconds: it imports torch and transformers, on a loaded machine.
OPENING = 600.0
# Accepted outcomes whose recipes are kept for inspection.
LOOKED_AT = ("crashed", "stopped", "differs")
# Maximum number of trials to reduce a failing recipe.
SMALLER = 40


class Program(NamedTuple):
    """What is opened, as on a command line in the project's folder."""

    path: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.path, *self.arguments))


_OWN = "tests/reliability/programs"
SMALL = (
    *(Program(f"{_OWN}/{name}.py") for name in ("shapes", "images", "numbers", "layers")),
    *(Program(f"samples/{name}.py") for name in ("arith_add", "addmm", "torch_compile", "buddy_style", "two_models")),
    *(Program(f"samples/{name}.py") for name in ("custom_op", "training", "mlp", "lenet")),
    *(Program(f"samples/bindings/{name}.py") for name in ("build_module", "own_dialect", "own_pass")),
)
LARGE = (
    *(Program(f"samples/{name}.py", ("--tiny",)) for name in ("lstm", "bert", "vit", "gpt2", "llama", "whisper")),
    *(Program(f"samples/{name}.py", ("--tiny", "--decode")) for name in ("gpt2", "llama")),
    *(Program(f"samples/{name}.py", ("--tiny",)) for name in ("resnet18", "mobilenet_v3")),
)
# Most batches are on small programs: their recipes have as many steps, and take a tenth of the time.
PROGRAMS = (*SMALL, *LARGE, *SMALL, *SMALL, *SMALL)
_FRONTENDS: Sequence[Frontend] = ("dynamo", "dynamo", "dynamo", "export", "torch-mlir")


class Bench:
    """A program opened by an engine, and eager's outputs for each of its graphs."""

    def __init__(self, engine: Engine, program: Program, frontend: Frontend) -> None:
        """Raises `RequestFailed` if `dynamo` does not support the program either."""
        self.engine, self._program, self._frontend = engine, program, frontend
        number = engine.client.new_request_id
        self._presets = engine.ask(ListPresets(number()), OPENING).presets
        self._passes = engine.ask(ListPasses(number()), OPENING).passes
        self._references: dict[int, Arrays] = {}
        # The ending of the unmodified first preset, by graph, if that was not right.
        self.unfit: dict[int, Ending] = {}
        self._doing = ""
        try:
            self._graphs = self._opened()
        except RequestFailed:
            self._frontend = "dynamo"
            self._graphs = self._opened()

    def _opened(self) -> tuple[GraphInfo, ...]:
        path, number = str(ROOT / self._program.path), self.engine.client.new_request_id()
        frame = Open(number, path, self._program.arguments, str(ROOT), frontend=self._frontend)
        return self.engine.ask(frame, OPENING).graphs

    # ---- recipes ----------------------------------------------------------------------------------------------------

    def drawn(self, chance: random.Random) -> tuple[Recipe, tuple[Edit, ...]]:
        """A preset for one of the graphs, and edits."""
        graph = chance.randrange(len(self._graphs))
        nodes = [row.stable for row in self._graphs[graph].rows if row.opcode.startswith("call")]
        return recipe_of(chance, Choices(self.bases(graph), self._passes, nodes))

    def first(self, graph: int) -> Recipe:
        """The preset that compiles every program here."""
        return next(self._of_graph(preset.recipe, graph) for preset in self._presets if preset.name == "default")

    def bases(self, graph: int) -> list[Recipe]:
        """The presets; those of the frontend that opened the program occur more often."""
        found = {preset.name: self._of_graph(preset.recipe, graph) for preset in self._presets}
        own = [found[name] for name in ("default", "default", "default", "upstream")]
        imported = [recipe for recipe in found.values() if recipe.frontend == TORCH_MLIR]
        often, seldom = (imported, own) if self._frontend == TORCH_MLIR else (own, imported)
        return [*often * 4, *seldom, found["gpu"]]

    def _of_graph(self, recipe: Recipe, number: int) -> Recipe:
        graph = self._graphs[number]
        path, words = str(ROOT / self._program.path), self._program.arguments
        own: Frontend = "dynamo" if self._frontend == TORCH_MLIR else self._frontend
        frontend = TORCH_MLIR if recipe.frontend == TORCH_MLIR else own
        recipe = msgspec.structs.replace(recipe, source=path, arguments=words, graph=number, frontend=frontend)
        return adapt_to_phase(recipe, graph.entry_phase, graph.dialects)

    # ---- trials -----------------------------------------------------------------------------------------------------

    def tried(self, recipe: Recipe) -> Ending:
        """Runs a recipe. Raises `EngineError`."""
        if recipe.graph not in self._references:
            self._references[recipe.graph] = {}
            self._reference(recipe.graph)
        start = time.perf_counter()
        return replace(self._ending(recipe), seconds=time.perf_counter() - start)

    def _reference(self, graph: int) -> None:
        """Eager's outputs, from a run with the first preset."""
        ending = self._ending(self.first(graph))
        if ending.outcome not in ("right", "stopped"):
            self.unfit[graph] = ending

    def _ending(self, recipe: Recipe) -> Ending:
        frame = Run(self.engine.client.new_request_id(), recipe, 1, PATIENCE, values=True, equal_nan=True)
        self._doing = "nothing was told"
        try:
            ran = self.engine.ask(frame, PATIENCE, self._note)
        except RequestFailed as error:
            return of_failure(error.failed, self._whose(recipe, error.diagnostic.step))
        except NotAnswered as error:
            return Ending("stopped" if error.stopped else "hang", self._doing)
        reference = self._references[recipe.graph]
        if not reference:
            self._references[recipe.graph] = arrays_of(ran)
        return of_run(ran, recipe, reference)

    def _whose(self, recipe: Recipe, step: int) -> bool:
        """Whether a step of a recipe is a pass of ours."""
        ours = {info.name for info in self._passes if info.ours}
        return 0 <= step < len(recipe.steps) and recipe.steps[step].name in ours

    def _note(self, frame: Any) -> None:
        if isinstance(frame, Progress):
            self._doing = frame.activity


class Batch:
    """The recipes of one seed, on one program."""

    def __init__(self, cache: Path, seed: int, program: Program, frontend: Frontend) -> None:
        self._cache, self._seed, self._program, self._frontend = cache, seed, program, frontend
        self._bench: Bench | None = None
        self._outcomes: Counter[str] = Counter()
        self.faults: dict[str, Fault] = {}
        self._seconds: list[float] = []
        self._notes: list[Note] = []

    def tried(self, cases: int) -> Tried:
        try:
            for number in range(cases):
                self._try(number)
        except (RequestFailed, NotAnswered, EngineError) as error:
            self.faults["not opened"] = Fault("not opened", str(error), str(self._program))
        except KeyboardInterrupt:
            self._end()  # running work need not finish
            raise
        finally:
            self.close()
        return Tried(dict(self._outcomes), tuple(self.faults.values()), {"seconds": self._seconds}, tuple(self._notes))

    def _try(self, number: int) -> None:
        base, edits = self.bench().drawn(random.Random(f"{self._seed}/{number}"))
        recipe = edited(base, edits)
        ending = self.ending(recipe)
        self._outcomes[ending.outcome] += 1
        self._seconds.append(round(ending.seconds, 2))
        what = as_file(recipe, self._words(number, edits, ending)) if ending.outcome in LOOKED_AT else ""
        self._notes.append(Note(number, ending.outcome, ending.why[:2000], marks(base, recipe, edits), what))
        if not ending.good and ending.kind not in self.faults:
            self.faults[ending.kind] = self.fault(number, base, edits, ending)

    def ending(self, recipe: Recipe) -> Ending:
        """The ending of a recipe; if the engine is lost, it is replaced."""
        bench = self.bench()
        try:
            ending = bench.tried(recipe)
        except EngineError as lost:
            ending = Ending("lost", f"{lost.reason}\n{lost.detail}")
        for graph, unfit in bench.unfit.items():
            why = f"graph {graph} by the default preset: {unfit.outcome}: {unfit.why[:2000]}"
            self.faults[f"preset {graph}"] = Fault("preset", why, str(self._program))
        if ending.outcome in ("lost", "hang"):
            self.close()
        return ending

    def bench(self) -> Bench:
        """The opened program."""
        if self._bench is None:
            folder = Path(tempfile.mkdtemp(prefix=f"recipes-{self._seed}-", dir=self._cache.parent))
            engine = Engine(folder, self._cache)
            try:
                self._bench = Bench(engine, self._program, self._frontend)
            except BaseException:
                engine.close()
                raise
        return self._bench

    def close(self) -> None:
        """Ends the engine; leftover processes are a fault."""
        if self._bench is None:
            return
        for where, left in (("with an idle host", self._bench.engine.left_running()), ("", self._end())):
            if left:
                self.faults[f"leak {where}"] = Fault("leak", "; ".join(left), f"{self._program} {where}")

    def _end(self) -> list[str]:
        """Ends the engine in any state; returns the commands of processes that did not exit."""
        bench, self._bench = self._bench, None
        if bench is None:
            return []
        left = bench.engine.close()
        shutil.rmtree(bench.engine.folder, ignore_errors=True)
        return left

    # ---- failures
    # -----------------------------------------------------------------------------------------------------

    def fault(self, number: int, base: Recipe, edits: Sequence[Edit], ending: Ending) -> Fault:
        """A recipe with an unacceptable ending, reduced to as few edits as possible."""
        left = SMALLER

        def fails(some: Sequence[Edit]) -> bool:
            nonlocal left
            left -= 1
            return left >= 0 and self.ending(edited(base, some)).kind == ending.kind

        least = [] if not fails(edits) else smallest_failing(edits, fails)
        again = "" if least else "; it did not come again"
        file = as_file(edited(base, least or edits), self._words(number, least or edits, ending, again))
        return Fault(ending.outcome, ending.why[:2000], file)

    def _words(self, number: int, edits: Sequence[Edit], ending: Ending, again: str = "") -> list[str]:
        """The description of a recipe, line by line."""
        told = f"{self._program}, seed {self._seed}, recipe {number}{again}: {ending.outcome}"
        return [told, *ending.why.split("\n")[:1], *(f"  {edit}" for edit in edits)]


def marks(base: Recipe, recipe: Recipe, edits: Sequence[Edit]) -> tuple[str, ...]:
    """The features of a recipe by which endings are counted: frontend, dialect, backend and so on."""
    found = [f"preset {base.preset}", f"frontend {recipe.frontend}", f"dialect {recipe.dialect}"]
    found.append(f"partition {recipe.partition}")
    found.append(f"backend {recipe.backend}")
    found += [f"target {recipe.target}"] if recipe.target else []
    found += [f"node by {lowering}" for lowering in sorted({e.lowering for e in edits if isinstance(e, Choose)})]
    found += [f"edit {kind}" for kind in sorted({type(edit).__name__.lower() for edit in edits})]
    return tuple(found)


def as_file(recipe: Recipe, words: Sequence[str]) -> str:
    """A recipe as TOML without defaults, for any program; `words` precede it as comments."""
    fields = _beside_defaults(msgspec.structs.replace(recipe, source="", arguments=()))
    fields["steps"] = [_beside_defaults(step) for step in recipe.steps]
    comments = "".join(f"# {line}\n" for word in words for line in word.splitlines())
    return comments + tomli_w.dumps(fields)


def _beside_defaults(struct: Any) -> dict[str, Any]:
    defaults = {found.name: found.default for found in msgspec.structs.fields(struct)}
    return {
        key: value
        for key, value in msgspec.to_builtins(struct).items()
        if getattr(struct, key) != defaults[key] or defaults[key] is msgspec.NODEFAULT
    }


def _batch(cache: Path, seed: int) -> Batch:
    return Batch(cache, seed, PROGRAMS[seed % len(PROGRAMS)], random.Random(seed).choice(_FRONTENDS))


@contextmanager
def _trial() -> Iterator[Attempt]:
    """The object cache is shared by all batches."""
    with tempfile.TemporaryDirectory(prefix="buddy-recipes-") as folder:
        cache = Path(folder, "cache")
        cache.mkdir()
        yield lambda seed, cases: _batch(cache, seed).tried(cases)


CAMPAIGN = Campaign(
    name="recipes",
    summary="random recipes over the samples, each right, refused, or the named end of a process",
    count=2_000,
    batch=25,
    trial=_trial,
)
