"""Reading IR on the real engine: search in all stages, names, folds, functions, forms, bookmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.panes.ir_names import defined_values, use_pattern
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.picker import ChoiceList, PickerScreen
from buddy.app.screens.stage_lists import SearchResultList, SearchResultsScreen

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


def text_at(bench: Any) -> str:
    line = bench.app.ir.line_at(bench.app.ir.cursor)
    return line.text if line else ""


async def test_all_stages_are_searched_and_a_line_found_there_is_gone_to(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        ir = bench.app.ir
        await bench.press("tab", "tab", "3", "g", "slash")
        await bench.drawn()
        await bench.type("linalg.generic")
        await bench.press("enter")
        found = (await bench.opened(SearchResultsScreen)).query_one(SearchResultList)
        await bench.sees("first in lower")
        assert found.row_count > 3
        before = found.row_count
        await bench.press("J", "space")
        assert found.row_count > before, "a stage unfolds to its lines"
        await bench.press("j", "j", "enter")
        await bench.until(lambda: bench.app.screen is bench.app.screen_stack[0], "the workbench")
        await bench.drawn()
        await bench.until(lambda: bool(ir.search.matches.lines), "matches in that stage")
        assert "linalg.generic" in text_at(bench)
        assert ir.chosen_stage.name == "tosa-to-linalg-named"
        await bench.press("left_parenthesis")
        await bench.drawn()
        assert ir.chosen_stage.name == "lower", "back to the stage one came from"
        await bench.press(")")
        await bench.drawn()
        assert ir.chosen_stage.name == "tosa-to-linalg-named"
        assert "linalg.generic" in text_at(bench)


async def test_n_goes_to_a_match_after_the_list_of_stages_is_closed(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        ir = bench.app.ir
        await bench.press("tab", "tab", "3", "g", "slash")
        await bench.drawn()
        await bench.type("func.func")
        await bench.press("enter")
        await bench.opened(SearchResultsScreen)
        await bench.press("escape")
        await bench.until(lambda: bench.app.screen is bench.app.screen_stack[0], "the workbench")
        await bench.press("n")
        await bench.until(lambda: "func.func" in text_at(bench), "a match")
        assert ir.search.matches.lines


async def test_the_first_stage_where_something_appears(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        ir = bench.app.ir
        await bench.press("g", "f")
        await bench.type("llvm.load|llvm.store")
        await bench.press("enter")
        await bench.until(lambda: "llvm." in text_at(bench), "the line")
        await bench.drawn()
        place = next(k for k, row in enumerate(ir.rows) if row.key == ir.chosen_key)
        earlier = [await bench.app.session.fetch_text(row.stage.text) for row in ir.rows[:place]]
        assert not any("llvm.load" in text or "llvm.store" in text for text in earlier)
        await bench.press("g", "f")
        await bench.press("ctrl+u")
        await bench.type("no.such(op")
        await bench.press("enter")
        await bench.sees("start with \\V to search for plain text")
        await bench.press("g", "f", "ctrl+u")
        await bench.type("\\Vno.such(op")
        await bench.press("enter")
        await bench.until(lambda: bench.shows("is in no stage"), "the answer")


async def test_names_are_picked_underlined_and_followed(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir = bench.app.ir
        await bench.press("3", "tab", "tab", "+")
        await bench.drawn()
        place = next(k for k in range(ir.row_count) if "linalg.fill" in ir.line_at(k).text)
        ir.move_to(place)
        await bench.press("l", "l")
        value = ir.names.current
        assert value not in defined_values(text_at(bench))
        underlined = {
            segment.text
            for strip in bench.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style and segment.style.underline
        }
        assert underlined == {value}
        await bench.press("g", "d")
        await bench.until(lambda: value in defined_values(text_at(bench)), "the definition")
        await bench.press("g", "r")
        await bench.opened(SearchResultsScreen)
        await bench.press("G", "enter")
        await bench.until(lambda: ir.cursor > place - 5 and value in text_at(bench), "the last use")
        await bench.press("left_parenthesis", "left_parenthesis")
        assert ir.cursor == place
        ir.move_to(
            next(k for k in range(ir.row_count) if "#map" in ir.line_at(k).text and "generic" in ir.line_at(k).text)
        )
        while not ir.names.current.startswith("#map"):
            await bench.press("l")
        alias = ir.names.current
        await bench.press("g", "d")
        await bench.until(lambda: text_at(bench).startswith(f"{alias} ="), "the alias")
        await bench.press("asterisk")
        await bench.until(lambda: ir.search.matches.pattern.source == use_pattern(alias), "the search")


async def test_uses_are_those_of_the_name_asked_for_wherever_the_cursor_has_gone_meanwhile(
    workbench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line without a name crashed the workbench, because it was read after the engine had answered."""
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir, questions = bench.app.ir, bench.app.context.queries
        await bench.press("3", "tab", "tab", "+")
        await bench.drawn()
        ir.move_to(next(k for k in range(ir.row_count) if "linalg.fill" in ir.line_at(k).text))
        await bench.press("l", "l")
        value, last = ir.names.current, ir.row_count - 1
        answered = questions.search_each

        async def and_the_cursor_moves(*arguments: Any) -> Any:
            found = await answered(*arguments)
            ir.move_to(last)
            assert ir.names.current == ""
            return found

        monkeypatch.setattr(questions, "search_each", and_the_cursor_moves)
        await bench.press("g", "r")
        found = (await bench.opened(SearchResultsScreen)).query_one(SearchResultList)
        await bench.sees(value)
        assert found.row_count >= 1


