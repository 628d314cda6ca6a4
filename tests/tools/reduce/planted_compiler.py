"""A compiler with ten planted faults: `planted_compiler.py FAULT FILE` aborts if the module has the structure of FAULT.

It reads what `mlir-opt` prints, line by line.
"""

import os
import re
import sys


def lines_with(text: str, pattern: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(pattern, line)]


def defined_by(text: str, op: str) -> set[str]:
    """Returns the names of the results of the ops called `op`."""
    return set(re.findall(rf"(%[\w]+)(?::\d+)? = {re.escape(op)}\b", text))


def aliases_of(text: str, value: str) -> set[str]:
    """Returns the aliases that are equal to `value`."""
    return {name for name, text in re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE) if text == value}


def transposed_into_loop(text: str) -> bool:
    transposed = aliases_of(text, "affine_map<(d0, d1) -> (d1, d0)>")
    generics = {
        name
        for name, maps in re.findall(r"(%\w+) = linalg.generic \{indexing_maps = \[([^]]*)\]", text)
        if transposed & set(maps.split(", "))
    }
    return any(f"= {name})" in line for line in lines_with(text, r"scf\.for") for name in generics)


def chain_of_three(text: str) -> bool:
    roots = {
        result
        for result, operand in re.findall(r"(%\w+) = math.sqrt (%\w+)", text)
        if operand in defined_by(text, "math.exp")
    }
    return any(operand in roots for operand in re.findall(r"= math.tanh (%\w+)", text))


def dimension_of_seven(text: str) -> bool:
    return re.search(r"tensor<(?:\d+x)*7x", text) is not None


def attribute_of_thirteen(text: str) -> bool:
    return "planted.key = 13 :" in text


def three_nested_regions(text: str) -> bool:
    depth, opened = 0, {}
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        opened = {at: op for at, op in opened.items() if at < indent}
        if found := re.search(r"scf\.(for|if)\b", line):
            opened[indent] = found[1]
            depth = max(depth, list(opened.values()) == ["for", "for", "if"])
    return bool(depth)


def unused_block_argument(text: str) -> bool:
    for function in text.split("func.func "):
        labels = lines_with(function, r"^  \^\w+\(")
        arguments = [name for line in labels for name in re.findall(r"(%\w+):", line)]
        if any(len(re.findall(rf"{name}\b", function)) == 1 for name in arguments):
            return True
    return False


def mutual_calls(text: str) -> bool:
    calls: dict[str, set[str]] = {}
    function = ""
    for line in text.splitlines():
        if found := re.search(r"func\.func (?:private )?@(\w+)", line):
            function = found[1]
        elif found := re.search(r"call @(\w+)", line):
            calls.setdefault(function, set()).add(found[1])
    return any(a in calls.get(b, ()) for a, callees in calls.items() for b in callees if a != b)


def reduction_with_two_results(text: str) -> bool:
    return any("reduction" in line for line in lines_with(text, r"%\w+:2 = linalg.generic"))


def constant_that_is_no_splat(text: str) -> bool:
    constants = set(re.findall(r"(%\w+) = arith.constant dense<\[", text))
    return any(name in constants for name in re.findall(r"arith.addi %\w+, (%\w+) : tensor", text))


def unknown_op_with_region(text: str) -> bool:
    return re.search(r'"weird\.op"\(%\w+, %\w+\) \(\{', text) is not None


FAULTS = {
    fault.__name__: fault
    for fault in (
        transposed_into_loop, chain_of_three, dimension_of_seven, attribute_of_thirteen, three_nested_regions,
        unused_block_argument, mutual_calls, reduction_with_two_results, constant_that_is_no_splat,
        unknown_op_with_region,
    )
}  # fmt: skip

if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8") as file:
        module = file.read()
    if FAULTS[sys.argv[1]](module):
        print(f"Assertion `is fine' failed: {sys.argv[1]}", file=sys.stderr, flush=True)
        os.abort()
