"""Measures how much the results of two correct runs of a program may differ, on the program itself.

Each op rounds its result, and later ops may magnify or hide that error. So unless a result is within a few roundings of
eager's, the program also runs in double precision, node by node. The *spread* is the difference of eager from that run.
Compiled code that is as accurate as eager has errors of the same size, with other signs. Three measures of its
difference from eager are compared with those of the spread, and each may be `MULTIPLE` times as large:

- the maximum;
- the root mean square, which shows faults that change every element by less than the maximum error of rounding;
- the root mean square of each row, channel or other slice of at least `MIN_SLICE_ELEMENTS` elements, which shows faults
  in one slice.

The errors of eager may be small by chance, or because it splits its sums. So if a result exceeds a limit, the spreads
of up to `MAX_FURTHER_RUNS` further runs are computed, with random errors of the size of those of sequential sums in
float32 (`runtime.random_rounding`). The result is wrong if it also exceeds the limits of the largest spreads.

PyTorch does not have the ops of an ONNX model. If such a model rounds to integers, the spreads are those of the
reference with errors of the size of roundings in its float ops (`CapturedGraph.disturbed`), and allow integers of 8
bits to differ.

The tolerance of the element type decides where the spread is unusable: for results of fewer than `MIN_ELEMENTS`
elements, for double precision, and for programs that cannot run in double precision. A result beyond that tolerance is
wrong unless the spread allows the difference, for any number of elements.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

from buddy.compiler.protocol import OutputReport
from buddy.compiler.protocol.run_report import ErrorCheck
from buddy.compiler.runtime import saved_spreads
from buddy.compiler.runtime.captured import CapturedGraph, Spread
from buddy.compiler.runtime.compare import (
    EXACT,
    TOLERANCES,
    Tolerance,
    compare,
    index_of_largest_difference,
    tolerance_check,
)
from buddy.compiler.runtime.graph_interpreter import (
    SEED,
    LockstepInterpreter,
    compute_results,
    symbol_values,
)
from buddy.compiler.runtime.positions import allowed_margin, chosen_positions_of
from buddy.compiler.runtime.random_rounding import RandomRoundingInterpreter

# The maximum errors of two equally accurate runs add up to twice the spread if they occur at the same element. The
# value 4 also accepts compiled code whose errors are three times those of eager.
MULTIPLE = 4.0
# If double precision differs from eager by more than this fraction of the result's root mean square, the program takes
# another path there, is not deterministic, or has a meaningless result: one rounding to bfloat16 is 2**-8.
MAX_RELATIVE_SPREAD = 1 / 8
# The numbers of roundings that are always allowed: of sums of products before the result, which compiled code
# accumulates in float32 in another order, and of the result itself, by compiled code and by eager.
ROUNDINGS_OF_SUMS, _ROUNDINGS_OF_RESULT = 16, 2
# For fewer elements, the errors of a few runs are likely to be all small by chance.
MIN_ELEMENTS, MIN_SLICE_ELEMENTS = 64, 16
MAX_FURTHER_RUNS = 3
_NO_SPREAD = Spread(0.0, 0.0)
# The key of the spreads of reduced precisions in `CapturedGraph.further_spreads`; its other keys are seeds.
_PRECISIONS_KEY = -1
# The fraction of the effect of reduced precisions by which all rows of a result may differ.
_SHARE_OF_PRECISION = 1 / 8
_DOUBLE_TYPES = {False: torch.float64, True: torch.complex128}
_log = logging.getLogger("buddy.runner")


def measure_spreads(
    captured: CapturedGraph, expected: Sequence[torch.Tensor], random_state: torch.Tensor | None = None
) -> tuple[Spread, ...]:
    """Returns the spread of each of eager's results, `expected`: its difference from double precision, if finite.

    There is one spread per result, in order; it is 0 for results that are not floats. Spreads are read from disk if an
    earlier run had the same values, else measured once for each `captured`. Returns () if the measurement fails, for
    lack of memory or because an op does not support double precision. `random_state` is the state of torch's generator
    before eager's run; by default, eager started from `SEED`.
    """
    if captured.spreads is None:
        captured.random_state = random_state
        captured.spreads = saved_spreads.find_or_measure(
            captured, expected, lambda: _measure_spreads(captured, expected)
        )
    return captured.spreads


def compare_result(
    captured: CapturedGraph,
    expected: Sequence[torch.Tensor],
    index: int,
    compiled: torch.Tensor | None,
    *,
    equal_nan: bool,
) -> OutputReport:
    """Compares result `index` of `captured` with eager's, which is a tensor of `expected`.

    The limits are those of the spread, if it is usable. Positions are compared by the elements that they select.
    """
    name, eager = captured.names_of_results()[index], expected[index]
    report = compare(name, compiled, eager, equal_nan=equal_nan)
    if compiled is None or report.verdict == "missing" or not math.isfinite(report.max_abs):
        return report
    choice = chosen_positions_of(captured.graph.results[index]) if report.verdict == "mismatch" else None
    if choice is not None:
        margin = allowed_margin(captured, choice, compiled, eager, MULTIPLE)
        limit = f"{margin:.1e} of eager's choice"
        if margin:
            return msgspec.structs.replace(report, verdict="ok", where="", tolerance=limit)
        return msgspec.structs.replace(report, checks=(tolerance_check(compiled, eager),))
    is_close, dtype = report.verdict != "mismatch", report.dtype
    eager, compiled = _as_numbers(captured, eager), _as_numbers(captured, compiled)
    is_result_correct, spread = judge_result(captured, expected, index, compiled, is_close)
    checks = _deciding_checks(compiled, eager, spread, is_close)
    if spread is None:
        return msgspec.structs.replace(report, checks=checks)
    if is_result_correct and not is_close:
        report = compare(name, compiled, eager, allowed_tolerance(eager.dtype, spread), equal_nan=equal_nan)
        report = msgspec.structs.replace(report, dtype=dtype)
    elif is_close and not is_result_correct:
        limit, where = describe_limit(eager.dtype, spread, is_close), index_of_largest_difference(compiled, eager)
        report = msgspec.structs.replace(report, verdict="mismatch", where=where, tolerance=limit)
    rms = measure_difference(compiled, eager).rms
    return msgspec.structs.replace(report, spread=spread.largest, rms=rms, spread_rms=spread.rms, checks=checks)


def _deciding_checks(
    compiled: torch.Tensor, eager: torch.Tensor, spread: Spread | None, is_close: bool
) -> tuple[ErrorCheck, ...]:
    """Returns the checks of the rule by which `judge_result` decided."""
    if spread is None and is_close and _is_rounded(eager):
        checks = _error_checks(compiled, eager, _NO_SPREAD)
        return checks if all(check.ok for check in checks) else (tolerance_check(compiled, eager),)
    if spread is None or not (_is_usable(spread, eager) if is_close else _is_small(spread, eager)):
        return (tolerance_check(compiled, eager),)
    return _error_checks(compiled, eager, spread)


def judge_result(
    captured: CapturedGraph, expected: Sequence[torch.Tensor], index: int, compiled: torch.Tensor, is_close: bool
) -> tuple[bool, Spread | None]:
    """Returns whether result `index` is correct, and the spread that decided; `None` if the tolerance decided.

    `is_close` is true if the result is within its element type's tolerance, which decides for integers, unless they are
    quantised.
    """
    eager, compiled = _as_numbers(captured, expected[index]), _as_numbers(captured, compiled)
    if not _is_rounded(eager) or (is_close and are_few_roundings(compiled, eager)):
        return is_close, None
    all_spreads = measure_spreads(captured, expected)
    if not all_spreads:
        return is_close, None
    spread = all_spreads[index]
    if is_close and not _is_usable(spread, eager):
        return True, spread
    seeds = iter(range(MAX_FURTHER_RUNS))
    while not is_within_spread(compiled, eager, spread):
        seed = next(seeds, None)
        run_spreads = further_spreads(captured, seed) if seed is not None else ()
        if run_spreads:
            spread = spread.maximum_with(run_spreads[index])
        elif captured.precisions:
            spread = spread.maximum_with(_spreads_of_precisions(captured, expected)[index])
            return is_within_spread(compiled, eager, spread), spread
        else:
            return False, spread
    return True, spread


def _as_numbers(captured: CapturedGraph, value: torch.Tensor) -> torch.Tensor:
    """Returns a result of `captured`: as floats if its elements are quantised numbers, else unchanged.

    Roundings may change quantised numbers by a step.
    """
    is_quantised = captured.disturbed is not None and value.dtype in (torch.int8, torch.uint8)
    return value.float() if is_quantised else value


def _spreads_of_precisions(captured: CapturedGraph, expected: Sequence[torch.Tensor]) -> tuple[Spread, ...]:
    """Returns the spreads that reduced precisions allow in any run: fractions of their effect on the results.

    If one number is rounded to few bits in the other direction, one row changes by a fraction of the change that all
    roundings cause. Such rows are rare, and differ from run to run, so the spread of a row may not include them. A row
    may therefore differ by as much as all roundings change it, and all rows together by `_SHARE_OF_PRECISION` of that.
    """
    if _PRECISIONS_KEY not in captured.further_spreads:
        with _generator_from(captured.random_state):
            plain = compute_results(captured.graph, captured.tensors, captured.numbers)
        effects = (measure_difference(*pair) for pair in zip(expected, plain, strict=True))
        captured.further_spreads[_PRECISIONS_KEY] = tuple(
            Spread(
                effect.largest / MULTIPLE, effect.rms * _SHARE_OF_PRECISION / MULTIPLE,
                {dim: rms / MULTIPLE for dim, rms in effect.slices.items()},
            )
            for effect in effects
        )  # fmt: skip
    return captured.further_spreads[_PRECISIONS_KEY]


def is_within_spread(compiled: torch.Tensor, eager: torch.Tensor, spread: Spread) -> bool:
    """True if two correct runs of a program with that spread may have this difference.

    Where eager has NaN, the result must have it too; an infinity equals only itself.
    """
    eager_values = eager.to(_DOUBLE_TYPES[eager.is_complex()])
    compiled_values = compiled.to(eager_values.dtype)
    is_comparable = (
        (compiled_values == eager_values)
        | (compiled_values.isnan() & eager_values.isnan())
        | (compiled_values.isfinite() & eager_values.isfinite())
    )
    if not bool(is_comparable.all()):
        return False
    return _is_small(spread, eager) and all(check.ok for check in _error_checks(compiled, eager, spread))


def _is_small(spread: Spread, eager: torch.Tensor) -> bool:
    """True if a spread is small enough, relative to the result, to be a rounding error."""
    return spread.rms <= MAX_RELATIVE_SPREAD * _magnitude(eager).rms


def _is_usable(spread: Spread, eager: torch.Tensor) -> bool:
    """True if a spread may show that a result within its element type's tolerance is wrong."""
    return spread.is_complete and eager.numel() >= MIN_ELEMENTS and _is_small(spread, eager)


