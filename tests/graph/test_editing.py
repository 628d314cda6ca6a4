"""Editing a Buddy graph as scripts do: every use replaced, nothing read that is gone, order kept, names for nodes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from buddy.compiler.graph import (
    AddOp,
    DeviceType,
    ExpOp,
    Graph,
    GraphError,
    MulOp,
    NodeType,
    Op,
    PlaceholderOp,
    SubOp,
    TanhOp,
    TensorDType,
    TensorMeta,
)
from tests.programs import captured

F32 = TensorDType.Float32


def graph() -> Graph:
    """`relu` is read three times: twice by one node, once in a list inside `cat`; `add` is returned as well."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        added = x + y
        rectified = added.relu()
        return added, torch.cat([rectified * rectified, rectified])

    return captured(f, torch.ones(3), torch.ones(3)).graph


def names(found: Graph) -> list[str]:
    return [op.name for op in found.body]


def consistent(found: Graph) -> bool:
    """Children are the readers, and every node stands after what it reads."""
    positions = {op: i for i, op in enumerate(found.body)}
    ordered = all(positions[parent] < positions[op] for op in found.body for parent in op.parents)
    return ordered and all(set(op._children) == set(found.readers(op)) for op in found.body)


def named(cls: type[Op], name: str) -> Op:
    found = cls()
    found.name = name
    return found


def test_displacing_a_node_replaces_all_its_uses() -> None:
    found = graph()
    relu, tanh = found.node_table["relu"], named(TanhOp, "tanh")
    found.displace_node(relu, tanh)
    assert found.readers(relu) == []
    assert found.node_table["mul"].args == [tanh, tanh]
    assert found.node_table["cat"].args[0][1] is tanh
    assert tanh.args == [found.node_table["add"]]
    assert tanh.tensor_meta == TensorMeta((3,), F32)
    assert "relu" not in found.node_table
    assert consistent(found)


def test_displacing_what_is_returned_replaces_it_in_the_output() -> None:
    found = graph()
    found.displace_node(found.node_table["add"], named(SubOp, "sub"))
    assert found.results[0] is found.node_table["sub"]
    assert consistent(found)


def test_displacing_with_a_chain() -> None:
    found = graph()
    relu = found.node_table["relu"]
    head, middle, tail = named(TanhOp, "head"), named(ExpOp, "middle"), named(TanhOp, "tail")
    head.tensor_meta = middle.tensor_meta = {"shape": [3], "dtype": F32}
    middle.add_argument("head")
    tail.add_argument(middle)
    found.displace_node_with_chain(relu, [head, middle, tail])
    assert names(found)[2:6] == ["add", "head", "middle", "tail"]
    assert head.args == [found.node_table["add"]]
    assert middle.args == [head]
    assert found.node_table["mul"].args == [tail, tail]
    assert tail.tensor_meta == relu.tensor_meta
    assert consistent(found)


def test_an_empty_chain_is_refused() -> None:
    found = graph()
    with pytest.raises(GraphError, match="relu cannot be replaced by an empty chain"):
        found.displace_node_with_chain(found.node_table["relu"], [])


def test_a_node_that_is_read_cannot_be_deleted() -> None:
    found = graph()
    relu = found.node_table["relu"]
    assert not found.check_delete_node(relu)
    with pytest.raises(GraphError, match=r"relu cannot be deleted: mul, cat still read it · graph .* · replace it"):
        found.delete_node(relu, relu.parents)
    with pytest.raises(GraphError, match="add cannot be deleted: relu, output still read it"):
        found.delete_node(found.node_table["add"])


def test_a_node_that_nobody_reads_can() -> None:
    found = graph()
    relu, add = found.node_table["relu"], found.node_table["add"]
    found.replace_uses(relu, add)
    assert found.check_delete_node(relu)
    found.delete_node(relu, [add])
    assert "relu" not in found.node_table
    assert "relu" not in names(found)
    assert consistent(found)


def test_deleting_a_stranger_is_refused() -> None:
    found, stranger = graph(), named(TanhOp, "stranger")
    for act in (found.check_delete_node, found.delete_node):
        with pytest.raises(GraphError, match="stranger is not in the graph"):
            act(stranger)


