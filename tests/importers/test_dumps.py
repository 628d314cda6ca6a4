"""Dumps of other compilers, real ones and broken ones: the stages that are found in them, and their texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from buddy.compiler.importers.dumps import logs
from buddy.compiler.importers.dumps.headers import anchor_of, read_header
from buddy.compiler.importers.dumps.locations import find_source_lines, source_line_rows
from buddy.compiler.importers.dumps.reading import DumpScan, indexed_text, read_text
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.protocol.dump_files import dump_format, is_dump
from tests.support.dumps import unpack

FORMATS = {
    "mlir/after_all.log": "log",
    "mlir/before_all.log": "log",
    "mlir/module_scope.log": "log",
    "mlir/tree": "mlir-tree",
    "llvm/after_all.log": "log",
    "llvm/changed.log": "log",
    "iree/after_all.log": "log",
    "iree/phases": "iree-phases",
    "triton/kernels": "triton",
    "triton/passes.log": "log",
    "xla/hlo": "xla",
    "inductor/debug": "inductor",
    "inductor/torch_logs.log": "torch-log",
    "inductor/trace": "torch-trace",
}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dumps of each compiler in a folder of its own."""
    folder = tmp_path_factory.mktemp("dumps")
    for name in {path.partition("/")[0] for path in FORMATS}:
        unpack(name, folder)
    return folder


def scanned(path: Path) -> Dump:
    found = dump_format(path)
    assert found is not None, f"{path} is not a dump"
    scan = DumpScan(path, found)
    for _ in scan.index():
        pass
    assert scan.dump.is_complete
    return scan.dump


def titles(dump: Dump, anchor: str = "") -> list[str]:
    return [stage.title for stage in dump.stages if anchor in ("", stage.anchor)]


def log(folder: Path, content: bytes) -> Dump:
    path = folder / "a.log"
    path.write_bytes(content)
    return scanned(path)


def mlir(title: str, body: str, op: str = "") -> bytes:
    on = f" ({op})" if op else ""
    return f"// -----// IR Dump After {title.title()} ({title}){on} //----- //\n{body}\n\n".encode()


# ---- real dumps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "expected"), FORMATS.items())
def test_the_format_is_recognised_and_each_text_has_the_lines_that_were_counted(
    path: str, expected: str, dumps: Path
) -> None:
    assert dump_format(dumps / path) == expected
    dump = scanned(dumps / path)
    assert len(dump.stages) >= 3
    for stage in dump.stages:
        text = indexed_text(dump, stage)
        assert text.line_count == stage.lines
        assert text.content.strip()


@pytest.mark.parametrize("path", [path for path, found in FORMATS.items() if found == "log" and "changed" not in path])
def test_the_texts_of_a_log_are_what_is_between_its_headers(path: str, dumps: Path) -> None:
    dump = scanned(dumps / path)
    lines = (dumps / path).read_text().split("\n")
    headers = [number for number, line in enumerate(lines) if read_header(line.encode()) is not None]
    between = [
        "\n".join(lines[start + 1 : end]).rstrip("\n")
        for start, end in zip(headers, [*headers[1:], len(lines)], strict=True)
    ]
    found = [read_text(dump, stage).rstrip("\n") for stage in dump.stages if stage.title != "output"]
    assert [text.rstrip() for text in found] == [text.rstrip() for text in between if text.strip()]


def test_functions_that_threads_print_are_told_apart(dumps: Path) -> None:
    dump = scanned(dumps / "mlir/threads.log")
    assert dump.graph_names == ["all", *dict.fromkeys(stage.anchor for stage in dump.stages)]
    assert set(dump.graph_names) == {"all", "@scale", "@twice", "module"}
    expected = ["canonicalize", "cse", "linalg-generalize-named-ops", "convert-linalg-to-loops", "canonicalize"]
    assert [title for title in titles(dump, "@scale") if title in expected][:2] == ["canonicalize", "cse"]
    assert titles(dump, "module") == ["inline", "one-shot-bufferize", "convert-scf-to-cf"]
    assert [stage.title for stage in dump.stages_of(dump.graph_names.index("module"))] == titles(dump, "module")
    for stage in dump.stages:
        text = read_text(dump, stage)
        assert f"func.func {stage.anchor}(" in text if stage.anchor != "module" else "module {" in text


