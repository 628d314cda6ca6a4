"""The result of running a graph and comparing it with eager, and frames that read the tensors of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.plain_values import Assignment
from buddy.compiler.protocol.recipe import EAGER, NATIVE, Backend


class InputChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inputs of a run: the script's own, random ones from `seed`, or those in the file `title`.

    `content` is the content of the client's file: a `.npy`, `.npz` or `.pt`.
    """

    kind: Literal["script", "random", "file"] = "script"
    seed: int = 0
    title: str = ""
    content: bytes = b""

    def __str__(self) -> str:
        descriptions = {"script": "the script's own inputs", "random": f"random inputs, seed {self.seed}"}
        return descriptions.get(self.kind, f"inputs from {self.title}")


OWN_INPUTS = InputChoice()


class ErrorCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition of a verdict: `error` is at most `allowed`. `metric` names the error, `rule` explains the limit."""

    metric: str = msgspec.field(name="what")
    error: float
    allowed: float
    rule: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed


class OutputReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The comparison of one output with eager.

    `where` is the first index that differs by more than the element type's tolerance. If the output is wrong although
    every element is within this tolerance, it is the index of the greatest difference.

    The verdict `nan` means that the output has NaN at the same indices as eager's and is right elsewhere, in a run
    without `equal_nan`. `nans` and `eager_nans` are the numbers of NaN elements of both; `zero_signs` is the number of
    zeros whose sign differs from eager's, which does not affect the verdict.

    `spread` is the difference that two correct runs may have, as `runtime.sensitivity` measures it; it is -1 if it was
    not measured, because the output differs from eager's by a few roundings only. `rms` and `spread_rms` are the root
    mean squares of the differences and of the spread.

    `checks` are the conditions of the rule that decided the verdict. `max_rel` is the greatest relative error of the
    elements whose magnitude in eager is above `rel_floor`; it is at index `rel_where`, where eager's element has the
    magnitude `rel_size`. No rule limits it.

    If nodes multiply in a reduced precision, the comparison is with the same arithmetic in PyTorch, and
    `precision_error` is the difference of that arithmetic from eager: the root mean square, divided by that of eager.

    `low`, `high`, `mean` and `deviation` (standard deviation) are those of the finite elements; `histogram` counts them
    in bins from `low` to `high`. `map` holds the greatest absolute difference in each block, in rows along the last
    dim.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    verdict: Literal["ok", "mismatch", "missing", "unchecked", "nan"]
    tolerance: str = ""
    where: str = ""
    nans: int = 0
    infs: int = 0
    max_ulp: float = 0.0
    histogram: tuple[int, ...] = ()
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0
    zeros: int = 0
    map: tuple[tuple[float, ...], ...] = ()
    eager_nans: int = 0
    zero_signs: int = 0
    spread: float = -1.0
    rms: float = -1.0
    spread_rms: float = -1.0
    checks: tuple[ErrorCheck, ...] = ()
    rel_where: str = ""
    rel_size: float = 0.0
    rel_floor: float = 0.0
    precision_error: float = -1.0


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The seconds per run over `runs` repetitions: the median, and the lower and upper quartiles `low` and `high`."""

    median: float
    low: float
    high: float
    runs: int
    threads: int = 1


class MemoryUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Peak memory in bytes of one run, including results: of compiled code, and of eager.

    `packed` is the size of packed weights, which persist between runs and are not in the other numbers. Weights and
    inputs are not counted: `weights` is the size of the weights, of which all processes share one copy. `arena` is the
    part of `compiled` that is planned at compile time. `code` is the size of the object files.
    """

    compiled: int
    eager: int
    packed: int = 0
    weights: int = 0
    arena: int = 0
    code: int = 0


class MachineLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load of the machine during a timing.

    `average` is the load average of the last minute, in processes; `others` is the number of cores that other processes
    used, of the `cores` available to this process; `waited` is the share (0..1) of the time in which threads of this
    process were ready to run and had no core. These three are -1 if unavailable; `others` is also -1 if the timing was
    too short to measure it. `megahertz` is the clock rate of the cores, 0 if unavailable.
    """

    average: float
    others: float
    cores: int
    megahertz: float = 0.0
    waited: float = -1.0

    @property
    def disturbs(self) -> bool:
        """Whether the load affects timings: others used a tenth of a core or more, or this process waited 2 %."""
        return self.others >= 0.1 or self.waited >= 0.02


