"""Finds the Buddy nodes that Inductor's FX nodes, scheduler nodes, lines of code and instructions come from.

Also records the paths of the kernels' shared libraries during compilation, and disassembles the libraries.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from buddy.compiler.codegen.assembly import read_library

if TYPE_CHECKING:
    import torch
    from torch._inductor.scheduler import BaseSchedulerNode


NodeNames = tuple[str, ...]
# Marks at the ends of lines of C++ while Inductor generates them: the number of a set of nodes, which comes from the
# scheduler node that the line computes (`direct`), or from the loops around it.
_MARK = re.compile(r"[ \t]*//@(direct|loops) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """A line of generated text, with the stable names of the nodes it comes from, and its machine code.

    `is_derived` is true if the nodes are those of the code around the line.
    """

    text: str
    names: NodeNames = ()
    is_derived: bool = False
    machine_code: bytes = b""


class FxOrigins:
    """Finds the Buddy nodes that FX nodes of later graphs come from.

    `stable` has the stable names of the Buddy nodes of each FX node in the graph that was compiled.
    """

    def __init__(self, stable: Mapping[str, NodeNames]) -> None:
        self._stable = stable
        self._cache: dict[Any, NodeNames] = {}

    def of(self, node: torch.fx.Node) -> NodeNames:
        """Returns the nodes that an FX node comes from, by the chain of sources that Inductor's passes record."""
        if node not in self._cache:
            sources = node.meta.get("from_node") or ()
            names = [stable for name in _first_names(sources) for stable in self._stable.get(name, ())]
            if not sources:
                names = list(self._stable.get(node.name, ()))
            self._cache[node] = tuple(dict.fromkeys(names))
        return self._cache[node]

    def of_all(self, nodes: Iterable[torch.fx.Node]) -> NodeNames:
        """Returns the nodes that any of several FX nodes comes from."""
        return tuple(dict.fromkeys(name for node in nodes for name in self.of(node)))

    def values_of(self, graph: torch.fx.Graph, buffers: Mapping[str, object]) -> dict[str, str]:
        """Returns the Buddy node whose value is in each buffer, by the name of the buffer.

        `buffers` maps names of buffers to FX nodes of `graph`. One Buddy node may become several FX nodes. Its value is
        that of the FX node which FX nodes of other Buddy nodes read. Buffers of other FX nodes are left out.
        """
        name_by_fx_node: dict[Any, str] = {}
        for node in graph.nodes:
            names = self.of(node)
            is_read = any(user.op == "output" or self.of(user) != names for user in node.users)
            if node.op == "call_function" and names and is_read:
                name_by_fx_node[node] = names[-1]
        counts = Counter(name_by_fx_node.values())
        return {
            buffer: name_by_fx_node[node]
            for buffer, node in buffers.items()
            if node in name_by_fx_node and counts[name_by_fx_node[node]] == 1
        }

    def of_scheduled(self, scheduled: BaseSchedulerNode) -> NodeNames:
        """Returns the nodes that a scheduler node computes; nodes without an IR node have none."""
        return self.of_all(_origins(scheduled))


def _position(node: Any) -> Any:
    """Returns a key that sorts FX nodes in the order of their graph."""
    return getattr(node, "_sort_key", ())


def _first_names(sources: Iterable[Any]) -> Iterator[str]:
    """Yields the names at the ends of chains of sources."""
    for source in sources:
        if source.from_node:
            yield from _first_names(source.from_node)
        else:
            yield source.name


