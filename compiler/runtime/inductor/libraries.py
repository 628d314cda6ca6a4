"""Records the shared libraries of Inductor's kernels while they are compiled, and disassembles them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from buddy.compiler.codegen.assembly import read_library
from buddy.compiler.runtime.inductor.provenance import Line

# The flag for tables with the source line of each instruction, which do not change the code.
_LINE_TABLES = "-g1"


@contextmanager
def recording(on_kernel: Callable[[int], None] = lambda _number: None) -> Iterator[dict[str, str]]:
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
