"""Generates the C code of an exported program: its header, the tables of its loader, and the common sources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources

from buddy.compiler.codegen.machines import Machine
from buddy.compiler.graph.sizes import computed, parsed
from buddy.compiler.tools.export.interface import Interface, Tensor
from buddy.compiler.tools.export.native import names_of

_TOKEN = "PROGRAM"
_TABLES = "/*** TABLES ***/\n"
_LICENSE = "/* Made by buddy-tui; do with it what you like. */\n"


def source(file: str, name: str) -> str:
    """One of the sources in `exports/c`, for the program `name`."""
    text = resources.files("buddy.compiler.tools.export").joinpath("c", file).read_text(encoding="utf-8")
    return text.replace(_TOKEN, name)


def loader(interface: Interface) -> str:
    """The C file that maps the weights, packs them, and calls the compiled code."""
    return source("program.c", interface.name).replace(_TABLES, tables(interface))


def header(interface: Interface, origin: str, machine: Machine) -> str:
    """The C header: inputs and outputs with shapes and element types, and the functions."""
    name = interface.name
    lines = [
        f"/* {name}: compiled by buddy-tui from {_in_comment(origin)}, for {machine}.",
        " *",
        *(f" * {line}".rstrip() for line in _described(interface)),
        " */",
        f"#ifndef {name.upper()}_H",
        f"#define {name.upper()}_H",
        source("header.h", name).rstrip("\n"),
        *_typed_call(interface),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        f"#endif /* {name.upper()}_H */",
        "",
    ]
    return "\n".join(lines)


def tables(interface: Interface) -> str:
    """The loader's tables for this program."""
    names, told = names_of(interface), _Told(interface)
    pack_of = {pack: names[f"buddy_block_{pack}"] for pack in interface.packs}
    asks = [(names[symbol], text) for symbol, text in interface.refusals]
    counts = {
        "INPUTS": len(interface.inputs), "OUTPUTS": len(interface.outputs), "WEIGHTS": len(interface.weights),
        "ARGUMENTS": len(interface.arguments), "SIZES": len(interface.sizes),
        "ARENA_BYTES": f"((size_t){interface.arena})",
    }  # fmt: skip
    weights = [f"{{{_string(w.name)}, {_described_type(w)}}}" for w in interface.weights]
    arguments = [f"{{{a.input}, {a.weight}, {pack_of.get(a.pack, 'NULL')}, {a.bytes}u}}" for a in interface.arguments]
    lines = [
        *(f"#define {key} {value}" for key, value in counts.items()),
        "",
        f"HIDDEN void {interface.name}_entry(void **block);",
        *(f"HIDDEN void {pack}(void **block);" for pack in dict.fromkeys(pack_of.values())),
        *(line for name, text in asks for line in _ask(name, text)),
        "",
        *_array("struct weight", "weights", weights),
        *_array("struct argument", "arguments", arguments),
        *_array(f"{interface.name}_tensor", "inputs_of_program", [told.tensor(t) for t in interface.inputs]),
        *_array(f"{interface.name}_tensor", "outputs_of_program", [told.tensor(t) for t in interface.outputs]),
        *_array("unsigned char", "output_is_empty", [str(int(t.empty)) for t in interface.outputs], "0"),
        *_array(f"{interface.name}_size", "sizes_of_program", [
            f"{{{_string(s.name)}, {s.input}, {s.dim}}}" for s in interface.sizes
        ]),
        *told.function(),
    ]  # fmt: skip
    return "\n".join([*lines, ""])


class _Told:
    """Symbolic sizes in C: each gets a number, and its value is an expression of the call's sizes."""

    def __init__(self, interface: Interface) -> None:
        self._symbols = {source.name: f"sizes[{i}]" for i, source in enumerate(interface.sizes)}
        self._expressions: list[str] = []

    def tensor(self, tensor: Tensor) -> str:
        shape = [size if isinstance(size, int) else -1 - self._number(size) for size in tensor.shape]
        words = [_string(tensor.element.safetensors), str(tensor.element.bytes), str(len(shape)), _sizes(shape)]
        return f"{{{_string(tensor.name)}, {', '.join(words)}}}"

    def function(self) -> list[str]:
        cases = [f"  case {i}: return {text};" for i, text in enumerate(self._expressions)]
        head = "static int64_t told(int which, const int64_t *sizes) {"
        # A program with static sizes does not use these.
        uses = "  (void)sizes, (void)floor_div, (void)floor_mod, (void)larger, (void)smaller;"
        return ["", head, uses, "  switch (which) {", *cases, "  default: return 0;", "  }", "}"]

    def _number(self, size: str) -> int:
        text = computed(parsed(size), self._symbols, lambda number: f"INT64_C({number})", _apply)
        self._expressions.append(text)
        return len(self._expressions) - 1


