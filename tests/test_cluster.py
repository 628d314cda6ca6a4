"""Work on a Dask cluster: everything is done, whoever is lost meanwhile; what cannot be done is said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.support.cluster import ClusterError, map_on_cluster
from buddy.compiler.tools.bench import session as bench
from buddy.compiler.tools.bench.plan import OURS, BenchPlan, BenchSubject

pytestmark = pytest.mark.slow
Verb = Callable[..., Any]


def test_what_a_lost_worker_had_in_hand_is_done_by_another(cluster: Any) -> None:
    address, workers = cluster
    items = [0.3 + number / 1000 for number in range(8)]
    done = []
    for item, _ in map_on_cluster(address, time.sleep, items):
        if not done:
            workers[0].kill()
        done.append(item)
    assert sorted(done) == items


def test_what_cannot_be_done_is_said_with_what_it_was(cluster: Any) -> None:
    address, _ = cluster
    with pytest.raises(ClusterError, match=r"failed on nonsense: ValueError"):
        list(map_on_cluster(address, float, ["nonsense"]))


def test_a_cluster_whose_workers_are_all_gone_is_named(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address, workers = cluster
    monkeypatch.setattr("buddy.compiler.support.cluster.CONNECT_TIMEOUT", 5.0)
    for worker in workers:
        worker.kill()
        worker.wait()
    with pytest.raises(ClusterError, match="has no workers"):
        list(map_on_cluster(address, abs, [1]))


@pytest.mark.full("a Dask cluster of processes")
def test_operators_are_checked_by_workers(cluster: Any, cli: Verb, tmp_path: Path) -> None:
    address, _ = cluster
    file = tmp_path / "found.jsonl"
    words = "--only", "abs", "--dtypes", "float32", "--samples", "1", "--cluster", address, "-o", str(file)
    done = cli("coverage", *words, "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["outcome"] for line in file.read_text().splitlines()] == ["compiled"]


def test_a_program_is_measured_wholly_where_the_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "linear.py"
    script.write_text("import torch\n\nmodel, example_inputs = torch.nn.Linear(8, 8).eval(), (torch.ones(2, 8),)\n")
    monkeypatch.setattr(
        bench, "map_on_cluster", lambda _address, act, items, _tell: ((item, act(item)) for item in items)
    )
    monkeypatch.setattr(bench, "_measure_peak_rates", lambda _threads: {"gflops": 1.0, "gbytes": 1.0})
    plan = BenchPlan((BenchSubject("linear", str(script)),), sides=(OURS,), rounds=5)
    (found,) = bench.run_on_cluster(plan, "tcp://nowhere")
    (subject,) = found["subjects"]
    assert subject["worker"]
    assert subject["sides"][OURS]["seconds"]["median"] > 0
    assert list(bench.run_on_cluster(plan, "tcp://nowhere", earlier_results=found)) == []


@pytest.mark.parametrize("words", [("coverage", "--only", "abs"), ("bench", "benchmarks/models.toml")])
@pytest.mark.full("waits for a connection to time out")
def test_a_cluster_that_is_not_there_is_said(cli: Verb, words: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    done = cli(*words, "--cluster", "tcp://127.0.0.1:1", "-o", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
