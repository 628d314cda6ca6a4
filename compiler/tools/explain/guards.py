"""Reads TorchDynamo's guards: its printed tree, and its reasons why a guard failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from buddy.compiler.protocol.dynamo import UserFrame

# The kinds of guards in the report, which say what a guard checks, by the class of the guard in Dynamo.
_KINDS = {
    "TENSOR_MATCH": "tensor",
    "EQUALS_MATCH": "value",
    "CONSTANT_MATCH": "value",
    "BOOL_MATCH": "value",
    "TRUE_MATCH": "value",
    "FALSE_MATCH": "value",
    "NONE_MATCH": "value",
    "NOT_NONE": "value",
    "FLOAT_IS_NAN": "value",
    "COMPLEX_IS_NAN": "value",
    "RANGE_ITERATOR_MATCH": "value",
    "TYPE_MATCH": "type",
    "CLASS_MATCH": "type",
    "ID_MATCH": "identity",
    "FUNCTION_MATCH": "identity",
    "CLOSURE_MATCH": "identity",
    "WEAKREF_ALIVE": "identity",
    "LENGTH_CHECK": "length",
    "DICT_LENGTH": "length",
    "TUPLE_ITERATOR_LEN": "length",
    "DICT_CONTAINS": "keys",
    "SET_CONTAINS": "keys",
    "MAPPING_KEYS_CHECK": "keys",
    "DICT_KEYS_MATCH": "keys",
    "DICT_VERSION": "dict version",
    "DUAL_LEVEL_MATCH": "global state",
    "GLOBAL_STATE": "global state",
    "DEFAULT_DEVICE": "global state",
    "TORCH_FUNCTION_MODE_STACK": "global state",
    "NO_TENSOR_ALIASING": "aliasing",
    "OBJECT_ALIASING": "aliasing",
    "STORAGE_OVERLAPPING": "aliasing",
    "DIMENSION_DYNAMIC_MARKING_GUARD": "dynamic marks",
    "DYNAMIC_INDICES": "dynamic marks",
}
# Sources that the user's code does not name: modules and functions of torch and Python, and hooks.
_LIBRARY_SOURCE = re.compile(
    r"\b__import_|G\['__builtins|_(?:global_)?(?:forward|backward)(?:_pre)?_hooks|__code__\.co_"
    r"|\.(?:__dict__|_modules|_parameters|_buffers)$"
)
# Parts of the printed tree: an indented line; a manager, which checks the value of one source; a guard of the manager
# above it; the comment after a guard, with the user's line.
_INDENT = re.compile(r"^((?:\| )*)\+- (.*)$")
_SOURCE = re.compile(r"(?:Manager|KeyManager|ValueManager): .*?source=(.*?)(?:, accessed_by=|, type=<|$)")
_LEAF = re.compile(r"^([A-Z][A-Z_0-9]+|LAMBDA_GUARD): (.*)$")
_COMMENT = re.compile(
    r"^(?P<expression>.*?)\s\s+# (?P<text>.*?)(?:\s\s?# )?(?P<file>[^\s#]+):(?P<line>\d+) in (?P<function>\S+)"
)
_TENSOR = re.compile(
    r"check_tensor\((?P<source>.*?), \w+, (?P<keys>DispatchKeySet\([^)]*\)), (?P<dtype>\S+), device=.*?, "
    r"requires_grad=(?P<requires_grad>\w+), size=(?P<size>\[.*?\]), stride=(?P<stride>\[.*?\])\)"
)
# Parts of sources, which Dynamo writes as Python expressions: `L['self']._modules['head']`.
_LOCAL = re.compile(r"\bL\[['\"](\w+)['\"]\]")
_GLOBAL = re.compile(r"\bG\[['\"](\w+)['\"]\]")
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\[['\"](\w+)['\"]\]")
_CODE = re.compile(r"\.__code__\b|\.__closure__\[\d+\]\.cell_contents\b")
# Sizes, strides, and the operators that only expressions of symbolic sizes have.
_SIZES = re.compile(r"\.(?:size|stride)\(\)\[|\.storage_offset\(\)|\b[su]\d+\b|Mod\(|FloorDiv\(")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass
class TensorFacts:
    """What a guard checks of a tensor, as texts, such as `[2, 4]` for sizes and strides; "" is unknown.

    `*` in sizes and strides stands for any number. `keys` are the dispatch keys, as Dynamo prints them.
    """

    size: str = ""
    stride: str = ""
    dtype: str = ""
    requires_grad: str = ""
    keys: str = ""

    def of(self, kind: str) -> str:
        """Returns the fact that guards of `kind` check, or the dtype and size if it is unknown."""
        facts = {
            "size": self.size, "rank": self.size, "stride": self.stride, "dtype": self.dtype,
            "requires_grad": self.requires_grad, "device": self.keys,
        }  # fmt: skip
        return facts.get(kind) or str(self)

    def __str__(self) -> str:
        return " ".join(part for part in (self.dtype, self.size) if part)


@dataclass
class GuardLine:
    """A guard of the printed tree: what it checks (a value of `_KINDS`), and its condition in the user's terms.

    `source` is as in Dynamo, such as `L['x']`. `frame` is the user's line that made the guard necessary; its path may
    be shortened.
    """

    kind: str
    expression: str
    source: str = ""
    frame: UserFrame | None = None
    tensor: TensorFacts | None = None

    @property
    def key(self) -> str:
        """The source as the user writes it."""
        return as_written(self.source)

    @property
    def library(self) -> bool:
        """Whether the user's code does not name the checked value."""
        return is_library_source(self.source or self.expression) or self.kind in ("global state", "dynamic marks")