# Other runtimes that a program can be compared with, by the names of their Python packages.
ONNX_RUNTIME, OPENVINO = "onnxruntime", "openvino"
RUNTIMES = {ONNX_RUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}
# Which intermediate values of another runtime are compared: "auto" searches for the first that differs if a result
# differs, "all" compares all of them, which prevents the runtime's fusions.
Mark = Literal["auto", "none", "all"]


class Divergence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first node whose value in another runtime differs from eager's, by its stable name; "" if all match.

    `output` compares its value, and `operands` are the nearest nodes before it that were compared; they match. If the
    `kind` is "fusion", the results match if the runtime also returns the value of the node, so the runtime's fusion
    across that node is the cause, and `output` is `None`. `runs` is the number of calls that returned intermediate
    values. `marked` has the comparisons of all nodes, if requested.
    """

    node: str
    kind: Literal["node", "fusion"] = "node"
    output: OutputReport | None = None
    operands: tuple[str, ...] = ()
    runs: int = 0
    seconds: float = 0.0
    marked: tuple[OutputReport, ...] = ()


class SideReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of another backend's code, or another runtime, in the same run, with interleaved timings.

    `problem` is the reason if the backend or runtime failed, else "". For a runtime, `compile_seconds` is the time of
    the export, and `divergence` the first node that differs, if there was a search for it; `note` says why the search
    failed.
    """

    name: Backend
    outputs: tuple[OutputReport, ...] = ()
    timing: Timing = Timing(0.0, 0.0, 0.0, 0)
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    problem: str = ""
    divergence: Divergence | None = None
    note: str = ""

    @property
    def max_abs(self) -> float:
        """The greatest difference of any output from eager."""
        return max((output.max_abs for output in self.outputs), default=0.0)

    @property
    def verdict(self) -> str:
        """The worst verdict of its outputs, `unchecked` without outputs."""
        verdicts = {output.verdict for output in self.outputs}
        return next((verdict for verdict in ("mismatch", "missing", "nan", "ok") if verdict in verdicts), "unchecked")


