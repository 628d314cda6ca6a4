"""The Buddy graph: how nodes are linked, replaced, printed, carried across processes, and rewritten."""

from __future__ import annotations

import torch

from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import EagerOp, default_ops_map
from buddy.compiler.graph.operations import AddOp, CloneOp
from buddy.compiler.graph.transform import transforms
from tests.models import stack
from tests.programs import captured


def graph() -> Graph:
    return captured(lambda x, y: (x.clone() + y).view(2, 3).view(6), torch.ones(6), torch.ones(6)).graph


def test_a_graph_prints_one_node_a_line_with_its_types() -> None:
    lines = str(captured(lambda x, y: x + y, torch.ones(6), torch.ones(6)).graph).splitlines()
    assert lines[0].startswith("graph ")
    assert lines[3] == "  add = AddOp(arg0_1, arg1_1) : 6xf32"
    assert lines[-2:] == ["  output = OutputOp([add])", "}"]


def test_children_are_the_nodes_that_read_a_node() -> None:
    table = graph().node_table
    assert [child.name for child in table["clone"]._children] == ["add"]
    assert [parent.name for parent in table["add"].parents] == ["clone", "arg1_1"]


def test_users_of_a_replaced_node_read_the_other() -> None:
    found = graph()
    clone, x = found.node_table["clone"], found.placeholders[0]
    found.replace_uses(clone, x)
    assert found.node_table["add"].args[0] is x
    assert clone._children == []


def test_a_node_nobody_reads_is_dropped_with_what_only_it_read() -> None:
    found = graph()
    found.replace_uses(found.node_table["add"], found.placeholders[1])
    found.drop_unused()
    assert "add" not in found.node_table
    assert "clone" not in found.node_table
    assert len(found.placeholders) == 2


def test_drop_identities_takes_out_copies_and_views_of_views() -> None:
    found = graph()
    transforms()["drop-identities"](found)
    assert isinstance(found.operations[0], AddOp)
    assert not any(isinstance(op, CloneOp) for op in found.operations)
    assert len(found.operations) == 2


def test_a_graph_crosses_processes_whole() -> None:
    found = captured(*stack()).graph
    again = serialization.from_bytes(serialization.to_bytes(found))
    assert str(again) == str(found)
    assert [op.stable for op in again.body] == [op.stable for op in found.body]
    assert again.kinds == found.kinds
    assert serialization.graph_hash(again) == serialization.graph_hash(found)


def test_the_hash_is_of_what_compilation_reads() -> None:
    assert serialization.graph_hash(captured(*stack(2)).graph) != serialization.graph_hash(captured(*stack(3)).graph)
    assert serialization.graph_hash(captured(*stack(2)).graph) == serialization.graph_hash(captured(*stack(2)).graph)


def test_an_op_class_that_a_process_does_not_know_stays_in_eager() -> None:
    data = serialization.to_bytes(graph()).replace(b"CloneOp", b"Unknown")
    assert isinstance(serialization.from_bytes(data).node_table["clone"], EagerOp)


def test_no_target_means_two_op_classes() -> None:
    claims = [target for cls in set(default_ops_map().values()) for target in cls.targets]
    assert len(claims) == len(set(claims))