@dataclass
class GuardTree:
    """The guards of a compilation; the tensors they check, by source as the user writes it; the global state."""

    lines: list[GuardLine] = field(default_factory=list)
    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)


def is_library_source(source: str) -> bool:
    """Returns whether a source names a value of torch or Python, or a dict in which these keep the user's values."""
    return bool(_LIBRARY_SOURCE.search(source))


def read_tree(text: str) -> GuardTree:
    """Reads the tree of guards that Dynamo prints."""
    # `sources` has the source of the last manager at each depth.
    tree, sources = GuardTree(), dict[int, str]()
    for line in text.splitlines():
        match = _INDENT.match(line.strip("\t "))
        if match is None:
            continue
        depth, content = len(match[1]) // 2, match[2]
        leaf = _LEAF.match(content)
        if leaf is None:
            source = _SOURCE.search(content)
            sources[depth] = source[1] if source else ""
            continue
        manager_source = next((sources[above] for above in range(depth - 1, -1, -1) if above in sources), "")
        guard = _read_guard(leaf[1], leaf[2], manager_source)
        tree.lines.append(guard)
        if guard.tensor is not None:
            tree.tensors[guard.key] = guard.tensor
        if leaf[1] == "GLOBAL_STATE":
            tree.state = _global_state(leaf[2])
    return tree


def _read_guard(dynamo_class: str, text: str, source: str) -> GuardLine:
    """Returns a guard from its class, the text after it, and the source of its manager, which the text may correct."""
    expression, frame = _split_comment(text)
    kind = _KINDS.get(dynamo_class, "")
    tensor = None
    if dynamo_class == "TENSOR_MATCH" and (match := _TENSOR.search(expression)):
        source = match["source"]
        tensor = TensorFacts(
            match["size"].replace("None", "*"),
            match["stride"].replace("None", "*"),
            match["dtype"].removeprefix("torch."),
            match["requires_grad"],
            match["keys"],
        )
    if expression.startswith("list(dict.keys("):
        kind = "keys"
    kind = kind or kind_of_expression(expression)
    if kind == "symbolic size" and (size := _SIZE_NAME.search(expression)):
        source = size[1]
    condition = describe_guard(expression)
    if tensor is not None:
        condition = f"{as_written(source)} is {tensor}, stride {tensor.stride}"
    return GuardLine(kind, condition, source, frame, tensor)


def _split_comment(text: str) -> tuple[str, UserFrame | None]:
    """Splits the text of a guard into its expression and the user's line in the comment, `None` if it names none."""
    match = _COMMENT.match(text)
    if match is None:
        return text.split("  # ")[0].rstrip(), None
    return match["expression"].rstrip(), UserFrame(
        match["file"], int(match["line"]), match["function"], match["text"].removesuffix("#").strip()
    )


# Numbers of dtypes in PyTorch's C++ code (`c10::ScalarType`).
_DTYPES = {5: "float16", 6: "float32", 7: "float64", 15: "bfloat16"}


def _global_state(text: str) -> dict[str, str]:
    """Returns the global state that a guard compares with, by Dynamo's names of it; empty if it cannot be read."""
    try:
        state = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return {}
    values = {name: str(value) for name, value in state.items() if isinstance(value, bool | int)}
    values["default_dtype"] = _DTYPES.get(state.get("default_dtype"), values.get("default_dtype", ""))
    return values


