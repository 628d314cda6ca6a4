"""The MCP server, through the client of the official package, over stdio."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.app.cli.agent import Folder
from buddy.app.cli.mcp_tools import Tools
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import MAX_THREADS, from_toml, to_toml
from tests.conftest import RunPython, WarmPython
from tests.support.engine_processes import everything_below
from tests.tools.bisect.planted import PLANTS, Plant

mcp = pytest.importorskip("mcp", reason="the extra buddy-tui[mcp] is not installed")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + nn.functional.gelu(self.up(x)))


torch.manual_seed(0)
print("built the model")
model, example_inputs = nn.Sequential(Block(), Block()).eval(), torch.randn(8, 16)
"""
Connect = Callable[..., Any]


class Agent:
    """A client that calls tools, and nothing else."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def call(self, tool: str, progress: list[str] | None = None, **arguments: Any) -> dict[str, Any]:
        """The object that a tool returns. Raises `AssertionError` with the text of an error."""
        done = await self._call(tool, progress, arguments)
        assert not done.is_error, done.content[0].text
        return dict(done.structured_content)

    async def error(self, tool: str, **arguments: Any) -> str:
        """The text of the error of a tool."""
        done = await self._call(tool, None, arguments)
        assert done.is_error, done.structured_content
        return str(done.content[0].text)

    async def _call(self, tool: str, progress: list[str] | None, arguments: dict[str, Any]) -> Any:
        async def note(_progress: float, _total: float | None, message: str | None) -> None:
            if progress is not None:
                progress.append(message or "")

        return await self.client.call_tool(tool, arguments, progress_callback=note)


@pytest.fixture
def connect(warm_python: WarmPython) -> Connect:
    """`async with connect(folder) as agent`: an agent with a server for that folder."""

    @asynccontextmanager
    async def connected(folder: Path, *words: str, mode: str = "auto") -> AsyncIterator[Agent]:
        command, *rest = warm_python.command
        arguments = [*rest, "-m", "buddy.app.cli", "mcp", "--folder", str(folder), *words]
        server = mcp.StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
        async with mcp.Client(server, mode=mode) as client:
            yield Agent(client)

    return connected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "program.py").write_text(PROGRAM)
    return tmp_path / "work"


def plant(folder: Path, fault: Plant) -> None:
    """Write a plug-in and a recipe with its wrong pass into the folder, under names that do not tell it."""
    shutil.copy(fault.path, folder / "plugin.py")
    recipe = msgspec.structs.replace(fault.planted(default_recipe()), plugins=())
    (folder / "given.toml").write_text(to_toml(recipe))


async def repair(agent: Agent, program: str) -> dict[str, Any]:
    """Make a program right by tools alone, without knowing what is wrong. Returns what the bisection has found."""
    await agent.call("open_program", path=program, recipe="given.toml", plugins=["plugin.py"])
    assert (await agent.call("run"))["result"] == "MISMATCH"
    found = await agent.call("bisect", criterion="differs")
    for culprit in found["passes"]:
        await agent.call("set_pass", passes=str(culprit["pass"]), enabled=False)
    assert (await agent.call("run"))["result"] == "ok"
    await agent.call("write_recipe", path="repaired.toml")
    return found


@pytest.mark.slow
async def test_an_agent_repairs_a_program_by_tools_alone(connect: Connect, folder: Path, cli: RunPython) -> None:
    plant(folder, PLANTS[0])
    async with connect(folder) as agent:
        found = await repair(agent, "program.py")
    assert [(one["name"], one["from"]) for one in found["passes"]] == [("flip-one-sign", "plugin.py")]
    disabled = [step.name for step in from_toml((folder / "repaired.toml").read_text()).steps if not step.enabled]
    assert "flip-one-sign" in disabled
    files = ("--recipe", folder / "repaired.toml", "--plugin", folder / "plugin.py")
    assert cli("run", folder / "program.py", *files, "--repeats", "1").returncode == 0


@pytest.mark.slow
@pytest.mark.full("a bisection of BERT-base takes minutes")
async def test_an_agent_repairs_bert(connect: Connect, folder: Path) -> None:
    pytest.importorskip("transformers")
    shutil.copy(ROOT / "samples" / "bert.py", folder / "bert.py")
    plant(folder, PLANTS[0])
    async with connect(folder, "--timeout", "600") as agent:
        found = await repair(agent, "bert.py")
    assert [one["name"] for one in found["passes"]] == ["flip-one-sign"]


@pytest.mark.slow
async def test_stages_are_read_searched_compared_and_traced(connect: Connect, folder: Path) -> None:
    async with connect(folder) as agent:
        progress: list[str] = []
        opened = await agent.call("open_program", progress, path="program.py")
        assert opened["printed"] == ["built the model"]
        assert opened["graphs"][0]["nodes"] > 5
        assert "running the script" in progress

        listed = await agent.call("list_stages", changed_only=True)
        assert listed["ok"]
        names = [stage["name"] for stage in listed["stages"]]
        assert names[0] == "fx"
        assert "lower" in names
        assert "tosa-to-arith" not in names  # changed nothing

        read = await agent.call("read_stage", stage="lower", first=1, count=2)
        assert read["text"].count("\n") == 1
        assert read["total"] > 50
        marked = await agent.call("read_stage", stage="graph", count=500, nodes=True)
        assert [line["nodes"] for line in marked["lines"] if "GeluOp" in line["text"]] == [["0/gelu.0"], ["1/gelu.0"]]

        hits = await agent.call("search", pattern=r"math\.erf", regex=True, stage="toplevel")
        assert hits["stages"][0]["matches"] == 2
        line = hits["stages"][0]["lines"][0]["line"]
        origin = await agent.call("trace", stage="toplevel", line=line)
        assert [node["target"] for node in origin["nodes"]] == ["aten.gelu.default"]
        assert origin["nodes"][0]["location"].endswith("program.py:12")
        lines = await agent.call("trace", node=origin["nodes"][0]["stable"])
        assert {"fx", "lower", "codegen"} <= {stage["name"] for stage in lines["stages"]}

        pair = await agent.call("diff", before="pad-in-place", after="expand-math-to-polynomials")
        assert "math.erf" in "".join(text for text in pair["diff"].splitlines(True) if text.startswith("-"))
        await agent.call("set_pass", passes="expand-math-to-polynomials", enabled=False)
        edited = await agent.call("diff", before="codegen", with_last_edit=True)
        assert edited["hunks"] > 0
        await agent.call("undo")
        assert "no edit" in await agent.error("undo")


@pytest.mark.slow
async def test_the_recipe_is_edited_and_measured(connect: Connect, folder: Path) -> None:
    async with connect(folder) as agent:
        await agent.call("open_program", path="program.py")
        await agent.call("set_nodes", nodes=["gelu*"], lowering="eager")
        assert (await agent.call("run"))["nodes"]["eager"] == 2
        listed = await agent.call("list_nodes", filter="gelu eager")
        assert [row["reason"] for row in listed["nodes"]] == ["chosen by hand"] * 2
        progress: list[str] = []
        await agent.call("set_pass", passes="fuse-rows", enabled=False)
        await agent.call("run", progress)
        assert any(text.startswith("pass ") for text in progress)
        await agent.call("undo")
        await agent.call("set_nodes", nodes=["gelu*"], lowering="default")
        await agent.call("set_recipe", dialect="tosa", threads=2)
        pipeline = "builtin.module(canonicalize,cse)"
        assert (await agent.call("set_pipeline", pipeline=pipeline))["of"] == ["canonicalize", "cse"]
        await agent.call("undo")
        assert (await agent.call("run"))["result"] == "ok"
        compared = await agent.call("numerics", top=3)
        assert compared["ok"]
        assert len(compared["nodes"]) == 3
        timed = await agent.call("profile", top=2)
        assert len(timed["nodes"]) == 2
        assert timed["nodes"][0]["ms"] > 0


@pytest.mark.slow
async def test_a_failure_says_what_to_do_and_keeps_the_stages_before_it(connect: Connect, folder: Path) -> None:
    async with connect(folder) as agent:
        assert "call open_program first" in await agent.error("run")
        await agent.call("open_program", path="program.py")
        await agent.call("set_pass", passes="one-shot-bufferize", enabled=False)
        listed = await agent.call("list_stages")
        assert not listed["ok"]
        assert listed["error"]["todo"]
        assert (await agent.call("read_stage", stage="lower", count=1))["total"] > 50
        assert "the compilation failed" in await agent.error("read_stage", stage="asm")
        assert "did you mean" in await agent.error("set_pass", passes="canonicalise", enabled=False)
        assert "possible: default, eager" in await agent.error("set_nodes", nodes=["gelu*"], lowering="x")
        assert "the pipeline, character" in await agent.error("set_pipeline", pipeline="builtin.module(cse")
        assert "criterion" in await agent.error("bisect", criterion="nonsense")


@pytest.mark.slow
async def test_stages_are_resources(connect: Connect, folder: Path) -> None:
    async with connect(folder) as agent:
        await agent.call("open_program", path="program.py")
        await agent.call("list_stages")
        listed = {one.name: str(one.uri) for one in (await agent.client.list_resources()).resources}
        assert {"recipe", "output", "0-fx"} <= set(listed)
        read = await agent.client.read_resource("buddy://stage/lower")
        assert "linalg.contract" in read.contents[0].text
        recipe = await agent.client.read_resource("buddy://recipe")
        assert from_toml(recipe.contents[0].text).source.endswith("program.py")
        output = await agent.client.read_resource("buddy://output")
        assert output.contents[0].text == "built the model"
        with pytest.raises(mcp.MCPError, match="unknown stage"):
            await agent.client.read_resource("buddy://stage/nothing")


@pytest.mark.slow
async def test_nothing_outside_of_the_folder_is_read_or_written(connect: Connect, folder: Path) -> None:
    outside = folder.parent
    for name in ("secret.py", "secret.toml"):
        (outside / name).write_text("raise SystemExit")
        (folder / name).symlink_to(outside / name)
    (folder / "up").symlink_to(outside)
    async with connect(folder) as agent:
        for path in ("../secret.py", str(outside / "secret.py"), "secret.py", "up/secret.py", "secret.py:model"):
            assert "outside" in await agent.error("open_program", path=path)
        for extra in ({"recipe": "secret.toml"}, {"plugins": ["secret.py"]}):
            assert "outside" in await agent.error("open_program", path="program.py", **extra)
        asking = PLANTS[0].planted(default_recipe())  # names its plug-in
        (folder / "asking.toml").write_text(to_toml(asking))
        refused = await agent.error("open_program", path="program.py", recipe="asking.toml")
        assert "it asks for plug-in" in refused
        assert "give its plug-ins as `plugins`" in refused
        assert "not a recipe" in await agent.error("open_program", path="program.py", recipe="program.py")
        await agent.call("open_program", path="program.py")
        for path in ("../new.toml", "up/new.toml", str(outside / "new.toml"), "secret.toml"):
            assert "outside" in await agent.error("write_recipe", path=path, overwrite=True)
            assert "outside" in await agent.error("write_report", path=path)
        # Options of passes that name files.
        options = {"snapshot-op-locations": "true", "filename": str(outside / "new.toml")}
        assert "names a file" in await agent.error("set_pass", passes="canonicalize", options=options)
        pipeline = f"builtin.module(snapshot-op-locations{{filename={outside}/new.toml}})"
        assert "names a file" in await agent.error("set_pipeline", pipeline=pipeline)
    assert (outside / "secret.toml").read_text() == "raise SystemExit"
    assert sorted(path.name for path in outside.iterdir()) == ["secret.py", "secret.toml", "work"]


@pytest.mark.slow
async def test_files_are_written_into_the_folder(connect: Connect, folder: Path) -> None:
    async with connect(folder) as agent:
        await agent.call("open_program", path="program.py")
        assert (await agent.call("write_recipe", path="new/mine.toml"))["written"] == "new/mine.toml"
        assert "exists" in await agent.error("write_recipe", path="new/mine.toml")
        await agent.call("write_recipe", path="new/mine.toml", overwrite=True)
        report = await agent.call("write_report", path="report.html")
        assert report["bytes"] == (folder / "report.html").stat().st_size
        assert "is not a report" in await agent.error("write_report", path="program.py")
    assert (folder / "program.py").read_text() == PROGRAM


@pytest.mark.slow
async def test_a_report_has_no_code_from_outside_of_the_folder(connect: Connect, folder: Path) -> None:
    (folder.parent / "elsewhere.py").write_text("import torch\n\ndef twice(x):\n    return torch.sin(x) * 2\n")
    source = f"import sys, torch\nsys.path.insert(0, {str(folder.parent)!r})\nfrom elsewhere import twice\n"
    source += "def model(x):\n    return twice(x).cos()\nexample_inputs = torch.ones(3)\n"
    (folder / "program.py").write_text(source)
    async with connect(folder) as agent:
        await agent.call("open_program", path="program.py")
        nodes = await agent.call("list_nodes")
        assert {Path(row["line"].rpartition(":")[0]).name for row in nodes["nodes"]} >= {"elsewhere.py", "program.py"}
        await agent.call("write_report", path="report.html", run=False)
    packed = re.search(r'id="data">([^<]*)<', (folder / "report.html").read_text())
    assert packed is not None
    (graph,) = json.loads(gzip.decompress(base64.b64decode(packed[1])))["graphs"]
    assert [Path(file["path"]).name for file in graph["files"]] == ["program.py"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.slow
async def test_a_call_can_be_cancelled_and_the_next_one_works(connect: Connect, folder: Path, mode: str) -> None:
    """In the protocol's current version, and with the handshake of earlier ones."""
    (folder / "endless.py").write_text("import time\nopen('started', 'w').close()\ntime.sleep(600)\n")
    async with connect(folder, mode=mode) as agent:
        call = asyncio.create_task(agent.call("open_program", path="endless.py"))
        while not (folder / "started").exists():
            await asyncio.sleep(0.05)
        call.cancel()
        start = time.monotonic()
        progress: list[str] = []
        assert (await agent.call("open_program", progress, path="program.py"))["current_graph"] == 0
        assert "running the script" in progress
        assert time.monotonic() - start < 60


