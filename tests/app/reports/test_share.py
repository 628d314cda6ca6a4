"""The shared report: its contents, its size, and the page in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buddy.app.cli import USAGE_ERROR, share
from buddy.app.cli.headless import CollectedCompilation
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.share.contents import SYNTAX_LETTERS, SharedGraph, _Texts, collect_contents
from buddy.app.reports.share.page import make_page, may_be_replaced
from buddy.compiler.protocol import GraphInfo, Lines, NodeRow, PythonOpened, Stage
from buddy.compiler.protocol.recipe import Recipe
from buddy.themes.lexers import spans
from tests.conftest import RunPython
from tests.support.browser import Browser, find_browser

BROWSER = find_browser()
needs_browser = pytest.mark.skipif(not BROWSER, reason="there is no Chromium to open the page in")
# A text of the program that would end the script, or the data, of a page that does not escape it.
HOSTILE = "</script><script>document.title = 'hostile'</script><img src=x onerror=alert(1)>"
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
model, example_inputs = Block().eval(), torch.randn(8, 16)
NAME = "</script><script>document.title = 'hostile'</script>"
"""


def contents_of(page: str) -> dict[str, Any]:
    """The data in a page."""
    packed = re.search(r'id="data">([^<]*)<', page)
    assert packed is not None
    return dict(json.loads(gzip.decompress(base64.b64decode(packed[1]))))


def lines_of(contents: dict[str, Any], text: int) -> list[str]:
    """A text of a report, put together again."""
    lines, runs = contents["lines"].split("\n"), contents["texts"][text]["lines"]
    return [lines[first + k] for first, count in zip(runs[::2], runs[1::2], strict=True) for k in range(count)]


def assert_coloured(contents: dict[str, Any], text: int, language: str) -> None:
    """Each line of a text has the colours that its lexer gives it."""
    lines, runs = contents["lines"].split("\n"), contents["texts"][text]["lines"]
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        for number in range(first, first + count):
            stored = contents["colours"][contents["lineColours"][number]]
            names = [
                (contents["syntax"][letter], int(length)) for letter, length in re.findall(r"([a-z_])(\d+)", stored)
            ]
            assert names == [(name, len(piece)) for name, piece in spans(language, lines[number])], lines[number]


async def page_of(texts: dict[str, tuple[str, ...]], languages: dict[str, str] | None = None) -> str:
    """A page with texts as stages, whose line `i` comes from node `i`, and from no node after the last one."""
    rows = tuple(
        NodeRow(number, f"node.{number}", "call_function", f"n{number}", "aten.add.Tensor", "", "", location="a.py:2")
        for number in range(3)
    )
    languages = languages or {}
    stages = [
        Stage(number, name, "toplevel", name, len(lines), language=languages.get(name, "mlir"))  # type: ignore[arg-type]
        for number, (name, lines) in enumerate(texts.items())
    ]

    async def send(request: Any) -> Any:
        if hasattr(request, "path"):
            return PythonOpened(0, request.path, "python", 3)
        lines = {**texts, "python": ("'''a", "b'''", "x = 1")}[request.text]
        window = lines[request.start : request.start + request.count]
        nodes = tuple((line,) if line < 3 else () for line in range(request.start, request.start + len(window)))
        return Lines(0, request.text, request.start, window, len(lines), nodes, tuple(row.stable for row in rows))

    info = GraphInfo(HOSTILE, rows)
    graph = SharedGraph(info, Recipe(source="a.py", arguments=(HOSTILE,)), stages)
    encode = await collect_contents([graph], send, None)
    return make_page(encode(), HOSTILE)


async def test_each_text_is_stored_whole_and_equal_lines_once() -> None:
    before, after = tuple(f"  %{k} = arith.constant {k} : i32" for k in range(500)), []
    after = [*before[:250], "  %x = arith.constant 9 : i64", *before[250:]]
    contents = contents_of(await page_of({"one": before, "two": tuple(after), "three": before}))
    stages = contents["graphs"][0]["stages"]
    assert [lines_of(contents, stage["text"]) for stage in stages] == [list(before), after, list(before)]
    assert len(contents["lines"].split("\n")) == 501 + 3  # three lines of Python
    assert contents["texts"][stages[1]["text"]]["lines"] == [0, 250, 500, 1, 250, 250]