def differing_keys(before: str, after: str) -> tuple[str, str]:
    """Returns the dispatch keys that only one of two sets has, such as `CPU, AutogradCPU`.

    The sets are texts such as `DispatchKeySet(CPU, BackendSelect)`.
    """
    keys_before, keys_after = (text.removeprefix("DispatchKeySet(").rstrip(")").split(", ") for text in (before, after))
    only_before = ", ".join(key for key in keys_before if key not in keys_after)
    only_after = ", ".join(key for key in keys_after if key not in keys_before)
    return only_before or "none", only_after or "none"


def kind_of_expression(expression: str) -> str:
    """Returns what a guard written as a Python expression checks."""
    # Quoted text may look like a symbol, but sources have quotes too: `L['x'].size()[0]`.
    unquoted = expression if ".size()" in expression else _QUOTED.sub("''", expression)
    if _SIZES.search(unquoted):
        return "symbolic size"
    if "___check_type_id" in expression:
        return "type"
    if "___check_obj_id" in expression:
        return "identity"
    if expression.startswith("len("):
        return "length"
    if "___dict_contains" in expression or "dict.keys(" in expression or "___key_to_id" in expression:
        return "keys"
    if expression.startswith("check_no_aliasing") or re.fullmatch(r"\S+ is (?!None)\S+", expression):
        return "aliasing"
    if "==" in expression or " is None" in expression or " is not None" in expression:
        return "global state" if expression.startswith(("torch.", "utils_device", "___")) else "value"
    if "hasattr" in expression:
        return "attribute"
    return "other"


def as_written(text: str) -> str:
    """Returns a source or an expression as the user writes it: `self.head` for `L['self']._modules['head']`."""
    return _CODE.sub("", _MEMBER.sub(r".\1", _GLOBAL.sub(r"\1", _LOCAL.sub(r"\1", text))))


def describe_guard(expression: str) -> str:
    """Returns a guard in the user's terms.

    For example, `type of x is list` for `___check_type_id(L['x'], 139…), type=<class 'list'>`.
    """
    match = _ID.search(expression)
    if match is None:
        return as_written(expression)
    source = as_written(match[2])
    return f"type of {source} is {match[3]}" if match[1] == "type" else f"{source} is the same object"


def scope_of(source: str, closure: frozenset[str] = frozenset()) -> str:
    """Returns the kind of the variable that Dynamo calls `source`: "global", "attribute", "closure" or "local".

    Returns "" if `source` is not a variable. `closure` has the names of the variables that the function takes from
    enclosing functions.
    """
    name = _LOCAL.match(source)
    if source.startswith("G["):
        return "global"
    if name is None:
        return ""
    rest = source[name.end() :]
    if rest.startswith("._modules") or (rest.startswith(".") and not rest.startswith(".size()")):
        return "attribute"
    return "closure" if name[1] in closure else "local"


# ---- reasons why a guard failed --------------------------------------------------------------------------------------


class Reason(NamedTuple):
    """Dynamo's reason why a guard failed: what it checks, and its condition in the user's terms.

    `source` is as Dynamo's text names it. `before` and `after` are what the text says of the checked value when it was
    compiled and when the guard failed, "" for nothing.
    """

    kind: str
    expression: str
    source: str = ""
    before: str = ""
    after: str = ""

    @property
    def dynamo_source(self) -> str:
        """The source as in guards, which have `L['x']` where reasons may have `x`."""
        name = re.match(r"[A-Za-z_]\w*(?!\w|\[)", self.source)
        if name is None or self.kind in ("global state", "aliasing"):
            return self.source
        return f"L['{name[0]}']{self.source[name.end() :]}"


