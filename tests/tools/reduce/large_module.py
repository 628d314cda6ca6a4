"""A module of about 500 ops with one place for each fault of `planted_compiler.py`."""

import random

_MATRIX = "tensor<16x16xf32>"
_BINARY = ("arith.addf", "arith.mulf", "arith.subf", "arith.maximumf")
_UNARY = ("math.exp", "math.absf", "math.sin", "arith.negf")

_PLACES = f"""
    %transposed = linalg.generic {{indexing_maps = [#swap, #id], iterator_types = ["parallel", "parallel"]}}
        ins(IN : {_MATRIX}) outs(IN : {_MATRIX}) {{
    ^bb0(%x: f32, %y: f32):
      %z = arith.addf %x, %y : f32
      linalg.yield %z : f32
    }} -> {_MATRIX}
    %loop = scf.for %i = %zero to %n step %one iter_args(%carried = %transposed) -> ({_MATRIX}) {{
      %inner = scf.for %j = %zero to %i step %one iter_args(%more = %carried) -> ({_MATRIX}) {{
        %less = arith.cmpi slt, %j, %i : index
        %chosen = scf.if %less -> ({_MATRIX}) {{
          %sum = arith.addf %more, %carried : {_MATRIX}
          scf.yield %sum : {_MATRIX}
        }} else {{
          scf.yield %more : {_MATRIX}
        }}
        scf.yield %chosen : {_MATRIX}
      }}
      scf.yield %inner : {_MATRIX}
    }}
---
    %e = math.exp IN : {_MATRIX}
    %root = math.sqrt %e : {_MATRIX}
    %tanh = math.tanh %root {{planted.key = 13 : i64, planted.other = "text"}} : {_MATRIX}
---
    %seven = tensor.empty() : tensor<3x7xf32>
    %two:2 = linalg.generic {{indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}}
        ins(%seven : tensor<3x7xf32>) outs(%rows, %rows : tensor<3xf32>, tensor<3xf32>) {{
    ^bb0(%x: f32, %y: f32, %w: f32):
      %z = arith.addf %x, %y : f32
      %m = arith.maximumf %x, %w : f32
      linalg.yield %z, %m : f32, f32
    }} -> (tensor<3xf32>, tensor<3xf32>)
---
    %numbers = arith.constant dense<[1, 2, 3, 4]> : tensor<4xi32>
    %more_numbers = arith.addi %four, %numbers : tensor<4xi32>
---
    %weird = "weird.op"(IN, %n) ({{
      %t = "weird.inner"(IN) : ({_MATRIX}) -> {_MATRIX}
      "weird.end"(%t) : ({_MATRIX}) -> ()
    }}) {{how = "strange"}} : ({_MATRIX}, index) -> {_MATRIX}
---
    %called = func.call @first(IN, %n) : ({_MATRIX}, index) -> {_MATRIX}
"""

_OTHERS = f"""
  func.func private @first(%a: {_MATRIX}, %n: index) -> {_MATRIX} {{
    %b = arith.addf %a, %a : {_MATRIX}
    %c = func.call @second(%b, %n) : ({_MATRIX}, index) -> {_MATRIX}
    return %c : {_MATRIX}
  }}
  func.func private @second(%a: {_MATRIX}, %n: index) -> {_MATRIX} {{
    %zero = arith.constant 0 : index
    %is_zero = arith.cmpi eq, %n, %zero : index
    cf.cond_br %is_zero, ^end(%a : {_MATRIX}), ^more(%a, %n : {_MATRIX}, index)
  ^more(%b: {_MATRIX}, %unused: index):
    %c = func.call @first(%b, %n) : ({_MATRIX}, index) -> {_MATRIX}
    cf.br ^end(%c : {_MATRIX})
  ^end(%d: {_MATRIX}):
    %e = math.absf %d : {_MATRIX}
    return %e : {_MATRIX}
  }}
"""


def large_module(seed: int = 0, ops: int = 450) -> str:
    """Returns the text of the module; `ops` is the number of random elementwise ops around the places."""
    choose = random.Random(seed)
    values, lines = ["%a", "%b"], []
    places = [text.strip("\n") for text in _PLACES.split("---\n")]
    spots = {(number + 1) * ops // (len(places) + 1): place for number, place in enumerate(places)}
    for number in range(ops):
        if number in spots:
            place = spots[number].replace("IN", values[-1])
            lines.append(place)
            name = next((name for name in ("%loop", "%tanh", "%weird", "%called") if f"{name} =" in place), "")
            values += [name] if name else []
        recent, op = values[-6:], choose.choice(_BINARY + _UNARY)
        operands = [choose.choice(recent) for _ in range(1 + (op in _BINARY))]
        lines.append(f"    %v{number} = {op} {', '.join(operands)} : {_MATRIX}")
        values.append(f"%v{number}")
    body = "\n".join(lines)
    return f"""
#id = affine_map<(d0, d1) -> (d0, d1)>
#swap = affine_map<(d0, d1) -> (d1, d0)>
#row = affine_map<(d0, d1) -> (d0)>
module {{
  func.func @main(%a: {_MATRIX}, %b: {_MATRIX}, %n: index, %rows: tensor<3xf32>, %four: tensor<4xi32>) -> {_MATRIX} {{
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
{body}
    return {values[-1]} : {_MATRIX}
  }}
{_OTHERS}
}}
"""