def test_colours_cover_each_line_in_units_of_javascript() -> None:
    texts = _Texts()
    lines = ["%0 = arith.addf %a, %b : f32", "", '"\U0001f600" : i32', "func.func @f()"]
    texts.add("mlir", lines, [0] * 4)
    encoded = texts.encode()
    colours = [encoded["colours"][number] for number in encoded["lineColours"]]
    lengths = [sum(map(int, re.findall(r"\d+", colour))) for colour in colours]
    assert lengths == [len(line.encode("utf-16-le")) // 2 for line in lines]
    letters = {name[:2]: letter for name, letter in SYNTAX_LETTERS.items()}
    names = ["va3", "pu2", "op11", "va2", "pu2", "va3", "pu2", "ty3"]
    assert colours[0] == "".join(letters[name[:2]] + name[2:] for name in names)
    quoted = _Texts()
    quoted.add("python", ["'''a", "if b", "'''"], [0] * 3)
    encoded = quoted.encode()
    assert [encoded["colours"][number] for number in encoded["lineColours"]] == [
        f"{letters['st']}{n}" for n in (4, 4, 3)
    ]


async def test_texts_of_the_program_are_only_in_the_data() -> None:
    page = await page_of({HOSTILE: (HOSTILE, "module {")})
    outside = re.sub(r'id="data">[^<]*<', "", page)
    assert "hostile" in outside
    assert "<script>document" not in outside
    assert "<img" not in outside
    assert page.count("</script>") == 2


def test_a_report_is_recognised_and_other_files_are_not(tmp_path: Path) -> None:
    report, other = tmp_path / "r.html", tmp_path / "o.html"
    report.write_text(make_page({"source": "a.py"}, ""))
    other.write_text("<title>mine</title>")
    assert may_be_replaced(report)
    assert may_be_replaced(tmp_path / "absent.html")
    assert not may_be_replaced(other)


@pytest.mark.parametrize("error", [BrokenPipeError, None])
async def test_only_errors_of_the_file_are_reported_as_errors_of_writing(
    tmp_path: Path, error: type[OSError] | None
) -> None:
    recipe = Recipe(source="a.py")

    async def open_program(*_: object) -> list[Recipe]:
        return [recipe]

    async def compile_recipe(_: Recipe) -> CollectedCompilation:
        return CollectedCompilation({0: Stage(0, "one", "toplevel", "one", 1)})

    async def request(frame: Any) -> Any:
        if error is not None:
            raise error
        return Lines(0, frame.text, 0, ("a",), 1, ((),), ())

    console = SimpleNamespace(progress=lambda _text: None)
    client = SimpleNamespace(request=request, welcome=None)
    engine: Any = SimpleNamespace(
        open_program=open_program, compile=compile_recipe, client=client, console=console, graphs=[GraphInfo("g", ())]
    )
    folder = tmp_path / "r.html"
    folder.mkdir()
    options = share.make_parser().parse_args(["a.py", "-o", str(folder), "--no-run"])
    with pytest.raises(error or UsageError, match=None if error else "cannot write to"):
        await share._share(engine, options, ())


@pytest.mark.parametrize("option", ["--profile", "--numerics"])
def test_measurements_of_a_graph_that_does_not_run_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text(PROGRAM)
    with pytest.raises(SystemExit) as ended:
        share.main([str(tmp_path / "a.py"), "-o", str(tmp_path / "r.html"), "--no-run", option])
    assert ended.value.code == USAGE_ERROR
    assert "leave out --no-run" in capsys.readouterr().err


@pytest.fixture(scope="module")
def report(cli: RunPython, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on a small program, with everything."""
    folder = tmp_path_factory.mktemp("share")
    (folder / "block.py").write_text(PROGRAM)
    done = cli("share", "block.py", "-o", "block.html", "--repeats", "2", "--profile", "--numerics", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"wrote \d+ stages to block.html \(\d+ kB\)", done.stderr)
    return folder / "block.html"


@pytest.mark.slow
def test_the_report_has_every_stage_as_the_engine_has_it(report: Path, cli: RunPython) -> None:
    contents = contents_of(report.read_text())
    (graph,) = contents["graphs"]
    assert contents["source"] == "block.py"
    assert graph["verdict"] == "ok"
    dumped = cli("dump", "block.py", "--all", "-o", "stages", cwd=report.parent)
    assert dumped.returncode == 0, dumped.stderr
    files = sorted((report.parent / "stages").iterdir())
    assert len(files) == len(graph["stages"])
    for file, stage in zip(files, graph["stages"], strict=True):
        assert lines_of(contents, stage["text"]) == file.read_text().removesuffix("\n").split("\n"), stage["name"]
        assert_coloured(contents, stage["text"], stage["language"])
    titles = {table["title"] for table in graph["tables"]}
    assert {"Outputs", "Measurements", "Slowest nodes", "Nodes with the largest errors", "Recipe"} <= titles
    assert [file["path"] for file in graph["files"]] == ["block.py"]
    gelu = graph["nodes"]["name"].index("gelu.0")
    assert graph["nodes"]["location"][gelu] == "block.py:12"


@pytest.mark.slow
def test_a_failure_is_part_of_the_report(cli: RunPython, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(PROGRAM)
    done = cli("share", "block.py", "-o", "r.html", "--disable", "one-shot-bufferize", cwd=tmp_path)
    assert done.returncode == 1
    (graph,) = contents_of((tmp_path / "r.html").read_text())["graphs"]
    assert graph["tables"][0]["title"] == "Failure"
    assert graph["wrong"]
    assert len(graph["stages"]) > 5
    assert len({stage["name"] for stage in graph["stages"]}) > 5


@pytest.mark.slow
def test_an_existing_file_that_is_no_report_is_kept(cli: RunPython, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    done = cli("share", "samples/arith_add.py", "-o", tmp_path / "mine.html")
    assert done.returncode == 2
    assert "is not a report" in done.stderr
    assert (tmp_path / "mine.html").read_text() == "mine"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with Browser(BROWSER) as browser:
        browser.prefer("light")
        browser.resize(1400, 860)
        yield browser
        assert not browser.errors


def go_to_stage(browser: Browser, name: str) -> None:
    browser.evaluate(f"report.showStage(report.graph.stages.findIndex((stage) => stage.name === '{name}'))")


@needs_browser
@pytest.mark.process
@pytest.mark.slow
def test_the_page_works_in_a_browser_without_a_network(report: Path, browser: Browser) -> None:
    browser.open(report.as_uri())
    assert browser.evaluate("get('program').textContent") == "block.py"
    assert browser.evaluate("get('verdict').textContent") == "ok"
    assert browser.evaluate("document.querySelector('#code .syntax-operation') !== null")

    # A line of IR leads to its node, the node to the Python line, in the footer and in the Python code.
    go_to_stage(browser, "lower")
    number = browser.evaluate(
        "[...document.querySelectorAll('#code .row')].findIndex(r => /math.erf/.test(r.innerText))"
    )
    browser.move_mouse("#code .row", number)
    browser.wait_for("get('origin').textContent !== ''")
    assert browser.evaluate("get('origin').textContent") == "gelu.0 aten.gelu.default · block.py:12"
    assert browser.evaluate("document.querySelector('#python .linked .number').textContent") == "12"

    # A line of Python leads to the lines of IR of its nodes.
    lines = browser.evaluate("[...document.querySelectorAll('#python .number')].map((cell) => cell.textContent)")
    browser.move_mouse("#python .row", lines.index("12"))
    browser.wait_for("/^block.py:12 · .* more$/.test(get('origin').textContent)")
    assert browser.evaluate("document.querySelectorAll('#code .row.linked').length") > 20
    browser.move_mouse("#code .row", number)

    # Kept by a click, it is followed into the other stages.
    browser.evaluate(f"document.querySelectorAll('#code .row')[{number}].click()")
    go_to_stage(browser, "codegen")
    assert browser.evaluate("document.querySelectorAll('#code .row.linked').length") > 0
    browser.press("}")
    assert browser.evaluate("report.code.rows.cursor") > 0
    browser.press("Escape")
    assert browser.evaluate("report.link.pinned.size") == 0

    # A pass is compared with the stage before it, by a key.
    go_to_stage(browser, "expand-math-to-polynomials")
    browser.press("d")
    removed = browser.evaluate("[...document.querySelectorAll('#code .removed')].map(row => row.innerText).join()")
    assert "math.erf" in removed
    browser.press("Escape")

    # A search counts the matches of every stage, and goes from one to the next.
    browser.press("/")
    browser.type("math.erf")
    browser.press("Enter")
    browser.wait_for("document.querySelector('#code .match') !== null")
    assert browser.evaluate("document.querySelectorAll('#stage-list .count').length") > 3
    browser.press("Escape")

    browser.press("2")
    assert browser.evaluate("[...document.querySelectorAll('#nodes .cell-op')].map(cell => cell.textContent)").count(
        "aten.gelu.default"
    )
    browser.press("3")
    assert "Outputs" in browser.evaluate("get('results').innerText")
    assert [address for address in browser.requests if not address.startswith("file:")] == []
    assert len(browser.requests) == 1


@needs_browser
@pytest.mark.process
@pytest.mark.slow
async def test_texts_of_the_program_run_no_script(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "r.html").write_text(await page_of({HOSTILE: (HOSTILE, "module {"), "b": (HOSTILE,)}))
    browser.open((tmp_path / "r.html").as_uri())
    for key in "3211":
        browser.press(key)
    assert browser.evaluate("document.title").endswith("· buddy-tui")
    assert HOSTILE in browser.evaluate("get('code').innerText")
    assert browser.evaluate("document.images.length") == 0


@needs_browser
@pytest.mark.process
@pytest.mark.slow
async def test_a_stage_of_60_000_lines_scrolls_and_is_compared(tmp_path: Path, browser: Browser) -> None:
    lines = tuple(f"  %{k} = arith.constant {k} : i{k % 7 + 1}" for k in range(60_000))
    changed = (*lines[:30_000], "  some.op", *lines[30_010:])
    (tmp_path / "r.html").write_text(await page_of({"before": lines, "after": changed}))
    browser.open((tmp_path / "r.html").as_uri())
    start = browser.evaluate("performance.now()")
    browser.press("End")
    assert "59999 : i" in browser.evaluate("document.querySelector('#code .at-cursor').innerText")
    assert browser.evaluate("document.querySelectorAll('#code .row').length") < 200
    browser.press("]")
    browser.press("d")
    assert browser.evaluate("report.code.hunks") == [[30_000, 10, 30_000, 1]]
    browser.press("/")
    browser.type("constant 45678 ")
    browser.press("Enter")
    browser.wait_for("/45678/.test(document.querySelector('#code .at-cursor')?.innerText)")
    assert browser.evaluate("performance.now()") - start < 20_000


@needs_browser
@pytest.mark.process
@pytest.mark.slow
async def test_differences_are_those_that_turn_one_text_into_the_other(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "r.html").write_text(await page_of({"a": ("module {", "}")}))
    browser.open((tmp_path / "r.html").as_uri())
    script = """
    (() => {
      let seed = 7;
      const random = (limit) => (seed = (seed * 16807) % 2147483647) % limit;
      const apply = (a, b, hunks) => {
        const result = [];
        let at = 0;
        for (const [i, n, j, m] of hunks) {
          result.push(...a.slice(at, i), ...b.slice(j, j + m));
          at = i + n;
        }
        return [...result, ...a.slice(at)];
      };
      let wrong = 0;
      for (let round = 0; round < 400; round++) {
        const a = Array.from({ length: random(40) }, () => random(round % 2 ? 6 : 60));
        const b = a.filter(() => random(5)).flatMap((x) => (random(6) ? [x] : [x, random(60)]));
        if (String(apply(a, b, compare(a, b))) !== String(b)) wrong++;
      }
      return [wrong, compare([1, 2, 3], [1, 2, 3]).length, compare([], [1]), compare([5, 1, 5], [5, 5])];
    })()
    """
    assert browser.evaluate(script) == [0, 0, [[0, 0, 0, 1]], [[1, 1, 1, 0]]]


@needs_browser
@pytest.mark.process
@pytest.mark.slow
def test_the_page_follows_the_colour_scheme_and_prints(report: Path, browser: Browser) -> None:
    browser.open(report.as_uri())
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(ground)
    browser.prefer("dark")
    browser.wait_for(f"{ground} !== {light!r}")
    browser.press("t")
    assert browser.evaluate(ground) == light
    assert browser.print().startswith(b"%PDF")
    printed = browser.evaluate("get('print').textContent")
    assert "aten.gelu.default" in printed
    assert "Outputs" in printed
    assert "Stage" in printed


@needs_browser
@pytest.mark.process
@pytest.mark.slow
def test_a_damaged_file_says_so(report: Path, tmp_path: Path, browser: Browser) -> None:
    page = report.read_text()
    place = page.index('id="data">') + 2000
    (tmp_path / "cut.html").write_text(page[:place] + "AAAA" * 500 + page[place + 2000 :])
    browser._call("Page.navigate", url=(tmp_path / "cut.html").as_uri())
    browser.wait_for("/cannot be shown/.test(document.getElementById('loading')?.textContent)")
    browser.errors.clear()


@pytest.mark.slow
@pytest.mark.full("BERT-base takes a minute")
def test_the_report_of_bert_is_below_5_mb(cli: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = cli("share", "samples/bert.py", "-o", tmp_path / "bert.html", "--no-run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bert.html").stat().st_size < 5_000_000