def _error_checks(compiled: torch.Tensor, eager: torch.Tensor, spread: Spread) -> tuple[ErrorCheck, ...]:
    """Returns the checks of the greatest error, of the rms error, and of the rms error of the worst slice of each dim.

    A few roundings are allowed for any spread.
    """
    difference, magnitude = measure_difference(compiled, eager), _magnitude(eager)
    few_roundings = _few_roundings(eager.dtype)

    def make_check(name: str, error: float, error_of_spread: float, size: float, size_name: str) -> ErrorCheck:
        rule = f"{few_roundings:.1e} x {size_name} {size:.2g}"
        if MULTIPLE * error_of_spread > few_roundings * size:
            rule = f"{MULTIPLE:g} x spread {error_of_spread:.1e}"
        return ErrorCheck(name, error, max(MULTIPLE * error_of_spread, few_roundings * size), rule)

    largest_check = make_check(
        "max abs error", difference.largest, spread.largest, magnitude.largest, "greatest |eager|"
    )
    rms_check = make_check("rms error", difference.rms, spread.rms, magnitude.rms, "rms of eager")
    checks = [largest_check, rms_check]
    for dim, rms in difference.slices.items():
        if dim not in spread.slices:
            continue
        limits = (MULTIPLE * spread.slices[dim]).clamp(min=rms_check.allowed)
        worst = int((rms - limits).argmax())
        index = ", ".join(str(worst) if axis == dim else ":" for axis in range(eager.dim()))
        rule = f"{MULTIPLE:g} x spread of the slice, at least the limit of all"
        checks.append(ErrorCheck(f"rms error of [{index}]", float(rms[worst]), float(limits[worst]), rule))
    return tuple(checks)