class NodeCounts(NamedTuple):
    """The numbers of compiled nodes and of nodes in eager, and how many compiled nodes have a slow or an error path.

    `precisions` lists the nodes that multiply in a reduced precision, each with the precision.
    """

    compiled: int
    eager: int
    slow_paths: int = 0
    error_paths: int = 0
    precisions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, assignments: Sequence[Assignment]) -> NodeCounts:
        """Counts the nodes of a compiled graph."""
        eager = sum(assignment.lowering == EAGER for assignment in assignments)
        slow_paths = sum(bool(assignment.slow_path) for assignment in assignments)
        error_paths = sum(bool(assignment.error_path) for assignment in assignments)
        precisions = tuple(
            (assignment.node, assignment.precision) for assignment in assignments if assignment.precision
        )
        return cls(len(assignments) - eager, eager, slow_paths, error_paths, precisions)


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of running a graph and comparing it with eager.

    If the run was not compared (`compared` is false), the verdict of each output is `unchecked`. `ratio` is the time of
    compiled code divided by that of eager. `sides` are the results of other backends in the same run. `equal_nan` says
    whether NaN counts as equal to NaN; `load` is that of the machine during the timings. `slow_paths` and `error_paths`
    count the compiled nodes whose code may call eager (see `Assignment`).
    """

    graph: int
    outputs: tuple[OutputReport, ...]
    compiled: Timing
    eager: Timing
    nodes_compiled: int
    nodes_eager: int
    compile_seconds: float
    load_seconds: float = 0.0
    ratio: float = 0.0
    inputs_unchanged: bool = True
    notes: tuple[str, ...] = ()
    memory: MemoryUse | None = None
    backend: Backend = NATIVE
    sides: tuple[SideReport, ...] = msgspec.field(default=(), name="beside")
    compared: bool = True
    load: MachineLoad | None = None
    equal_nan: bool = False
    slow_paths: int = 0
    error_paths: int = 0

    @property
    def beside(self) -> tuple[SideReport, ...]:
        """The name of `sides` in version 0.1, for scripts."""
        return self.sides

    @property
    def not_compared(self) -> str:
        """The reason why the run was not compared with a reference, "" if it was."""
        if not self.compared:
            return "there is no eager program"
        return "" if self.outputs else "the graph returns no tensor"

    @property
    def ok(self) -> bool:
        """Whether there is an output, every output was compared and is right, and the inputs are unchanged."""
        if self.not_compared or not self.inputs_unchanged:
            return False
        return all(output.verdict == "ok" for output in self.outputs)

    @property
    def word(self) -> str:
        """The verdict in one or two words."""
        if self.wrong:
            only_nan = self.inputs_unchanged and all(output.verdict in ("ok", "nan") for output in self.outputs)
            return "NaN" if only_nan else "MISMATCH"
        return "not compared" if self.not_compared else "ok"

    @property
    def wrong(self) -> bool:
        """Whether an input was changed, or an output is wrong or has NaN. False without a comparison."""
        return not self.inputs_unchanged or any(output.verdict not in ("ok", "unchecked") for output in self.outputs)


ValueKind = Literal["input", "output", "eager", "difference"]
Element = bool | int | float | str


class ListValues(Request["ValueList"], frozen=True):
    """List the tensors of the latest run of graph number `graph` with `store_values`; answered by `ValueList`."""

    graph: int = 0


class FetchValues(Request["Values"], frozen=True):
    """Get a window of a tensor; answered by `Values`.

    `slices` is an index as in `tensor[0, :, 3:8]`, such as `0, :, 3:8`; "" selects the whole tensor. The selected
    elements form a matrix, whose columns are the last dim. A `difference` is the output minus eager's.
    """

    graph: int
    kind: ValueKind
    name: str
    slices: str = ""
    row: int = 0
    rows: int = 50
    column: int = 0
    columns: int = 20


class MapDifferences(Request["DifferenceMap"], frozen=True):
    """Compare output `name` with eager block by block; `slices` selects a matrix as in `FetchValues`.

    Answered by `DifferenceMap`, of at most `rows` x `columns` blocks of the matrix.
    """

    graph: int
    name: str
    slices: str = ""
    rows: int = 40
    columns: int = 100


class RunTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor of a run. If it was too large to store, `is_stored` is false, and its values cannot be fetched."""

    kind: ValueKind
    name: str
    dtype: str
    shape: tuple[int, ...]
    is_stored: bool = True


class ValueList(Frame, frozen=True):
    """The tensors of the latest run of a graph with `store_values`."""

    request: int
    tensors: tuple[RunTensor, ...]


class Values(Frame, frozen=True):
    """The cells of the matrix from row `row` and column `column` on; complex numbers are text.

    `height` and `width` are the size of the whole matrix. `row_names` are the indices in all dims but the last, such as
    `0,3`; `column_names` are the indices in the last dim.
    """

    request: int
    height: int
    width: int
    row: int
    column: int
    cells: tuple[tuple[Element, ...], ...]
    row_names: tuple[str, ...]
    column_names: tuple[int, ...]


class DifferenceMap(Frame, frozen=True):
    """The greatest absolute difference in each block, infinite if only one side is finite.

    Block `(i, j)` begins at row `row_starts[i]` and column `column_starts[j]` of the matrix; the last entry of each is
    the end of the matrix.
    """

    request: int
    blocks: tuple[tuple[float, ...], ...]
    row_starts: tuple[int, ...]
    column_starts: tuple[int, ...]
