"""`torch.compile(f, backend="buddy")` as people use it: modes, options, threads, contexts, hooks, copies, resets."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from buddy.compiler.frontend import compiled_graph
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.protocol.presets import default_recipe, without_pack_limit, without_packing
from buddy.compiler.protocol.recipe import OpChoice, PassStep, Recipe, to_toml
from buddy.compiler.support import disk_cache
from tests.programs import Line

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("error:a graph of")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.norm, self.down = (
            nn.Linear(16, 32), nn.Dropout(0.5), nn.BatchNorm1d(32), nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.drop(self.norm(nn.functional.gelu(self.up(x)))))


def compiled(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="buddy", **given)


def agree(ours: Any, theirs: Any, **tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# ---- options and modes -----------------------------------------------------------------------------------------------


def test_options_are_fields_of_a_recipe() -> None:
    options = {"preset": "upstream", "dialect": "tosa", "partition": "whole", "opt_level": 1, "threads": 3}
    recipe = BackendSettings.of({**options, "choices": {"gelu.0": "eager"}}).recipe()
    found = {name: getattr(recipe, name) for name in options}
    assert found == options
    assert recipe.choices == (OpChoice("gelu.0", "eager"),)
    steps = [{"name": "canonicalize"}, PassStep("cse")]
    assert BackendSettings.of({"steps": steps}).recipe().steps == (PassStep("canonicalize"), PassStep("cse"))


def test_passes_and_their_options_are_options() -> None:
    line = Line(lambda x, y: torch.softmax(x @ y, -1), torch.randn(9, 16), torch.randn(16, 24))
    options = {"fuse-rows": False, "contractions-to-kernels.rows": 3, "canonicalize#2": False, "lowering:mm.0": "tosa"}
    default, ours = (line.compile(BackendSettings.of(given).recipe()) for given in ({}, options))
    names = [stage.name for stage in default.stages]
    _, second, *_ = (place for place, name in enumerate(names) if name == "canonicalize")
    off = {second, names.index("fuse-rows")}
    assert [stage.name for stage in ours.stages] == [name for place, name in enumerate(names) if place not in off]
    assert {found.node: found.lowering for found in ours.assignments} == {"mm.0": "tosa", "_softmax.0": "linalg"}
    (blocks,) = [text for who, _, text in ours.remarks if who == "contractions-to-kernels"]
    assert blocks.startswith("9x24x16: 3x")


@pytest.mark.parametrize("options", [{"lowering:mm.0": "eager"}, {"choices": {"mm.0": "eager"}}])
def test_a_lowering_is_an_option(options: dict[str, Any]) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"chosen by hand · node mm\.0"):
        compiled(lambda x: (x @ x).relu(), options={**options, "fallback": "error"})(torch.ones(3, 3))


def test_what_the_workbench_saved_is_an_option(tmp_path: Path) -> None:
    recipe = replace(default_recipe(dialect="tosa"), threads=2, opt_level=3)
    path = tmp_path / "best.toml"
    path.write_text(to_toml(recipe))
    # Frozen weights are packed whatever their size.
    assert BackendSettings.of({"recipe": path, "freeze": True}).recipe() == without_pack_limit(recipe)
    assert BackendSettings.of({"recipe": path}).recipe() == without_packing(recipe)
    assert BackendSettings.of(
        {"recipe": recipe, "freeze": True, "threads": 1, "dialect": "linalg"}
    ).recipe() == without_pack_limit(replace(recipe, threads=1, dialect="linalg"))
    net, x = Net().eval(), torch.randn(3, 16)
    with torch.no_grad():
        agree(compiled(net, options={"recipe": str(path), "fallback": "error"})(x), net(x))


WRONG = [
    (
        {"fallbak": "error"},
        r"no option 'fallbak' \(did you mean fallback\?\); it has fallback, fallback_random, freeze, verify, summary, ",
    ),
    ({"fuse-row": False}, r"did you mean fuse-rows\?"),
    ({"fuse-rows": 3}, "fuse-rows is on or off, not 3"),
    ({"fuse-rows": None}, "fuse-rows is None; it may be a bool, a number or a string"),
    ({"contractions-to-blas.nodes": "mm.0"}, "no effect, because the pass contractions-to-blas is off: also set"),
    ({"contractions-to-kernels.row": 3}, "contractions-to-kernels has no option 'row'; it has"),
    ({"source": "x.py"}, "no option 'source'"),
    ({"fallback": "never"}, "fallback is 'never'; it may be eager or error"),
    ({"preset": "fast"}, "unknown preset 'fast'; the presets are default, upstream"),
    ({"dialect": "tosaa"}, "dialect is 'tosaa': it may be 'linalg' or 'tosa'"),
    ({"partition": 3}, "partition is 3: it may be 'layers' or 'whole'"),
    ({"opt_level": 9}, "opt_level is 9: Expected `int` <= 3"),
    ({"steps": [{"nam": "cse"}]}, "steps is .*: Object contains unknown field `nam`"),
    ({"choices": 3}, "choices is 3: Expected `array`, got `int`"),
    ({"threads": -1}, "threads is -1; it may be 0, for as many as torch uses, to 1024"),
    ({"tune": "long"}, "tune is 'long'; give the number of seconds"),
    ({"recipe": "nowhere.toml"}, "recipe: nowhere.toml cannot be read: No such file"),
    ({"recipe": 3}, "recipe is 3; it may be a Recipe, or the path of one in TOML"),
    ({"recipe": default_recipe(), "preset": "default"}, "recipe and preset are both given"),
    (
        {"recipe": replace(default_recipe(), backend="iree")},
        "recipe: backend is 'iree'; torch.compile only supports graphs",
    ),
    ({"recipe": replace(default_recipe(), dialect="stablehlo")}, "dialect is 'stablehlo': it may be 'linalg' or"),
    ({"backend": "iree"}, "backend is 'iree'; torch.compile only supports graphs"),
    ({"backend": "tvm"}, "backend is 'tvm'; it may be 'native'"),
]


@pytest.mark.parametrize(
    ("options", "message"), WRONG, ids=lambda value: next(iter(value)) if isinstance(value, dict) else ""
)
def test_an_option_that_cannot_be_is_named_with_those_that_can(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BackendSettings.of(options)


def test_a_damaged_recipe_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("dialect = 3")
    with pytest.raises(ValueError, match=r"mine\.toml is not a recipe: .*dialect"):
        BackendSettings.of({"recipe": path})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "reduce-overhead"}, "no mode 'reduce-overhead'; it has default and max-autotune"),
        ({"options": {"dialekt": "tosa"}}, r"no option 'dialekt' \(did you mean dialect\?\)"),
    ],
)
def test_what_is_wrong_is_told_by_the_first_call(given: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x + 1, **given)(torch.ones(2))


def test_results_are_on_the_device_of_the_inputs_whatever_the_default_device() -> None:
    x = torch.randn(3, 4)
    with torch.device("meta"):
        transposed = compiled(lambda x: x.t() + 1)(x)
    assert (transposed.device, transposed.stride()) == (x.device, (1, 4))
    agree(transposed, x.t() + 1)


def test_the_default_mode_is_no_mode() -> None:
    assert BackendSettings.of(None, "default") == BackendSettings.of(None) == BackendSettings.of({})
    assert BackendSettings.of(None, "max-autotune").tune > 0


@pytest.mark.slow
def test_a_search_keeps_its_best_recipe_for_the_graph(caplog: pytest.LogCaptureFixture) -> None:
    net, x = Net().eval(), torch.randn(64, 16)
    caplog.set_level("DEBUG", "buddy.tuning")
    before = disk_cache.count_files()["tuned"][0]
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            run = compiled(net, options={"tune": 4, "fallback": "error"})
            agree(run(x), net(x))
            agree(run(x), net(x))
    assert disk_cache.count_files()["tuned"][0] == before + 1
    # The second time no recipe is tried.
    assert sum("recipe 0:" in record.getMessage() for record in caplog.records) == 1


# ---- what surrounds a call -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bert_base_is_compiled_without_eager_nodes() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig()).eval()
    tokens = torch.randint(0, 30_000, (1, 32))
    strict = torch.compile(model, backend="buddy", fullgraph=True, options={"fallback": "error"})
    with torch.no_grad():
        ours, theirs = strict(tokens), model(tokens)
    # Eager differs from float64 by up to 2e-6 here, so that a correct result may differ from it by a few times as much.
    agree(ours.last_hidden_state, theirs.last_hidden_state, atol=2e-5, rtol=0)
    agree(ours.pooler_output, theirs.pooler_output, atol=2e-5, rtol=0)


def test_fullgraph_refuses_a_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f, fullgraph=True)(torch.ones(3))
    agree(compiled(f)(torch.ones(3)), f(torch.ones(3)))


def programs() -> set[Any]:
    gc.collect()
    return set(compiled_graph._programs)


def test_a_dynamic_function_is_one_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    known, run = programs(), compiled(f, dynamic=True)
    for rows in (2, 5, 9):
        x = torch.randn(rows, 7)
        agree(run(x), f(x))
    assert len(programs() - known) == 1


@pytest.mark.usefixtures("two_threads")
def test_a_new_number_of_torch_threads_is_followed_and_a_given_one_stays() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu()

    x = torch.randn(96, 96)
    for options, numbers in (({}, [2, 1]), ({"threads": 2}, [2, 2])):
        torch._dynamo.reset()
        found, known, run = [], programs(), compiled(f, options=options)
        for threads in (2, 1):
            torch.set_num_threads(threads)
            agree(run(x), f(x), atol=1e-4, rtol=1e-4)
            new = programs() - known
            found += [max(program.threads for program in new)] if new else found[-1:]
            known |= new
        torch.set_num_threads(2)
        assert found == numbers


@pytest.mark.usefixtures("two_threads")
def test_calls_from_several_python_threads() -> None:
    net = Net().eval()
    run = compiled(net)
    inputs = [torch.randn(8, 16) for _ in range(16)]

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return run(x)

    with ThreadPoolExecutor(4) as pool:  # the first calls compile at the same time
        results = [found for _ in range(4) for found in pool.map(call, inputs)]
    with torch.no_grad():
        for x, result in zip(inputs * 4, results, strict=True):
            agree(result, net(x))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_context_around_the_call(context: Callable[[], Any]) -> None:
    net, x = Net().eval(), torch.randn(5, 16)
    run = compiled(net)
    with context():
        for _ in range(2):
            result = run(x)
            agree(result, net(x))
        assert result.requires_grad == net(x).requires_grad
        assert result.is_inference() == net(x).is_inference()


def test_contexts_one_after_the_other_on_one_compiled_module() -> None:
    net, x = Net().eval(), torch.randn(5, 16)
    run, expected = compiled(net), net(x).detach()
    with torch.no_grad():
        agree(run(x), expected)
    with torch.inference_mode():
        agree(run(x), expected)
    run(x).sum().backward()
    assert net.up.weight.grad is not None
    with torch.inference_mode():
        agree(run(x), expected)


def test_autocast_around_and_inside() -> None:
    net, x = Net().eval(), torch.randn(5, 16)

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    run, run_inside = compiled(net), compiled(inside)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            around, expected = run(x), net(x)
        assert around.dtype == expected.dtype == torch.bfloat16
        # bfloat16 has 8 bits; two products are rounded to it in between.
        agree(around, expected, atol=2e-2, rtol=2e-2)
        agree(run_inside(x), inside(x), atol=2e-2, rtol=2e-2)
        plain = run(x)
        assert plain.dtype == torch.float32
        agree(plain, net(x))


def test_training_and_evaluation_of_one_compiled_module() -> None:
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    run, x = compiled(ours, options={"fallback_random": True}), torch.randn(12, 16)
    for training in (True, False, True):
        results = []
        for model, call in ((ours, run), (theirs, theirs)):
            model.train(training)
            torch.manual_seed(3)
            results.append(call(x))
        agree(results[0], results[1], atol=1e-5, rtol=1e-4)
    for mine, his in zip(ours.buffers(), theirs.buffers(), strict=True):
        agree(mine, his)
    with pytest.raises(AttributeError):
        _ = run.nothing_of_this_name


def test_hooks_of_modules_run() -> None:
    net, x, seen = Net().eval(), torch.randn(5, 16), []
    net.up.register_forward_hook(lambda _module, _args, result: result * 2)
    net.down.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    net.down.register_full_backward_hook(lambda _module, grads, _: seen.append(grads[0].shape))
    run = compiled(net)
    ours, theirs = run(x), net(x)
    agree(ours, theirs)
    ours.sum().backward()
    assert seen == [torch.Size([5, 32])]
    net.norm.register_forward_hook(lambda _module, _args, result: -result)
    with torch.no_grad():
        agree(run(x), net(x))


# ---- copies and resets -----------------------------------------------------------------------------------------------


def test_a_deep_copy_has_weights_of_its_own() -> None:
    first = compiled(Net().eval())
    x = torch.randn(5, 16)
    with torch.no_grad():
        expected = first(x)
        second = copy.deepcopy(first)
        agree(second(x), expected)
        second.down.bias.add_(1)
        agree(second(x), expected + 1)
        agree(first(x), expected)


def test_a_recipe_is_pickled() -> None:
    recipe = BackendSettings.of({"lowering:gelu": "eager", "fuse-rows": False}).recipe()
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert isinstance(copy.deepcopy(recipe), Recipe)


def test_a_reset_lets_go_of_programs_and_the_next_call_compiles() -> None:
    net, x = Net().eval(), torch.randn(5, 16)
    known, run = programs(), compiled(net)
    with torch.no_grad():
        run(x)
        assert programs() - known
        torch.compiler.reset()
        assert not programs() - known
        agree(run(x), net(x))


def test_explain_tells_the_graphs_of_what_is_compiled() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    found = torch._dynamo.explain(compiled(f))(torch.ones(3))
    assert (found.graph_count, found.graph_break_count) == (2, 1)


# ---- failures --------------------------------------------------------------------------------------------------------


def test_errors_are_suppressed_where_torch_is_told_so() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.histogram(x, 3)[0]

    x = torch.randn(3, 3)
    strict = {"fallback": "error"}
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="would run in eager"):
        compiled(f, options=strict)(x)
    with torch._dynamo.config.patch(suppress_errors=True):
        agree(compiled(f, options=strict)(x), f(x))


def test_a_pass_that_fails_leaves_the_graph_to_eager_or_raises() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu() @ x

    x, without = torch.randn(4, 4), {"one-shot-bufferize": False}
    with pytest.warns(UserWarning, match="a graph of .* runs in eager: "):
        agree(compiled(f, options=without)(x), f(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        compiled(f, options={**without, "fallback": "error"})(x)


def test_what_eager_raises_is_raised() -> None:
    def f(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x[places] * 2

    run = compiled(f)
    with pytest.raises(IndexError, match="out of"):
        run(torch.ones(3), torch.tensor([5]))
    agree(run(torch.ones(3), torch.tensor([1])), torch.tensor([2.0]))


def test_checks_of_values_can_be_left_out_and_nothing_outside_is_read() -> None:
    def rows(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at] + 1

    def outside(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        torch._assert_async((at < 4).all(), "beyond the rows")
        return x.gather(0, at[:, None])

    x = torch.arange(12.0).reshape(4, 3)
    for function in (rows, outside):
        run = torch.compile(function, backend="buddy", options={"checks": "none", "fallback": "error"})
        inside = torch.tensor([0, 3])
        torch.testing.assert_close(run(x, inside), function(x, inside))
        found = run(x, torch.tensor([0, 1 << 40]))
        assert bool(torch.isin(found, torch.cat([x, x + 1])).all()), "values of x alone"
        checked = torch.compile(function, backend="buddy", options={"checks": "eager"})
        with pytest.raises((IndexError, RuntimeError)):
            checked(x, torch.tensor([0, 1 << 40]))


def test_checks_are_of_two_kinds() -> None:
    with pytest.raises(Exception, match="checks is 'no': it may be 'eager' or 'none'"):
        torch.compile(lambda x: x + 1, backend="buddy", options={"checks": "no"})(torch.ones(2))