def are_few_roundings(compiled: torch.Tensor, eager: torch.Tensor) -> bool:
    """True if a result is not rounded, or if a few roundings, which any program may have, explain its differences."""
    if not _is_rounded(eager) or torch.equal(compiled, eager):
        return True
    return all(check.ok for check in _error_checks(compiled, eager, _NO_SPREAD))


def _is_rounded(eager: torch.Tensor) -> bool:
    """True if a run in double precision measures the errors of a result."""
    return eager.dtype in TOLERANCES and eager.dtype not in _DOUBLE_TYPES.values()


def _few_roundings(dtype: torch.dtype) -> float:
    """Returns the size of a few roundings, as a fraction of the result's size."""
    return (ROUNDINGS_OF_SUMS * torch.finfo(torch.float32).eps + _ROUNDINGS_OF_RESULT * torch.finfo(dtype).eps) / 2


def allowed_tolerance(dtype: torch.dtype, spread: Spread) -> Tolerance:
    """Returns the tolerance of an element of a result of `dtype` with that spread."""
    base = TOLERANCES.get(dtype, EXACT)
    return base if base == EXACT else Tolerance(base.absolute, base.relative, base.source, MULTIPLE * spread.largest)


def describe_limit(dtype: torch.dtype, spread: Spread | None, is_close: bool) -> str:
    """Returns the limit that a wrong result exceeds; `is_close` is true if it is within its type's tolerance."""
    if spread is None or not is_close:
        return str(allowed_tolerance(dtype, spread or _NO_SPREAD))
    return f"{MULTIPLE:g} x spread: {MULTIPLE * spread.largest:.2g}, rms {MULTIPLE * spread.rms:.2g}"