def test_each_pass_is_compared_with_the_one_before_on_the_same_function(dumps: Path) -> None:
    dump = scanned(dumps / "mlir/after_all.log")
    before: dict[str, DumpStage] = {}
    for stage in dump.stages:
        same = stage.anchor in before and read_text(dump, before[stage.anchor]) == read_text(dump, stage)
        assert stage.changed != same
        before[stage.anchor] = stage
    bufferize = next(stage for stage in dump.stages if stage.title == "one-shot-bufferize")
    assert dict(bufferize.deltas)["memref.alloc"] == read_text(dump, bufferize).count("memref.alloc()") == 2
    assert dict(bufferize.deltas)["tensor.empty"] < 0
    cse = next(stage for stage in dump.stages if stage.title == "cse")
    assert not cse.changed


def test_a_tree_of_files_has_the_stages_of_the_log_without_its_headers(dumps: Path) -> None:
    tree, single = scanned(dumps / "mlir/tree"), scanned(dumps / "mlir/threads.log")
    for anchor in ("@scale", "@twice", "module"):
        pairs = [
            [(stage.title, stage.digest) for stage in dump.stages if stage.anchor == anchor] for dump in (tree, single)
        ]
        assert pairs[0] == pairs[1]


def test_passes_that_llvm_says_changed_nothing_are_stages_too(dumps: Path) -> None:
    every, changed = scanned(dumps / "llvm/after_all.log"), scanned(dumps / "llvm/changed.log")
    of_sum = [(stage.title, stage.changed) for stage in changed.stages if stage.ran_on == "@sum"]
    assert ("SROAPass", True) in of_sum
    assert ("EarlyCSEPass", False) in of_sum
    of_all = [stage.title for stage in every.stages if stage.ran_on == "@sum" and stage.anchor == "@sum"]
    assert [title for title, _ in of_sum][: len(of_all) // 2] == of_all[: len(of_all) // 2]
    assert any("printed no IR" in note for note in changed.notes)


def test_the_stages_of_irees_phases_are_in_order(dumps: Path) -> None:
    found = titles(scanned(dumps / "iree/phases"))
    assert found[:3] == ["input", "abi", "preprocessing"]
    assert found[-2:] == ["hal", "vm"]
    assert found.index("flow") < found.index("stream") < found.index("executable-targets")


def test_a_kernel_of_triton_goes_from_its_ir_to_machine_code(dumps: Path) -> None:
    dump = scanned(dumps / "triton/kernels")
    assert titles(dump) == ["ttir", "ttgir", "llir", "ptx", "sass"]
    assert [stage.language for stage in dump.stages] == ["mlir", "mlir", "llvm", "ptx", "asm"]
    assert any("cubin" in note for note in dump.notes)


def test_the_modules_of_xla_go_from_stablehlo_to_llvm_ir(dumps: Path) -> None:
    dump = scanned(dumps / "xla/hlo")
    (module,) = dump.graph_names
    assert module == "module_0000.jit_mlp"
    phases = list(dict.fromkeys(stage.phase for stage in dump.stages))
    assert phases == ["stablehlo", "hlo", "llvm", "reports"]
    hlo = [stage for stage in dump.stages if stage.phase == "hlo"]
    assert (hlo[0].title, hlo[-1].title) == ("before_optimizations", "cpu_after_optimizations")
    assert any(stage.title == "simplification/algsimp" and stage.changed for stage in hlo)
    assert any(not stage.changed for stage in hlo)
    assert dict(next(stage.deltas for stage in hlo if stage.title.endswith("/fusion")))["fusion"] > 0


def test_the_graphs_and_the_code_of_inductor_are_stages(dumps: Path) -> None:
    folder = scanned(dumps / "inductor/debug")
    assert titles(folder)[:5] == [
        "fx_graph_readable",
        "fx_graph_transformed",
        "ir_pre_fusion",
        "ir_post_fusion",
        "output_code",
    ]
    printed = scanned(dumps / "inductor/torch_logs.log")
    assert {"graph_code", "aot_graphs", "post_grad_graphs", "output_code"} <= set(titles(printed))
    assert printed.graph_names == ["0/0"]
    code = next(stage for stage in printed.stages if stage.title == "output_code")
    assert "[__output_code]" not in read_text(printed, code)
    assert "cpp_fused" in read_text(printed, code)
    traced = scanned(dumps / "inductor/trace")
    assert {"dynamo_output_graph", "inductor_post_grad_graph", "inductor_output_code"} <= set(titles(traced))
    graph = next(stage for stage in traced.stages if stage.title == "inductor_post_grad_graph")
    assert "torch.ops.aten.mm.default" in read_text(traced, graph)
    assert not read_text(traced, graph).startswith("\t")


@pytest.mark.parametrize(
    ("path", "title", "line", "place"),
    [
        ("mlir/after_all.log", "one-shot-bufferize", r"memref\.alloc", "in.mlir:2"),
        ("triton/kernels", "ttgir", r"tt\.store", "/example/kernel.py:9"),
        ("triton/kernels", "llir", r"call .*st\.global", "/example/kernel.py:9"),
        ("triton/kernels", "ptx", r"st\.global", "/example/kernel.py:9"),
        ("xla/hlo", "cpu_after_optimizations", r"tanh\(", "/example/mlp.py:4"),
        ("inductor/debug", "fx_graph_readable", r"aten\.mm", "/example/softmax.py:5"),
    ],
)
def test_lines_name_the_source_lines_that_they_come_from(
    path: str, title: str, line: str, place: str, dumps: Path
) -> None:
    dump = scanned(dumps / path)
    stage = next(stage for stage in dump.stages if stage.title == title)
    text = indexed_text(dump, stage)
    numbers = [number for number in range(text.line_count) if re.search(line, text.line(number))]
    assert numbers
    assert any(place in text.sets[text.line_sets[number]] for number in numbers)


def test_places_of_inlined_code_are_those_of_the_call_too() -> None:
    text = '#loc1 = loc("a.py":3:1)\n#loc2 = loc("b.py":9:5)\n  foo.op loc(callsite(#loc1 at #loc2))\n'
    assert find_source_lines(text, "mlir")[2] == ("a.py:3", "b.py:9")
    assert [row.location for row in source_line_rows(["b.py:10", "b.py:9", "a.py:3"])] == [
        "a.py:3",
        "b.py:9",
        "b.py:10",
    ]


def test_a_location_that_refers_to_itself_ends() -> None:
    assert (
        find_source_lines("#loc1 = loc(fused[#loc1, #loc2])\n#loc2 = loc(#loc1)\n  foo.op loc(#loc1)\n", "mlir")[2]
        == ()
    )


# ---- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "title", "ran_on"),
    [
        ("// -----// IR Dump After Canonicalizer (canonicalize) //----- //", "canonicalize", ""),
        ("// -----// IR Dump After CSE (cse) ('func.func' operation: @f) //----- //", "cse", "@f"),
        ("// -----// IR Dump Before CSEPass: cse ('builtin.module' operation) //----- //", "before cse", "module"),
        ("// -----// IR Dump After A (a) Failed ('func.func' operation: @f) //----- //", "a", "@f"),
        ("// -----// IR Dump After (anonymous namespace)::MyPass //----- //", "(anonymous namespace)::MyPass", ""),
        ("// -----// SoftwarePipeliner internal IR Dump After: LowerLoops", "SoftwarePipeliner: LowerLoops", ""),
        ("; *** IR Dump After SROAPass on f ***", "SROAPass", "@f"),
        ("*** IR Dump After LICMPass on loop %loop in function f ***", "LICMPass", "@f"),
        ("; *** IR Dump After InlinerPass on (f) ***", "InlinerPass", "@f"),
        ("*** IR Dump After InlinerPass on (f, g) ***", "InlinerPass", "@f, @g"),
        ("*** IR Pass LoopRotatePass on f ignored ***", "LoopRotatePass", "@f"),
        ("*** IR Pass PassManager<Function> on [module] ignored ***", "PassManager<Function>", "module"),
        ("*** IR Pass InlinerPass invalidated ***", "InlinerPass", ""),
        ("*** IR Dump At Start ***", "start", ""),
        ("# *** IR Dump After Finalize ISel (finalize-isel) ***:", "finalize-isel", "module"),
    ],
)
def test_headers_of_all_versions_are_read(line: str, title: str, ran_on: str) -> None:
    header = read_header(line.encode())
    assert header is not None
    assert (header.title, header.ran_on) == (title, ran_on)
    assert header.failed == (" Failed" in line)
    assert header.has_no_ir == any(word in line for word in ("ignored", "invalidated"))


