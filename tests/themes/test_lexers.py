"""The lexers: what a line is cut into, that nothing is lost, and that every line can be read by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from buddy.themes.lexers import open_string, python_spans, spans

LINES = {
    "mlir": [
        "  %12 = linalg.matmul ins(%9, %11 : tensor<128x768xf32>, tensor<768x?xf32>) outs(%10 : tensor<128x768xf32>)",
        '  "tosa.yield"(%3) {name = "a\\"b", #map = affine_map<(d0) -> (d0 + 1)>} : (!tosa.shape<2>) -> ()',
        "^bb1(%arg0: vector<[4]x8xbf16>):  // 2 preds: ^bb0",
        "  %cst = arith.constant dense<-1.000000e+00> : memref<1xf32, strided<[1], offset: ?>>",
    ],
    "llvm": [
        "define void @forward(ptr noalias %0, <16 x float> %v) local_unnamed_addr #0 {",
        "  %5 = tail call <16 x float> @llvm.fma.v16f32(<16 x float> %1, float 0x7FF0000000000000), !dbg !5",
        "vector.body:                                      ; preds = %vector.body",
    ],
    "asm": [
        ".LBB0_1:                                # %vector.body",
        "        vfmadd231ps     zmm1, zmm2, zmmword ptr [rax + 4*rcx]",
        "  1f30: 62 f1 7c 48 58 c1   vaddps zmm0, zmm0, zmm1",
        "        fmla    v0.4s, v1.4s, v2.s[0]",
        '        .section        ".note.GNU-stack","",@progbits',
        "     e96  vmulps          zmm5, zmm5, zmm0",
    ],
    "ptx": [
        ".visible .entry forward_kernel(",
        "        .param .u64 .ptr .align 1 forward_kernel_param_0",
        "        ld.global.b32   %r20, [%rd16+-200];",
        "        @%p1 bra        $L__BB0_2;",
        "$L__BB0_2:                              // in the loop",
        "        mul.rn.f32      %r43, %r42, 0f3F000000;",
        "        mov.u32         %r2, %ctaid.x;",
    ],
    "fx": [
        "opcode         name    target             args             kwargs",
        "-------------  ------  -----------------  ---------------  --------",
        "call_function  mm_3    aten.mm.default    (view_1, t_3)    {'dtype': torch.float32}",
    ],
    "python": [
        "    def forward(self, x: torch.Tensor) -> torch.Tensor:",
        "        if x is not None and y in names: return self.linear(x)",
        "        else:",
        "    @property",
        "        y = f'{x!r}' + \"a # b\"  # a comment",
    ],
    "buddy": ["graph forward {", "  mm_3 = MatmulOp(view_1, t_3, alpha=1.0) : 128x768xf32"],
}


@pytest.mark.parametrize(("language", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
def test_nothing_of_a_line_is_lost(language: str, line: str) -> None:
    assert "".join(text for _, text in spans(language, line)) == line


def names_of(language: str, line: str) -> dict[str, str]:
    return {text.strip(): name for name, text in spans(language, line)}


def test_mlir_tells_operations_values_types_and_symbols_apart() -> None:
    found = names_of("mlir", LINES["mlir"][0])
    assert found["%12"] == "value"
    assert found["linalg.matmul"] == "operation"
    assert found["tensor<128x768xf32>"] == "type"
    assert names_of("mlir", "  call @forward(%0) : (index) -> ()")["@forward"] == "symbol"


@pytest.mark.parametrize(
    "text", ["memref<4x?xf32, strided<[?, 1], offset: ?>>", "!llvm.struct<(ptr, array<2 x i64>)>", "tensor<2xi8, #map>"]
)
def test_a_type_is_one_thing_however_deep(text: str) -> None:
    assert names_of("mlir", f"  %0 = foo.bar : {text}")[text] == "type"


def test_a_type_that_ends_on_another_line_still_shows_its_kind() -> None:
    assert names_of("mlir", "  %0 = foo.bar : tensor<4x")["tensor"] == "type"


def test_an_operation_in_generic_form_is_an_operation_and_a_string_is_a_string() -> None:
    found = names_of("mlir", '  "tosa.yield"(%3) {name = "plain"}')
    assert found['"tosa.yield"'] == "operation"
    assert found['"plain"'] == "string"


def test_ptx_tells_instructions_registers_types_and_labels_apart() -> None:
    load, jump = names_of("ptx", LINES["ptx"][2]), names_of("ptx", LINES["ptx"][3])
    assert (load["ld.global.b32"], load["%r20"], load["200"]) == ("operation", "value", "number")
    assert jump["@%p1"] == "attribute"
    assert names_of("ptx", LINES["ptx"][1])[".u64"] == "type"
    assert names_of("ptx", LINES["ptx"][0])[".visible .entry"] == "keyword"
    assert names_of("ptx", LINES["ptx"][4])["$L__BB0_2:"] == "label"
    assert names_of("ptx", LINES["ptx"][5])["0f3F000000"] == "number"


def test_llvm_operations_differ_from_keywords() -> None:
    found = names_of("llvm", "  %5 = getelementptr inbounds float, ptr %1, i64 4")
    assert found["getelementptr"] == "operation"
    assert found["inbounds"] == "keyword"
    assert names_of("llvm", LINES["llvm"][2])["vector.body:"] == "label"


def test_assembly_mnemonics_and_registers_on_two_machines() -> None:
    x86, arm = names_of("asm", LINES["asm"][1]), names_of("asm", LINES["asm"][3])
    assert x86["vfmadd231ps"] == arm["fmla"] == "operation"
    assert x86["zmm1"] == arm["v0.4s"] == "value"


def test_a_disassembly_s_address_is_a_number_and_a_mnemonic_never_is() -> None:
    assert names_of("asm", "     eae  vmaxps          zmm7, zmm2, zmm7")["eae"] == "number"
    assert names_of("asm", "     eae  vmaxps          zmm7, zmm2, zmm7")["vmaxps"] == "operation"
    assert names_of("asm", "        dec     rax")["dec"] == "operation"


def test_a_graph_row_names_its_opcode_node_and_target() -> None:
    found = names_of("fx", LINES["fx"][2])
    assert (found["call_function"], found["mm_3"], found["aten.mm.default"]) == ("keyword", "value", "operation")
    assert names_of("buddy", LINES["buddy"][1])["MatmulOp"] == "operation"


def test_python_tells_keywords_definitions_and_comments_apart() -> None:
    definition, condition, otherwise, decorator, strings = LINES["python"]
    assert names_of("python", definition) | {"": ""} == {
        "": "", "def": "keyword", "forward": "symbol", "(": "punctuation", "self": "value", ",": "punctuation",
        "x": "", ":": "punctuation", "torch": "", ".": "punctuation", "Tensor": "", ") ->": "punctuation",
    }  # fmt: skip
    found = names_of("python", condition)
    assert all(found[word] == "keyword" for word in ("if", "is not None and", "in", "return"))
    assert names_of("python", otherwise) == {"": "", "else": "keyword", ":": "punctuation"}
    assert names_of("python", decorator)["@property"] == "attribute"
    found = names_of("python", strings)
    assert (found['"a # b"'], found["# a comment"]) == ("string", "comment")


def test_a_string_of_python_that_is_open_colours_the_lines_after_it() -> None:
    lines = ['    """if one', "    # ''''", '    else \\"""', '    def""" + x', "x = 1"]
    quotes, found = "", []
    for line in lines:
        found.append(python_spans(line, quotes))
        quotes = open_string(line, quotes)
    names = [[name for name, _ in runs] for runs in found]
    assert names == [
        ["", "string"],
        ["string"],
        ["string"],
        ["string", "", "punctuation", ""],
        ["", "punctuation", "number"],
    ]
    assert ["".join(text for _, text in runs) for runs in found] == lines


@pytest.mark.parametrize(
    ("line", "quotes"),
    [('# """', ""), ('\'"""\'', ""), ("x = '''a", "'''"), ('"""a""" + """', '"""'), ('""', ""), ("'it''s' \"", "")],
)
def test_the_string_that_a_line_leaves_open(line: str, quotes: str) -> None:
    assert open_string(line) == quotes


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ValueError, match="cobol"):
        spans("cobol", "x")


def test_lexers_and_palette_do_not_import_textual() -> None:
    code = (
        "import sys; from buddy.themes import lexers, palette; palette.themes();"
        "[lexers.lexer_for(x) for x in ('fx', 'mlir', 'llvm', 'asm')];"
        "sys.exit(any(m.partition('.')[0] in ('textual', 'rich', 'torch', 'torch_mlir') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