def _measure_spreads(captured: CapturedGraph, expected: Sequence[torch.Tensor]) -> tuple[Spread, ...]:
    """Returns the result of `measure_spreads`, without its caches."""
    try:
        if captured.disturbed is not None:
            captured.exact_results = list(expected)
            return _spreads_of_disturbed(captured, 0)
        run = _run_in_double(captured)
    except Exception as error:  # any error of an op, which may be the script's own
        _log.debug("no run in double precision", exc_info=error)
        return ()
    measured = (
        measure_difference(rounded, exact) for rounded, exact in zip(expected, captured.exact_results, strict=True)
    )
    return tuple(spread._replace(is_complete=not run.narrow_nodes) for spread in measured)


def _run_in_double(captured: CapturedGraph) -> LockstepInterpreter:
    """Runs `captured` in double precision, and stores its `exact_results`; returns the finished interpreter."""
    with _generator_from(captured.random_state):
        run = LockstepInterpreter(
            captured.graph, captured.tensors, _symbols(captured), (), "float64", precisions=captured.precisions
        )
        captured.exact_results = run.finish()
    return run


def further_spreads(captured: CapturedGraph, seed: int) -> tuple[Spread, ...]:
    """Returns the spreads of a run with random errors, cached for each `seed`. `measure_spreads` must come first."""
    if seed not in captured.further_spreads:
        try:
            if captured.disturbed is not None:
                # Seed 0 is that of `measure_spreads`.
                captured.further_spreads[seed] = _spreads_of_disturbed(captured, seed + 1)
                return captured.further_spreads[seed]
            if not captured.exact_results:  # the spreads were on disk
                _run_in_double(captured)
            results = _run_with_random_errors(captured, seed)
        except Exception as error:  # any error of an op, as above
            _log.debug("no run with random errors", exc_info=error)
            return ()
        measured = (
            measure_difference(rounded, exact) for rounded, exact in zip(results, captured.exact_results, strict=True)
        )
        captured.further_spreads[seed] = tuple(measured)
    return captured.further_spreads[seed]