def test_deleting_an_input_keeps_what_is_known_of_the_others() -> None:
    found = graph()
    x, y = found.placeholders
    found.mutated = (1,)
    found.replace_argument(found.node_table["add"], x, y)
    found.delete_node(x)
    assert found.inputs == [y]
    assert found.kinds == [NodeType.InputNode]
    assert found.mutated == (0,)
    assert consistent(found)


def test_replacing_as_parent_and_as_child() -> None:
    found = graph()
    add, relu, mul = (found.node_table[name] for name in ("add", "relu", "mul"))
    found.replace_as_parent(relu, [mul, "cat"], add)
    assert mul.args == [add, add]
    assert found.node_table["cat"].args[0][1] is add
    new = named(TanhOp, "new")
    found.replace_as_child(["add"], relu, new)
    assert new in add._children
    assert relu not in add._children


def test_an_op_built_by_hand_may_name_what_it_reads() -> None:
    """The way Buddy-MLIR's own scripts build nodes: names, `_parents`, the body and the table by hand."""
    found = graph()
    new = MulOp()
    new._name = "scaled"
    new._arguments = ["add", "arg0_1"]
    new._parents = ["add", "arg0_1"]
    new.tensor_meta["shape"] = [3]
    new.tensor_meta["dtype"] = F32
    relu = found.node_table["relu"]
    relu.args[relu.args.index("add")] = new.name
    relu.add_parent(new.name)
    found._body.insert(0, new)
    found.node_table[new.name] = new
    found.perform([])
    found.link()
    assert new.args == [found.node_table["add"], found.placeholders[0]]
    assert relu.args == [new]
    assert names(found)[:5] == ["arg0_1", "arg1_1", "add", "scaled", "relu"]
    assert new.tensor_meta == TensorMeta((3,), F32)
    assert consistent(found)


def test_a_string_that_is_a_value_stays_one() -> None:
    """A node may be called like the value of an argument: only what the script declares is a name."""
    found = captured(lambda x: torch.nn.functional.gelu(x.tanh(), approximate="tanh"), torch.ones(3)).graph
    found.link()
    assert found.node_table["gelu"].kwargs == {"approximate": "tanh"}
    assert "tanh" in found.node_table


def test_a_node_put_in_the_place_of_another_of_its_name_takes_its_readers() -> None:
    """What `del graph.node_table[...]` and an assignment into the body mean in scripts."""
    found = graph()
    new = named(TanhOp, "relu")
    new.add_argument("add")
    new.tensor_meta = found.node_table["relu"].tensor_meta
    del found.node_table["relu"]
    found.body[names(found).index("relu")] = new
    found.node_table["relu"] = new
    found.link()
    assert found.node_table["mul"].args == [new, new]
    assert consistent(found)


def test_a_name_that_no_node_has_is_told() -> None:
    found = graph()
    found.node_table["relu"].add_argument("ghost")
    with pytest.raises(GraphError, match=r"relu reads ghost, which is not in the graph · .*add that node before"):
        found.link()


def test_two_nodes_of_one_name_are_refused() -> None:
    found = graph()
    found.add_node(named(TanhOp, "relu"))
    with pytest.raises(GraphError, match="two nodes have the name relu"):
        found.link()


def test_a_node_without_a_name_is_refused() -> None:
    found = graph()
    found.add_node(TanhOp())
    with pytest.raises(GraphError, match="a TanhOp has no name"):
        found.link()


def test_a_graph_that_cannot_go_down_says_why() -> None:
    found = graph()
    new = named(TanhOp, "new")
    new.add_argument("add")
    found.insert_before(found.node_table["relu"], new)
    with pytest.raises(GraphError, match=r"new has no result types · .* · assign its tensor_meta"):
        found.lower_to_top_level_ir()
    for empty in (Graph(), Graph("headless")):
        with pytest.raises(GraphError, match="the graph has no output"):
            empty.compile()


def test_a_circle_is_refused() -> None:
    found = graph()
    found.replace_argument(found.node_table["add"], found.placeholders[0], found.node_table["mul"])
    with pytest.raises(GraphError, match=r"has a cycle · .*add → .*remove one"):
        found.link()


