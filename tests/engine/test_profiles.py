"""What speaks against a peak that was measured."""

from __future__ import annotations

from buddy.compiler.engine.host_requests import peak_note
from buddy.compiler.protocol.profile import NodeTime, Peak, ProfileReport
from buddy.compiler.protocol.run_report import Timing

RUN = Timing(1e-3, 1e-3, 1e-3, 3)


def report(operations: float, peak: Peak) -> ProfileReport:
    nodes = (NodeTime("mm.0", 1e-3, operations=operations, regions=1), NodeTime("t.0", into="mm.0"))
    return ProfileReport(0, nodes, (), RUN, RUN, 0.0, whole=1e-3, inside=1e-3, peak=peak)


def test_a_peak_that_code_exceeds_was_measured_on_a_busy_machine() -> None:
    assert peak_note(report(4e7, Peak(50.0, 10.0))) == ""
    assert "was busy" in peak_note(report(8e7, Peak(50.0, 10.0)))
    assert "could not be measured" in peak_note(report(4e7, Peak()))