# Dynamo's reasons, and the expressions in them.
_MISMATCH = re.compile(
    r"tensor '(?P<source>.+?)' (?P<what>size|stride) mismatch at index (?P<index>\d+)\. "
    r"expected (?P<expected>\S+), actual (?P<actual>\S+)"
)
_TENSOR_REASONS = (
    ("dtype", re.compile(r"tensor '(.+?)' dtype mismatch\. expected (\S+), actual (\S+)")),
    ("rank", re.compile(r"tensor '(.+?)' rank mismatch\. expected (\S+), actual (\S+)")),
    ("requires_grad", re.compile(r"tensor '(.+?)' requires_grad mismatch\. expected requires_grad=(\d)()")),
    ("device", re.compile(r"tensor '(.+?)' dispatch key set mismatch\. expected (\w+\(.*?\)), actual (\w+\(.*?\))")),
    ("device", re.compile(r"tensor '(.+?)' .*?device (?:index )?mismatch.*?expected (\S+), actual (\S+)")),
    ("type", re.compile(r"expected type of '(.+?)' to be a tensor type, '?(?:.*?)' ?but found (\S+)()")),
    ("type", re.compile(r"expected type of '(.+?)' to be (.+?), ?(?:but found|actual) (.+)")),
)  # fmt: skip
_ID = re.compile(r"___check_(obj|type)_id\((.*), (?:\d+|…)\)(?:, type=<class '(.*?)'>)?")
_LENGTH = re.compile(r"(?:not )?len\((.+?)\) (==|!=) (\d+)")
_CONTAINS = re.compile(r"(not )?___(?:dict|set)_contains\((.+?), (.+)\)")
_KEYS = re.compile(r"list\((?:dict|OrderedDict)\.keys\((.+?)\)\)\[\d+\] == (.*)")
_EQUALS = re.compile(r"(.+?) (?:==|is) (.+)")
_NOT_NONE = re.compile(r"(.+?) is not None")
_SIZE_NAME = re.compile(r"((?:[LG]\[['\"]\w+['\"]\]|\w)[\w.\[\]'\"]*?)\.(?:size|stride)\(\)\[\d+\]")


def read_reason(text: str) -> Reason:
    """Reads a reason, such as `tensor 'x' size mismatch at index 0. expected 2, actual 3` or `n == 1`."""
    text = text.strip()
    expression = _split_comment(text)[0].splitlines()[0] if text else ""
    return next(_matching_reasons(expression), Reason("other", expression))


def _matching_reasons(text: str) -> Iterator[Reason]:
    """Yields the readings of a text by all patterns that match it, the most specific first."""
    yield from _tensor_reasons(text)
    yield from _message_reasons(text)
    yield from _expression_reasons(text)


def _tensor_reasons(text: str) -> Iterator[Reason]:
    if match := _MISMATCH.search(text):
        what, index = match["what"], match["index"]
        yield Reason(
            what,
            f"{what}({index}) of {as_written(match['source'])} is {match['expected']}",
            match["source"],
            match["expected"],
            match["actual"],
        )
    for kind, pattern in _TENSOR_REASONS:
        if match := pattern.search(text):
            before, after = match[2], match[3]
            if kind == "requires_grad":
                before, after = ("True", "False") if before == "1" else ("False", "True")
            yield Reason(kind, as_written(text), match[1], before, after)


def _message_reasons(text: str) -> Iterator[Reason]:
    if text.startswith("GLOBAL_STATE changed"):
        names = text.partition(":")[2].split()
        yield Reason("global state", " ".join(names) or text, names[0] if names else "")
    if text.startswith("BACKEND_MATCH"):
        backends = re.search(r"Cached backend: (.+?)\. New backend: (.+?)\. If this", text)
        before, after = (_backend_name(name) for name in backends.groups()) if backends else ("", "")
        is_same_name = before == after and bool(before)
        yield Reason(
            "backend", "the backend is the same object", "", before, f"another {after}" if is_same_name else after
        )
    if text.startswith(("Duplicate tensor", "check_no_aliasing")):
        tensors = ", ".join(
            as_written(name) for name in re.findall(r"[LG]?[\w\['\].]*\w[\w\]']*", text.partition(":")[2])
        )
        condition = f"{tensors or 'the arguments'} are different tensors"
        yield Reason("aliasing", condition, tensors, "different", "one tensor")
    if "dynamo_dim_marking" in text or "_dynamo_dynamic_indices" in text or "_dynamic_indices" in text:
        yield Reason("dynamic marks", "no dimension is marked as dynamic", "", "not marked", "marked")
    if "got deallocated" in text or "invalidated" in text:
        yield Reason("identity", text, "", "alive", "deleted")


def _expression_reasons(text: str) -> Iterator[Reason]:
    if match := _ID.search(text):
        kind, before = ("type" if match[1] == "type" else "identity"), match[3] or ""
        yield Reason(kind, describe_guard(text), match[2], before if kind == "type" else "")
    if match := _LENGTH.match(text):
        # The reason for a dict names the condition that holds instead: `len(d) != 1`.
        yield Reason("length", as_written(f"len({match[1]}) == {match[3]}"), match[1], f"length {match[3]}")
    if match := _CONTAINS.match(text):
        before, after = ("without", "with") if match[1] else ("with", "without")
        yield Reason("keys", as_written(text), match[3], f"{before} {match[2]}", f"{after} {match[2]}")
    if match := _KEYS.match(text):
        yield Reason("keys", as_written(text), match[1])
    if kind_of_expression(text) == "symbolic size":
        match = _SIZE_NAME.search(text)
        yield Reason("symbolic size", as_written(text), match[1] if match else "")
    if match := _NOT_NONE.fullmatch(text):
        yield Reason("value", as_written(text), match[1], "not None", "None")
    if match := _EQUALS.fullmatch(text):
        kind, before, after = kind_of_expression(text), "", ""
        if kind == "value":
            before = as_written(match[2])
        elif kind == "aliasing":
            before, after = "the same object", "different objects"
        yield Reason(kind, as_written(text), match[1], before, after)