def test_thousands_of_nodes_in_a_row_are_linked() -> None:
    found, last = Graph(), named(PlaceholderOp, "x")
    found.add_node(last)
    nodes = []
    for number in range(5000):
        node = named(ExpOp, f"exp{number}")
        node.add_argument(last)
        nodes.append(node)
        last = node
    found.body = [*found.body, *reversed(nodes)]
    found.link()
    assert names(found)[1:3] == ["exp0", "exp1"]


def test_the_table_finds_by_name_by_node_and_what_the_body_was_given() -> None:
    found = graph()
    relu = found.node_table["relu"]
    assert found.node_table[relu] is relu
    assert found.node_table[str(relu.parents[0])] is found.node_table["add"]
    assert relu in found.node_table
    assert "ghost" not in found.node_table
    found.body.append(named(TanhOp, "late"))
    assert found.node_table["late"].name == "late"
    with pytest.raises(KeyError, match="ghost"):
        found.node_table["ghost"]


def test_inserting_before_a_node_puts_it_into_the_group() -> None:
    found = graph()
    relu = found.node_table["relu"]
    found.op_groups = {"g": [relu]}
    new = named(TanhOp, "new")
    new.add_argument(found.node_table["add"])
    found.insert_before(relu, new)
    assert found.op_groups == {"g": [new, relu]}
    assert names(found).index("new") == names(found).index("relu") - 1


def test_groups_follow_edits() -> None:
    found = graph()
    found.init_op_group()
    assert {ops[0].name for ops in found.op_groups.values()} == {"add", "relu", "mul", "cat"}
    assert set(found.group_map_device.values()) == {DeviceType.CPU}
    found.displace_node(found.node_table["relu"], named(TanhOp, "tanh"))
    assert {ops[0].name for ops in found.op_groups.values()} == {"add", "tanh", "mul", "cat"}


def test_inputs_and_parameters_by_position_as_scripts_set_them() -> None:
    found = graph()
    assert found._inputs == [0, 1]
    found._fake_params = [0]
    assert found._inputs == [1]
    assert found.params == ["arg0_1"]
    assert [meta.shape for meta in found.params_shapes] == [(3,)]
    with pytest.raises(GraphError, match="add is not a placeholder"):
        found._fake_params = [2]


def test_the_meta_of_several_results_is_a_list() -> None:
    found = captured(lambda x: x.split(2)[1] + 1, torch.ones(4)).graph
    split = found.node_table["split"]
    assert split.tensor_meta["shape"] == [(2,), (2,)]
    assert split.tensor_meta["dtype"] == [F32, F32]
    assert split.tensor_meta.shape == (2,)
    again = AddOp("again")
    again.tensor_meta = split.tensor_meta
    assert again.metas == split.metas
    assert again.multiple


def test_metas_that_make_no_sense_are_refused() -> None:
    op = AddOp("add")
    assert op.tensor_meta.get("shape", []) == []
    assert "shape" not in op.tensor_meta
    with pytest.raises(ValueError, match="has no tensor result"):
        _ = op.tensor_meta.shape
    with pytest.raises(GraphError, match=r"the shape .* or the element type .* is invalid"):
        op.tensor_meta = {"shape": [3], "dtype": "float33"}
    with pytest.raises(GraphError, match="assign a TensorMeta"):
        op.tensor_meta = [3]
    with pytest.raises(GraphError, match="read it through a GetItemOp"):
        op.add_argument("x", 1)


def test_an_op_equals_its_name_and_itself_alone() -> None:
    one, other = AddOp("add"), AddOp("add")
    assert one == "add"
    assert one != other
    assert len({one, other}) == 2


def test_the_graph_package_imports_neither_torch_nor_mlir() -> None:
    code = (
        "import sys; from buddy.compiler.graph import Graph, GraphDriver, NodeType, DeviceType, TensorDType, "
        "TensorMeta, AddOp, AddMMOp, MatmulOp, OpType; print([m for m in ('torch', 'torch_mlir') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_name_that_the_graph_package_does_not_have() -> None:
    with pytest.raises(ImportError, match="GhostOp"):
        from buddy.compiler.graph import GhostOp  # type: ignore[attr-defined]  # noqa: F401