@pytest.mark.slow
async def test_after_the_engine_has_died_the_program_is_opened_again(connect: Connect, folder: Path) -> None:
    async with connect(folder) as agent:
        await agent.call("open_program", path="program.py")
        engines = [pid for pid in everything_below(os.getpid()) if is_engine(pid)]
        assert engines
        for pid in engines:
            os.kill(pid, 9)
        assert "open_program" in await agent.error("run")
        await agent.call("open_program", path="program.py")
        assert (await agent.call("run"))["result"] == "ok"


def is_engine(pid: int) -> bool:
    try:
        return "buddy.compiler.engine" in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return False


def test_without_the_package_one_line_names_the_extra(run_python: RunPython) -> None:
    code = "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None\n"
    code += "from buddy.app.cli import main; sys.exit(main(['mcp']))"
    done = run_python("-c", code)
    assert done.returncode == 2
    assert "pip install 'buddy-tui[mcp]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("path", ["a\0b", "loop", "x" * 5000], ids=["null", "loop", "long"])
def test_a_path_that_cannot_be_resolved_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BuddyError):
        Folder(tmp_path).existing_file(path)


class RecordingProgram:
    """A program whose engine records requests instead of answering them."""

    def __init__(self, timeout: float) -> None:
        self.timeout, self.recipe = timeout, default_recipe()
        self.requests: list[Any] = []
        self.engine = self.client = self

    def new_request_id(self) -> int:
        return 1

    async def request(self, frame: Any) -> Any:
        self.requests.append(frame)
        raise BuddyError("recorded")

    def with_settings(self, settings: dict[str, Any]) -> Any:
        return msgspec.structs.replace(self.recipe, threads=settings["threads"])

    def edit(self, recipe: Any) -> bool:
        self.recipe = recipe
        return True


async def test_the_comparison_of_nodes_has_the_time_limit_of_the_server() -> None:
    program: Any = RecordingProgram(timeout=7.0)
    with pytest.raises(BuddyError, match="recorded"):
        await Tools(program).numerics()
    assert program.requests[0].timeout == 7.0


async def test_a_recipe_may_have_as_many_threads_as_the_compiler_allows() -> None:
    program: Any = RecordingProgram(timeout=1.0)
    assert (await Tools(program).set_recipe(threads=MAX_THREADS))["of"] == ["threads"]
    assert program.recipe.threads == MAX_THREADS
    for threads in (0, MAX_THREADS + 1):
        with pytest.raises(BuddyError, match=f"threads is {threads}"):
            await Tools(program).set_recipe(threads=threads)