@pytest.mark.parametrize(
    "line", ["// -----// IR Dump", "the IR Dump After the pass", "*** IR ***", '"// IR Dump After"']
)
def test_other_lines_are_no_headers(line: str) -> None:
    assert read_header(line.encode()) is None


@pytest.mark.parametrize(
    ("head", "anchor"),
    [
        ("func.func private @f(%a: i32) {", "@f"),
        ("#map = affine_map<() -> ()>\n\nmodule attributes {a = 1} {", "module"),
        ("module @m {", "@m"),
        ('"func.func"() <{function_type = () -> (), sym_name = "f"}> ({', "@f"),
        ("tt.func public @kernel(%x: i32)", "@kernel"),
        ("gpu.module @kernels {", "@kernels"),
    ],
)
def test_what_mlir_is_of_is_read_from_its_first_line(head: str, anchor: str) -> None:
    assert anchor_of(head.encode(), "mlir", "") == anchor


# ---- chunks and growing logs -----------------------------------------------------------------------------------------


def index_of(dump: Dump) -> list[tuple[object, ...]]:
    return [(s.title, s.anchor, s.offset, s.length, s.lines, s.digest, s.changed, s.deltas) for s in dump.stages]


@pytest.mark.parametrize("size", [1000, 4096])
@pytest.mark.parametrize("path", ["mlir/after_all.log", "llvm/changed.log", "inductor/torch_logs.log", "xla/hlo"])
def test_the_index_does_not_depend_on_the_size_of_the_chunks(
    path: str, size: int, dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = index_of(scanned(dumps / path))
    monkeypatch.setattr(logs, "CHUNK_BYTES", size)
    assert index_of(scanned(dumps / path)) == expected


def test_a_deleted_log_is_not_current(dumps: Path, tmp_path: Path) -> None:
    path = tmp_path / "deleted.log"
    path.write_bytes((dumps / "mlir/threads.log").read_bytes())
    scan = DumpScan(path, "log")
    for _ in scan.index():
        pass
    assert scan.is_current()
    path.unlink()
    assert not scan.is_current()


def test_a_log_that_grows_is_read_on_wherever_it_was_cut(dumps: Path, tmp_path: Path) -> None:
    content = (dumps / "mlir/threads.log").read_bytes()
    path = tmp_path / "growing.log"
    for cut in range(100, len(content), len(content) // 37):
        path.write_bytes(content[:cut])
        scan = DumpScan(path, "log")
        for _ in scan.index():
            pass
        assert scan.is_current()
        with path.open("ab") as file:
            file.write(content[cut:])
        assert not scan.is_current()
        assert scan.can_continue()
        for _ in scan.index():
            pass
        assert index_of(scan.dump) == index_of(scanned(path))
        assert scan.dump.graph_names == scanned(path).graph_names


def test_a_log_that_was_replaced_is_another_one(dumps: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes((dumps / "mlir/threads.log").read_bytes())
    scan = DumpScan(path, "log")
    for _ in scan.index():
        pass
    path.write_bytes(mlir("cse", "module {\n}"))
    assert not scan.can_continue()
    with pytest.raises(OSError, match="shorter"):
        read_text(scan.dump, scan.dump.stages[-1])


@pytest.mark.parametrize("added", [b"", b"// and more\n"], ids=["of equal size", "longer"])
def test_a_log_that_was_rewritten_is_another_one(added: bytes, dumps: Path, tmp_path: Path) -> None:
    content = (dumps / "mlir/threads.log").read_bytes()
    path = tmp_path / "a.log"
    path.write_bytes(content)
    scan = DumpScan(path, "log")
    for _ in scan.index():
        pass
    changed = scan.dump.stages[len(scan.dump.stages) // 2]
    middle = changed.offset + changed.length // 2
    with path.open("r+b") as file:  # the same inode, as after `mlir-opt … 2> a.log`
        file.write(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] + added)
    assert not scan.can_continue()
    with pytest.raises(OSError, match="rewritten"):
        read_text(scan.dump, changed)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_a_truncated_log_says_that_its_last_stage_may_be_incomplete(tmp_path: Path) -> None:
    dump = log(tmp_path, mlir("cse", "module {\n}") + mlir("inline", "module {\n  func.func @f() {\n    foo.bar")[:-2])
    assert titles(dump) == ["cse", "inline"]
    assert dump.notes == ["the log ends inside its last stage, inline, which may be incomplete"]
    assert "foo.bar" in read_text(dump, dump.stages[-1])


def test_output_before_the_first_header_and_in_front_of_a_header_is_shown(tmp_path: Path) -> None:
    content = (
        b"warning: x\nwarning: y\n" + mlir("cse", "module {\n}").rstrip() + b"remark: z" + mlir("inline", "module {\n}")
    )
    dump = log(tmp_path, content)
    assert titles(dump) == ["output", "cse", "inline"]
    assert read_text(dump, dump.stages[0]) == "warning: x\nwarning: y\n"
    assert "remark: z" in read_text(dump, dump.stages[1])


def test_a_log_of_two_compilers_has_the_stages_of_both(tmp_path: Path) -> None:
    ll = b"; *** IR Dump After SROAPass on f ***\ndefine void @f() {\n  ret void\n}\n"
    dump = log(tmp_path, mlir("cse", "module {\n}") + ll)
    assert [(stage.title, stage.language, stage.anchor) for stage in dump.stages] == [
        ("cse", "mlir", "module"),
        ("SROAPass", "llvm", "@f"),
    ]


def test_control_characters_and_binary_data_are_shown_and_named(tmp_path: Path) -> None:
    body = "module {\r\n  foo.bar \x1b[31mred\x00 \u0085 \ufffd\r\n}"
    dump = log(tmp_path, mlir("cse", body) + mlir("inline", "module {\n}"))
    text = read_text(dump, dump.stages[0])
    assert "\u241b[31mred\u2400" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert text.count("\n") == dump.stages[0].lines
    assert dump.notes == ["the text of cse has binary data in it"]


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    dump = log(tmp_path, b"// -----// IR Dump After A (a) //----- //\nmodule {\n  \xff\xfe\n}\n")
    assert "\ufffd" in read_text(dump, dump.stages[0])


def test_a_header_without_ir_is_named(tmp_path: Path) -> None:
    dump = log(tmp_path, mlir("cse", "") + mlir("inline", "module {\n}"))
    assert titles(dump) == ["inline"]
    assert dump.notes == ["cse has a header without IR"]


def test_a_line_longer_than_a_chunk_is_part_of_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CHUNK_BYTES", 1000)
    body = "module {\n  " + "x" * 10_000 + "\n}"
    dump = log(tmp_path, mlir("cse", body) + mlir("inline", "module {\n}"))
    assert read_text(dump, dump.stages[0]) == body + "\n"
    assert titles(dump) == ["cse", "inline"]


def test_files_of_a_folder_that_are_no_ir_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.ll").write_text("define void @f() {\n  ret void\n}\n")
    (tmp_path / "b.ll").write_bytes(b"BC\xc0\xde\0\0\0")
    (tmp_path / "c.ll").touch()
    (tmp_path / "d.o").write_bytes(b"\x7fELF")
    dump = scanned(tmp_path)
    assert titles(dump) == ["a"]
    assert dump.notes == ["b.ll is a binary file", "c.ll is empty", "no IR of a stage: d.o"]


@pytest.mark.parametrize("content", [b"", b"\x7fELF\0\0", b"PK\x03\x04 IR Dump After", b"hello\n", b"\0" * 100])
def test_other_files_are_no_dumps(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert not is_dump(path)
    assert not is_dump(tmp_path)
    assert not is_dump(tmp_path / "missing")


def test_a_script_that_mentions_a_header_stays_a_script(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(b"# " + mlir("cse", ""))
    assert not is_dump(path)
