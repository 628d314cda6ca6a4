"""Extracts nodes as a graph, and writes graphs as scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.actions import key_of
from buddy.app.workspace.files import write_script
from buddy.app.workspace.inputs import parse_path
from buddy.compiler.protocol import Extract, GraphInfo, Script, WriteScript
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane


class SubgraphCommands:
    """Extracts subgraphs and writes graphs as scripts. Opening the program again drops its extracts."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, graphs: GraphCommands) -> None:
        self._context, self._graph, self._graphs = context, graph, graphs
        # By the number of each extracted graph: that graph, and the number of the graph that it was extracted from.
        self._origins: dict[int, tuple[GraphInfo, int]] = {}

    def extract(self) -> None:
        """Extract the picked nodes, or those of the row under the cursor, as a graph with the inputs of a real run."""
        names = tuple(row.stable for row in self._graph.selected_rows if row.opcode.startswith("call"))
        self._context.jobs.begin("extract", self._extract, names, self._context.workspace.recipe)

    async def _extract(self, names: tuple[str, ...], recipe: Recipe) -> None:
        """Extract the nodes of these stable names, and show the new graph with the choices of `recipe` for them."""
        request = self._context.session.request(Extract(0, recipe, names))
        extract = await self._context.jobs.result_of(request, "not extracted")
        if extract is None:
            return
        self._graph.picked = set()
        nodes = {row.stable for row in extract.info.rows}
        choices = tuple(choice for choice in recipe.choices if choice.node in nodes)
        precisions = tuple(choice for choice in recipe.precisions if choice.node in nodes)
        extract_recipe = replace(recipe, graph=extract.graph, choices=choices, precisions=precisions)
        self._context.session.add_extracted_graph(extract, extract_recipe)
        self._origins[extract.graph] = self._context.state.graphs[extract.graph], recipe.graph
        self._graphs.show(extract.graph)
        self._context.say(
            f"extracted {extract.info.name} with the inputs of a real run; press {key_of('graph-back')} to go back"
        )

    @property
    def is_extract(self) -> bool:
        """Whether the current graph is an extracted subgraph."""
        return self._origin is not None

    @property
    def _origin(self) -> int | None:
        """The number of the graph that the current one was extracted from; `None` if it is not an extract."""
        extract, origin = self._origins.get(self._context.state.graph, (None, None))
        # After the program was opened again, another graph may have the number of an extract.
        return origin if extract is not None and extract is self._context.state.info else None

    def back_to_origin_graph(self) -> None:
        """Show the graph that the current subgraph was extracted from."""
        self._graphs.show(self._origin or 0)

    def ask_script(self) -> None:
        """Ask for the file of a script that has the shown graph, and write it."""
        info = self._context.state.info
        words = re.findall(r"[^\W_]+", info.name) if info else []
        name = "_".join(words) if info else "graph"
        self._context.dialogs.ask("save the graph as a script to", f"{name}.py", self._save_script)

    def _save_script(self, text: str) -> None:
        if text.strip():
            self._context.jobs.begin("script", self._write_script, text.strip())

    async def _write_script(self, text: str) -> None:
        """Write the script and the `.npz` of its tensors to the typed path, after a question if the files exist."""
        recipe = self._context.workspace.recipe
        try:
            path = parse_path(text)
            path = path if path.suffix == ".py" else path.with_name(f"{path.name}.py")
        except ValueError as error:
            self._context.say(f"{text}: {error}")
            return
        script = await self._context.queries.request(WriteScript(0, recipe), failed=text)
        if script is None:
            return
        existing = [str(file) for file in (path, path.with_suffix(".npz")) if file.exists()]
        question = ""
        if existing:
            verb = "exists" if len(existing) == 1 else "exist"
            question = f"{' and '.join(existing)} already {verb}. Overwrite?"
        self._context.files.after_confirmation(question, lambda: self._save_files(path, script))

    def _save_files(self, path: Path, script: Script) -> None:
        try:
            script_path, values_path = write_script(path, script)
        except OSError as error:
            self._context.say(f"{path} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"wrote {script_path} and {values_path.name}")