def _spreads_of_disturbed(captured: CapturedGraph, seed: int) -> tuple[Spread, ...]:
    """Returns the larger differences from eager of two runs with errors of opposite signs.

    The spreads are not complete, because ops that are not known to sum get errors of only a few roundings.
    """
    assert captured.disturbed is not None
    if not captured.exact_results:  # the spreads were on disk
        assert captured.eager is not None
        captured.exact_results = captured.eager(captured.tensors)
    first_run, second_run = (
        [
            measure_difference(_as_numbers(captured, value), _as_numbers(captured, exact))
            for value, exact in zip(run, captured.exact_results, strict=True)
        ]
        for run in captured.disturbed(captured.tensors, seed)
    )
    return tuple(a.maximum_with(b)._replace(is_complete=False) for a, b in zip(first_run, second_run, strict=True))


def _run_with_random_errors(captured: CapturedGraph, seed: int) -> list[torch.Tensor]:
    """Returns the results of a run that rounds at random, by `seed`."""
    with _generator_from(captured.random_state):
        return RandomRoundingInterpreter(
            captured.graph, captured.tensors, _symbols(captured), seed, captured.precisions
        ).finish()


def _symbols(captured: CapturedGraph) -> dict[str, int]:
    return symbol_values(captured.graph, captured.tensors, captured.numbers)


@contextmanager
def _generator_from(random_state: torch.Tensor | None) -> Iterator[None]:
    """Disables gradients, and sets torch's generator to `random_state`, by default that of `SEED`; restores both."""
    previous = torch.get_rng_state()
    try:
        torch.manual_seed(SEED)
        if random_state is not None:
            torch.set_rng_state(random_state)
        with torch.no_grad():
            yield
    finally:
        torch.set_rng_state(previous)


def measure_difference(rounded: torch.Tensor, exact: torch.Tensor) -> Spread:
    """Returns the size of the differences of elements that are finite in both; 0 for results that are not floats."""
    are_floats = isinstance(rounded, torch.Tensor) and (rounded.is_floating_point() or rounded.is_complex())
    if not are_floats or not rounded.numel():
        return _NO_SPREAD
    dtype = _DOUBLE_TYPES[rounded.is_complex()]
    values, reference = rounded.detach().to(dtype), exact.detach().to(dtype)
    are_finite = values.isfinite() & reference.isfinite()
    if not bool(are_finite.any()):
        return _NO_SPREAD
    squares = torch.where(are_finite, (values - reference).abs(), 0.0).square()
    shape = squares.shape
    dims = [dim for dim, size in enumerate(shape) if size > 1 and squares.numel() // size >= MIN_SLICE_ELEMENTS]
    slices = {dim: squares.movedim(dim, 0).flatten(1).mean(1).sqrt() for dim in dims}
    return Spread(math.sqrt(float(squares.max())), math.sqrt(float(squares.sum() / are_finite.sum())), slices)


def _magnitude(tensor: torch.Tensor) -> Spread:
    """Returns the measures of a spread for the elements of a tensor themselves."""
    return measure_difference(tensor, torch.zeros_like(tensor))