async def test_regions_fold_and_one_function_can_be_shown_alone(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        await bench.press("3", "tab", "tab")
        await bench.drawn()
        lines = ir.row_count
        place = next(k for k in range(lines) if ir.line_at(k).text.endswith("{") and "generic" in ir.line_at(k).text)
        ir.move_to(place + 1)
        await bench.press("z")
        await bench.until(lambda: ir.row_count < lines, "the fold")
        ir.document.forget_folds()
        ir.folds.toggle_fold()
        assert ir.row_count == lines, "what is folded may be forgotten while it is on the screen"
        ir.folds.toggle_fold()
        await bench.until(lambda: ir.row_count < lines, "the fold again")
        assert ir.cursor == place, "the cursor is on what stays"
        assert ir.line_at(place + 1).text.lstrip().startswith("}")
        await bench.sees("lines")
        await bench.press("z")
        assert ir.row_count == lines
        await bench.press("Z")
        await bench.until(lambda: ir.row_count < 20, "folded functions")
        await bench.press("]", "]")
        await bench.drawn()
        assert ir.row_count < 20, "in the stages one steps to as well"
        await bench.press(":")
        await bench.type("30")
        await bench.press("enter")
        assert ir.line_number == 29, "a jump unfolds what hides its line"
        await bench.press("Z", "f")
        await bench.opened(PickerScreen)
        await bench.press("down", "enter")
        await bench.drawn()
        await bench.sees("only @forward")
        assert "func.func" in ir.line_at(0).text
        await bench.press("colon")
        await bench.type("1")
        await bench.press("enter")
        assert text_at(bench).startswith("#map"), "a jump out of the function shows the whole stage"
        await bench.press("g", "o")
        await bench.opened(PickerScreen)
        await bench.press("enter")
        await bench.until(lambda: "func.func" in text_at(bench), "the function")


async def test_a_line_is_read_whole_and_its_op_described(workbench: Open) -> None:
    async with workbench("mlp.py", size=(80, 24)) as bench:
        ir = bench.app.ir
        await bench.press("3")
        await bench.drawn()
        ir.move_to(next(k for k in range(ir.row_count) if "linalg.generic" in ir.line_at(k).text))
        await bench.press("o")
        await bench.opened(DetailScreen)
        await bench.sees("mlp.py:")
        await bench.press("q", "K")
        await bench.opened(DetailScreen)
        await bench.sees("linalg.generic")
        await bench.press("q")
        ir.move_to(0)
        await bench.press("K")
        await bench.until(lambda: bench.shows("no MLIR op starts on this line"), "the reason")


async def test_generic_form_locations_short_types_and_bookmarks(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir = bench.app.ir
        await bench.press("8", "tab", "tab", "+")
        await bench.drawn()
        ir.move_to(next(k for k in range(ir.row_count) if "llvm.load" in ir.line_at(k).text))
        node = ir.line_at(ir.cursor).nodes
        await bench.press("M")
        marked = text_at(bench)
        await bench.press("g", "G")
        await bench.until(
            # Aliases of attributes come before the module.
            lambda: (
                ir.chosen_stage.text == ir.document.text
                and any('"builtin.module"' in ir.line_at(k).text for k in range(5))
            ),
            "the form",
        )
        await bench.sees("generic form")
        assert any(ir.line_at(k).nodes == node for k in range(40) if ir.line_at(k))
        await bench.press("[")
        await bench.until(
            lambda: ir.chosen_stage.text == ir.document.text and ir.chosen_stage.name == "reconcile-unrealized-casts",
            "the stage",
        )
        assert any('"llvm.' in ir.line_at(k).text for k in range(ir.first_row, ir.first_row + 20))
        await bench.press("g", "G")
        await bench.drawn()
        assert not any('"llvm.' in ir.line_at(k).text for k in range(ir.first_row, ir.first_row + 20))
        await bench.press("g", "s")
        await bench.sees("mlp.py:")
        await bench.press("g", "s", "a", "'")
        await bench.opened(PickerScreen)
        await bench.press("enter")
        await bench.until(lambda: text_at(bench) == marked, "the bookmarked line")
        assert any("#" in line[:3] for line in bench.screen) or ir.jumps.has_bookmark(ir.line_number)
        await bench.press("M")
        assert not bench.app.context.bookmarks.marks


async def test_long_types_have_names_that_are_explained_and_put_back(workbench: Open) -> None:
    struct = "!llvm.struct<(ptr, ptr, i64, array<2 x i64>, array<2 x i64>)>"
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app, ir = bench.app, bench.app.ir
        await bench.press("tab", "tab", "+")
        ir.choose(next(row for row in ir.rows if row.stage.name == "finalize-memref-to-llvm"))
        await bench.drawn()
        await bench.press("g", "a")
        chosen = await bench.opened(PickerScreen)
        listed = {choice.summary: choice.title.split()[0] for choice in chosen.query_one(ChoiceList).choices}
        name = listed[struct]
        await bench.type(name)
        await bench.press("enter")
        await bench.until(lambda: struct in text_at(bench), "the first line of that type")
        assert bench.shows(struct), "so far all is drawn in full"
        await bench.press("a")
        await bench.until(lambda: bench.shows(f"{name} = {struct}"), "the line that explains the name")
        for width in range(20, 400):
            (legend,) = ir.types.legend(width)
            types = [text for text, role in legend if role == "text" and text.strip()]
            assert struct.startswith(types[0].rstrip("…"))
            assert not any("…" in text for text in types[1:]), "only the first type may be clipped"
            assert sum(len(text) for text, _ in legend) <= width
        drawn = next(line for line in bench.screen if f" : {name}" in line)
        assert struct not in drawn
        copied: list[str] = []
        app.context.dialogs.copy = copied.append
        await bench.press("y")
        assert copied == [text_at(bench)], "what is copied has the type"
        assert struct in copied[0]
        await bench.press("e")
        assert struct in ir.types.drawn_text(ir.line_at(ir.cursor))
        assert struct not in ir.types.drawn_text(ir.line_at(ir.cursor + 1)), "only the line at the cursor is put back"
        await bench.press("e")
        assert struct not in ir.types.drawn_text(ir.line_at(ir.cursor))
        await bench.press("a")
        assert struct in ir.types.drawn_text(ir.line_at(ir.cursor))
        assert not bench.shows(f"{name} = {struct}")