def _backend_name(description: str) -> str:
    """Returns the name of a backend in Dynamo's description of it."""
    compiler = re.match(r"_TorchCompileWrapper\(compiler='(.*?)'", description)
    return compiler[1] if compiler else description.partition(" (id=")[0].removeprefix("functools.partial wrapping ")


# ---- what to do ------------------------------------------------------------------------------------------------------

# The advice for a failed guard, by what it checks.
_FIXES: Mapping[str, str] = {
    "size": "mark the dimension by torch._dynamo.mark_dynamic({source}, {index}), compile with dynamic=True, or pad "
    "the inputs to a few sizes",
    "symbolic size": "the code depends on this size: avoid the branch on it, or tell Dynamo its range by torch._check",
    "rank": "reshape {source} to one number of dimensions before the call",
    "stride": "call {source}.contiguous() before the compiled function, or pass tensors of one memory layout",
    "dtype": "convert {source} to one dtype before the call",
    "requires_grad": "pass {source} with the same requires_grad: detach() it, or call under torch.no_grad() each time",
    "device": "move {source} to one device before the call, and call under the same inference_mode",
    "tensor": "pass a tensor of the same type, dtype, sizes and device",
    "length": "pass {source} with one length, such as by padding it, or stack its elements to a tensor",
    "keys": "create the keys of {source} in one order, and all of them, before the first call",
    "type": "pass {source} as one type",
    "identity": "create {source} once, and reuse this object in all calls",
    "aliasing": "pass different tensors, such as by clone(), or the same ones in every call",
    "global state": "call under the same global state, such as grad mode, autocast and default dtype, or compile a "
    "function for each",
    "dynamic marks": "mark the dimensions of the first input too, before the first call",
    "backend": "create the backend once, and pass this object to each torch.compile",
    "dict version": "do not change {source} between calls",
    "attribute": "set the attribute before the first call",
}


def fix_for(reason: Reason, scope: str, before: str, after: str) -> str:
    """Returns what to change so that the guard no longer fails, "" if unknown.

    `scope` is a result of `scope_of`; `before` and `after` are the values that `records.checked_values` returns.
    """
    source = as_written(reason.source) or "the value"
    if reason.kind == "value":
        return _fix_for_value(source, scope, before, after)
    if reason.kind == "symbolic size" and re.fullmatch(r"2 <= \S+", reason.expression):
        return f"sizes of 0 and 1 are compiled apart from larger ones: pad {source}, or accept one more compilation"
    if reason.kind == "identity" and before.startswith("<"):
        return f"each member of the enumeration is compiled one time: use few of them, or choose by {source} outside"
    index = re.search(r"\((\d+)\)", reason.expression)
    return _FIXES.get(reason.kind, "").format(source=source, index=index[1] if index else "dim")


def _fix_for_value(source: str, scope: str, before: str, after: str) -> str:
    if source.endswith(".training"):
        return "compile a module for training and one for evaluation; two compilations are normal if both are used"
    if "None" in (before, after) or before == "not None":
        return f"pass {source} always, or never: both cases are compiled, one time each"
    if before in ("True", "False"):
        return f"each value of {source} is compiled one time; if it changes often, select with torch.where instead"
    if before[:1] in "'\"" and before:
        return f"use few different values of {source}, or choose by it outside the compiled function"
    phrases = {
        "global": "the global {}",
        "closure": "{}, a variable of the enclosing function,",
        "attribute": "the attribute {}",
    }
    subject = phrases.get(scope, "{}").format(source)
    if "." in before and before.replace(".", "").lstrip("-").isdigit():
        return f"make {subject} a tensor: Dynamo compiles again for the second value of a float"
    if before.lstrip("-").isdigit():
        return f"make {subject} a tensor, or compile with dynamic=True so that integers are symbolic"
    return f"use few different values of {source}, or choose by it outside the compiled function"
