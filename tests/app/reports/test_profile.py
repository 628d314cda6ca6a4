"""The text and the data of profiles: rates, shares of the peak, the tree of modules."""

from __future__ import annotations

import msgspec
import pytest

from buddy.app.reports import formatting, profile
from buddy.app.screens.profile import HotSpotScreen
from buddy.compiler.protocol import GraphInfo, HotSpot, NodeRow, NodeTime, Peak, ProfileReport, Sampling, Timing

ROWS = tuple(
    NodeRow(index, f"{name}.0", "call_function", name, f"aten.{name}.default", "", "", module=module)
    for index, (name, module) in enumerate((("mm", "up.deep"), ("gelu", "up"), ("exp", ""), ("sort", "down")))
)
INFO = GraphInfo("forward", ROWS)
NODES = (
    NodeTime("mm.0", 2e-3, fused=("gelu.0",), operations=4e6, bytes=1e6, regions=1),
    NodeTime("gelu.0", into="mm.0"),
    NodeTime("exp.0", 1e-3, operations=1e3, bytes=1e7, regions=1),
    NodeTime("sort.0", 3e-3, regions=2),
)
REPORT = ProfileReport(
    0, NODES, (), Timing(7e-3, 6e-3, 8e-3, 5), Timing(8e-3, 7e-3, 9e-3, 5), 0.02,
    whole=8e-3, inside=6e-3, outside=0.5e-3,
    peak=Peak(4.0, 20.0), counter="TSC", ticks_per_second=2.5e9,
)  # fmt: skip


def test_nodes_are_sorted_by_time_with_their_share_of_the_peak() -> None:
    sort, product, exp = profile.timed_nodes(REPORT, INFO)
    assert [each.row.name for each in (sort, product, exp)] == ["sort", "mm", "exp"]
    assert product.rate == pytest.approx(2e9)
    assert product.intensity == 4
    assert product.bound == 4e9  # its arithmetic: 4 operations a byte from 20 GB/s would be 80 billion
    assert product.share == pytest.approx(0.5)
    assert exp.bound == pytest.approx(2e6)  # a ten-thousandth of an operation a byte, from 20 GB/s
    assert exp.share == pytest.approx(0.5)
    assert (sort.rate, sort.share) == (0, 0)  # nobody knows how much sorting is


def test_data_movement_is_rated_by_bytes() -> None:
    moved = profile.TimedNode(ROWS[0], NodeTime("mm.0", 1e-3, operations=0, bytes=1e7, regions=1), Peak(4.0, 20.0))
    assert moved.share == pytest.approx(0.5)


def test_each_element_type_has_its_own_peak() -> None:
    peak = Peak(8.0, 20.0, 4.0, 2.0)
    assert [peak.arithmetic(kind) for kind in ("f32", "bf16", "f64", "i64", "ui8")] == [8.0, 8.0, 4.0, 2.0, 2.0]


def test_rates_above_memory_bandwidth_are_marked_as_cached() -> None:
    each = profile.TimedNode(ROWS[0], NodeTime("mm.0", 1e-4, operations=1e6, bytes=1e7, regions=1), Peak(4.0, 20.0))
    assert each.is_from_caches
    assert profile.share_text(each) == "500% c"
    near = msgspec.structs.replace(REPORT, nodes=(each.time,))
    assert any("was in caches" in line for line in profile.summary_lines(near))
    assert not any("was in caches" in line for line in profile.summary_lines(REPORT))


def test_the_summary_of_samples_names_other_code() -> None:
    sampling = Sampling(200, 150, 4000, elsewhere=(("libtorch_cpu.so", 40), ("", 10)))
    said = profile.sampling_text(sampling)
    assert said.startswith("75.0% of 200 samples (4,000 per second of CPU time) in compiled code")
    assert said.endswith("libtorch_cpu.so 20.0%, generated code 5.0%")
    assert "no hot instructions: no such call" in profile.sampling_text(Sampling(problem="no such call"))


def test_the_tree_of_modules_adds_up_to_a_run() -> None:
    root = profile.flame_tree(REPORT, INFO)
    assert root.seconds == pytest.approx(REPORT.whole)
    assert [(flame.name, flame.seconds) for flame in root.children_by_time()] == [
        ("down", 3e-3), ("up", 2e-3), (profile.AROUND, pytest.approx(1.5e-3)), ("exp.0", 1e-3),
        (profile.CALLS, pytest.approx(0.5e-3)),
    ]  # fmt: skip
    lines = profile.tree_lines(root, formatting.ASCII, bar_width=8)
    assert lines[0] == "    8.000 100.0%  ########  forward"
    assert lines[1] == "    3.000  37.5%  ###       " + "  down"
    assert profile.tree_lines(root, formatting.ASCII, min_share=0.3, bar_width=8)[1:] == lines[1:3]


def test_stacks_are_lines_of_modules_and_nanoseconds() -> None:
    lines = profile.folded_stacks(profile.flame_tree(REPORT, INFO)).splitlines()
    assert lines[0] == "forward;down;sort.0 3000000"
    assert "forward;up;deep;mm.0 2000000" in lines
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 8_000_000


def test_a_module_and_a_node_of_the_same_name_stay_separate() -> None:
    rows = (ROWS[0], NodeRow(1, "deep.0", "call_function", "deep", "t", "", "", module="up"))
    nodes = (NODES[0], NodeTime("deep.0", 1e-3, regions=1))
    report = ProfileReport(0, nodes, (), REPORT.plain, Timing(3e-3, 0, 0, 1), 0.0, whole=3e-3, inside=3e-3)
    root = profile.flame_tree(report, GraphInfo("forward", rows))
    assert sum(int(line.rpartition(" ")[2]) for line in profile.folded_stacks(root).splitlines()) == 3_000_000


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0123456, "12.3"), (0.001234, "1.234"), (0.00001234, "0.0123"), (1.5, "1500.0")]
)
def test_times_have_three_significant_digits(seconds: float, told: str) -> None:
    assert profile.in_milliseconds(seconds) == told


def test_the_time_column_names_the_node_that_includes_a_fused_node() -> None:
    names = {row.stable: row.name for row in ROWS}
    assert [profile.node_time_text(node, names) for node in (*NODES, None)] == ["2.000", "in mm", "1.000", "3.000", ""]


def test_hot_instructions_have_a_share_and_nodes() -> None:
    spots = (HotSpot("f", 0x2A, 150, "vaddps zmm0, zmm1", 7, ("mm.0",)), HotSpot("g", 4, 50))
    screen = HotSpotScreen(Sampling(200, 200, 4000, spots), {"mm.0": "mm"})
    first = "".join(text for text, _ in screen._table.row_cells(0, 120))
    assert first.split() == [">", "75.0%", "@f+0x2a", "vaddps", "zmm0,", "zmm1", "mm"]
    assert screen.foot_text(spots[0]).startswith("vaddps zmm0, zmm1: 150 samples, from mm")
    assert "from no node" in screen.foot_text(spots[1])