_CALLS = {"//": "floor_div", "%": "floor_mod", "max": "larger", "min": "smaller"}


def _apply(name: str, left: str, right: str) -> str:
    return f"{_CALLS[name]}({left}, {right})" if name in _CALLS else f"({left} {name} {right})"


def _ask(name: str, text: str) -> list[str]:
    return [f"HIDDEN void {name}(void);", f"void {name}(void) {{ refusal = refusal ? refusal : {_string(text)}; }}"]


def _array(kind: str, name: str, items: Sequence[str], last: str = "{0}") -> list[str]:
    """A table that ends with an empty entry, since C has no empty arrays."""
    return [f"static const {kind} {name}[] = {{", *(f"    {item}," for item in items), f"    {last}}};"]


def _described_type(tensor: Tensor) -> str:
    shape = [size for size in tensor.shape if isinstance(size, int)]
    element = tensor.element
    return f"{_string(element.safetensors)}, {element.bytes}, {len(shape)}, {_sizes(shape)}"


def _sizes(shape: Sequence[int]) -> str:
    return f"(const int64_t[]){{{', '.join(map(str, shape))}}}" if shape else "NULL"


def _string(text: str) -> str:
    """A C string literal.

    JSON's escapes are valid in C, as long as other characters are unescaped and no trigraph results.
    """
    return json.dumps(text, ensure_ascii=False).replace("??", '?" "?')


def _in_comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ")


def _described(interface: Interface) -> list[str]:
    """Inputs, outputs and sizes, one per line."""
    lines = ["Tensors are dense and row-major, one element behind the other, the last dim fastest.", "Inputs:"]
    lines += [_line(i, tensor) for i, tensor in enumerate(interface.inputs)] or ["  none"]
    lines += ["Outputs, which the caller allocates:"]
    lines += [_line(i, tensor) for i, tensor in enumerate(interface.outputs)] or ["  none"]
    if interface.sizes:
        lines.append("Sizes that each call tells, in this order:")
        lines += [f"  {source.name}: {_told_by(source.input, source.dim)}" for source in interface.sizes]
    return lines


def _told_by(number: int, dim: int) -> str:
    return f"dim {dim} of input {number}" if number >= 0 else f"number {dim} that the program is called with"


def _line(number: int, tensor: Tensor) -> str:
    sizes = "".join(f"[{size}]" for size in tensor.shape)
    note = f" ({tensor.element.note})" * bool(tensor.element.note)
    return _in_comment(f"  {number}  {tensor.element.c} {tensor.name}{sizes}{note}")


def _typed_call(interface: Interface) -> list[str]:
    """A function with a typed parameter for each tensor."""
    name = interface.name
    ins = [(f"in{i}", f"const {tensor.element.c} *in{i}") for i, tensor in enumerate(interface.inputs)]
    outs = [(f"out{i}", f"{tensor.element.c} *out{i}") for i, tensor in enumerate(interface.outputs)]
    sizes = [("sizes", "const int64_t *sizes")] if interface.sizes else []
    parameters = ", ".join([f"{name} *opened", *(text for _, text in (*sizes, *ins, *outs))])
    given = ", ".join(["NULL" if not ins else "inputs", "NULL" if not outs else "outputs"])
    lists = [f"  const void *const inputs[] = {{{', '.join(word for word, _ in ins)}}};"] if ins else []
    lists += [f"  void *const outputs[] = {{{', '.join(word for word, _ in outs)}}};"] if outs else []
    call = f"  return {name}_run(opened, {'sizes' if sizes else 'NULL'}, {given});"
    comment = f"/* {name}_run with every tensor by its type. */"
    return [comment, f"static inline int {name}_call({parameters}) {{", *lists, call, "}", ""]