@dataclass
class KernelLines:
    """The nodes of each line of the C++ kernels of one compilation, from marks in the code while it is generated.

    `kernels` has for each kernel the nodes of each line, and whether they are derived, as in `Line`. The marks are
    comments, and are removed before the code is compiled or cached. Kernels that several layers share have the nodes of
    all of them. `_sets` numbers the sets of nodes.
    """

    origins: FxOrigins
    kernels: dict[str, list[tuple[NodeNames, bool]]] = field(default_factory=dict)
    _sets: dict[NodeNames, int] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records the C++ code that Inductor generates in the `with` block."""
        from torch._inductor.codegen import cpp
        from torch._inductor.codegen.common import IndentedBuffer
        from torch._inductor.utils import DeferredLineBase
        from torch._inductor.virtualized import V

        lines = self
        write, finalize, define = (
            IndentedBuffer.writeline, cpp.KernelGroup.finalize_kernel, cpp.CppScheduling.define_kernel
        )  # fmt: skip

        def write_marked(buffer: Any, line: Any) -> None:
            kernel = V.kernel
            node = getattr(kernel, "current_node", None) if isinstance(kernel, cpp.CppKernel) else None
            if node is not None:
                mark = lines._mark("direct", node)
                if isinstance(line, str):
                    line = _add_mark(line, mark)
                elif isinstance(line, DeferredLineBase):
                    line = line._new_line(_add_mark(line.line, mark))
            write(buffer, line)

        def finalize_marked(group: Any, kernel: Any, nodes: Sequence[BaseSchedulerNode]) -> object:
            buffer = group.loops_code
            before = len(buffer._lines)
            result = finalize(group, kernel, nodes)
            mark = lines._mark("loops", *nodes)
            for number, line in enumerate(buffer._lines[before:], start=before):
                if isinstance(line, str):
                    buffer._lines[number] = _add_mark(line, mark)
                elif isinstance(line, DeferredLineBase):
                    buffer._lines[number] = line._new_line(_add_mark(line.line, mark))
            return result

        def define_clean(
            scheduling: Any, code: str, nodes: Sequence[BaseSchedulerNode], *more: object, **keywords: object
        ) -> object:
            name = define(scheduling, _MARK.sub("", code), nodes, *more, **keywords)
            kernel_names = lines.origins.of_all(origin for node in nodes for origin in _origins(node))
            lines._record(name, code, kernel_names)
            return name

        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(IndentedBuffer, "writeline", write_marked))
            patches.enter_context(mock.patch.object(cpp.KernelGroup, "finalize_kernel", finalize_marked))
            patches.enter_context(mock.patch.object(cpp.CppScheduling, "define_kernel", define_clean))
            yield

    def _mark(self, kind: str, *nodes: Any) -> str:
        """Returns the mark of lines that compute the scheduler nodes `nodes`; `kind` is "direct" or "loops"."""
        names = self.origins.of_all(origin for node in nodes for origin in _origins(node))
        return f" //@{kind} {self._sets.setdefault(names, len(self._sets))}"

    def _record(self, name: str, code: str, kernel_names: NodeNames) -> None:
        """Records the nodes of each line of a kernel's marked `code`; lines without a mark have `kernel_names`."""
        sets = list(self._sets)
        recorded: list[tuple[NodeNames, bool]] = []
        for line in code.strip().split("\n"):
            mark = _MARK.search(line)
            names = sets[int(mark[2])] if mark else ()
            is_direct = mark is not None and mark[1] == "direct" and bool(names)
            recorded.append((names or (kernel_names if line.strip() else ()), not is_direct))
        earlier = self.kernels.get(name)
        if earlier is not None and len(earlier) == len(recorded):
            pairs = zip(earlier, recorded, strict=True)
            recorded = [
                (tuple(dict.fromkeys((*names, *more_names))), is_derived and is_also_derived)
                for (names, is_derived), (more_names, is_also_derived) in pairs
            ]
        self.kernels[name] = recorded


def _origins(node: BaseSchedulerNode) -> list[torch.fx.Node]:
    """Returns the FX nodes that a scheduler node computes, in the order of their graph."""
    parts = [part.node for part in node.get_nodes() if part.node is not None]
    return sorted((origin for part in parts for origin in part.origins), key=_position)


def _add_mark(line: str, mark: str) -> str:
    """Returns text of C++ with a mark at the end of each line, except for lines that cannot have one.

    Such lines are empty, have a mark already, or continue on the next line. If the last line is one of them, no line
    gets a mark.
    """
    parts = line.split("\n")
    if not _can_be_marked(parts[-1]):
        return line
    return "\n".join(part + mark if _can_be_marked(part) else part for part in parts)


def _can_be_marked(line: str) -> bool:
    return bool(line.strip()) and not line.endswith("\\") and not _MARK.search(line)


# ---- machine code ----------------------------------------------------------------------------------------------------


# The flag for tables with the source line of each instruction, which do not change the code.
_LINE_TABLES = "-g1"


@contextmanager
def recording_libraries(on_kernel: Callable[[int], None] = lambda _number: None) -> Iterator[dict[str, str]]:
    """Compiles the kernels in the `with` block with line tables; calls `on_kernel` before each kernel with its number.

    Yields a dictionary that maps the stripped source of each kernel to the path of its library, once it is compiled. If
    this version of torch generates no line tables, a flag for them is added. The flag is part of the key in Inductor's
    cache, so code that was compiled in this context is then found only in this context.
    """
    from torch._inductor import config
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    paths: dict[str, str] = {}
    load = CppPythonBindingsCodeCache.load_pybinding_async
    has_tables = getattr(config.aot_inductor, "enable_line_tables", False)
    if not has_tables and "extra_flags" in inspect.signature(load).parameters:
        load = functools.partial(load, extra_flags=(_LINE_TABLES,))

    def load_recorded(argument_types: object, source: str, *more: object, **keywords: object) -> object:
        on_kernel(len(paths) + 1)
        result = load(argument_types, source, *more, **keywords)

        def wait() -> object:
            function = result()
            paths[source.strip()] = getattr(getattr(function, "__self__", None), "__file__", "")
            return function

        return wait

    with mock.patch.object(CppPythonBindingsCodeCache, "load_pybinding_async", staticmethod(load_recorded)):
        yield paths


def disassemble(path: str, name: str, source: Sequence[Line]) -> Iterator[Line]:
    """Yields the disassembled functions of kernel `name`; each instruction has the nodes of its line of `source`.

    An instruction from a header has the nodes of the instruction before it. Lines without machine code have the nodes
    of the whole kernel.
    """
    names_of_kernel = tuple(dict.fromkeys(node_name for line in source for node_name in line.names))
    for function in read_library(path, "kernel"):
        last_line = Line("", names_of_kernel, is_derived=True)
        for text, number, machine_code in function:
            is_in_source = 0 < number <= len(source)
            if is_in_source and source[number - 1].names:
                last_line = source[number - 1]
            names = last_line.names if machine_code else names_of_kernel
            renamed_text = re.sub(r"^kernel\b", name, text)
            yield Line(renamed_text, names, last_line.is_derived or not is_in_source, machine_code)
        yield Line("")
