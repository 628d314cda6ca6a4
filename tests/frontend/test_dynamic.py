"""Sizes that change from call to call: one compilation serves all of them, and values are eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buddy.compiler.frontend import DynamoCompiler, backend, compiled_graph
from buddy.compiler.frontend.aten import run_aot
from buddy.compiler.graph.sizes import Size
from buddy.compiler.protocol.artifact import Artifact
from tests.support.tiers import sampled

# Sizes on both sides of every block of the compiled loops: vectors of 64 and 8, 128 and 32 rows of a product.
SIZES = ((5, 13), (7, 11), (67, 130), (11, 64))


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what falls back says so
        yield
    torch._dynamo.reset()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Artifact]:
    """What has been compiled, or found in the cache of programs, since the test began."""
    found: list[Artifact] = []
    loaded = compiled_graph._load

    def watched(artifact: Artifact, *options: Any) -> Any:
        found.append(artifact)
        return loaded(artifact, *options)

    monkeypatch.setattr(compiled_graph, "_load", watched)
    return found


def marked(args: tuple[Any, ...], sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """The arguments, whose dims of one of `sizes` are marked as told by each call."""
    for tensor in args:
        for dim, size in enumerate(tensor.shape):
            if size in sizes:
                torch._dynamo.mark_dynamic(tensor, dim)
    return args


def agree(function: Callable[..., Any], make: Callable[[int, int], tuple[Any, ...]]) -> None:
    """Compiled and eager results are alike for every pair of `SIZES`, in values, types and strides."""
    compiled = torch.compile(function, backend="buddy")
    with torch.no_grad():
        for sizes in SIZES:
            args = marked(make(*sizes), sizes)
            results, expected = compiled(*args), function(*args)
            for ours, theirs in zip(_leaves(results), _leaves(expected), strict=True):
                # Sums of a few hundred products in another order: some roundings of f32 beside values of up to 30.
                torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
                assert not isinstance(ours, Tensor) or ours.stride() == theirs.stride()


def _leaves(values: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(values)


def matrix(a: int, b: int) -> tuple[Tensor]:
    return (torch.randn(a, b),)


def tokens(a: int, b: int) -> tuple[Tensor]:
    return (torch.randn(a, b, 16),)


WEIGHT, BIAS, TABLE = torch.randn(24, 16), torch.randn(24), torch.randn(50, 16)
KERNEL = torch.randn(4, 3, 3, 3)


def attention(q: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)


# Several functions a group: each group is one compilation.
GROUPS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "element-wise, broadcast and reduced": (
        lambda x: (x + x.mean(1, keepdim=True) * 2, nn.functional.gelu(x).sum(0), x.amax(), torch.softmax(x, -1)),
        matrix,
    ),
    "variances with corrections that are not integers": (
        lambda x: (x.var(0, correction=0.5), x.var(1, correction=1.5, keepdim=True), x.std(correction=12.25)),
        matrix,
    ),
    "rows": (
        lambda x: (nn.functional.layer_norm(x, (16,), BIAS[:16], BIAS[:16]), nn.functional.log_softmax(x, 1)),
        tokens,
    ),
    "products": (
        lambda x: (nn.functional.linear(x, WEIGHT, BIAS).relu(), x @ x.transpose(1, 2), x.flatten(0, 1) @ WEIGHT.T),
        tokens,
    ),
    "a product whose every size is told by the call": (lambda x: x.T @ x, matrix),
    "attention": (attention, lambda a, b: (torch.randn(a, 2, b, 16),)),
    "joined and cut": (
        lambda x: (torch.cat([x, x * 2], 1), x[:, 1:] * 1, x[-1] + 1, x[::2] * 1),
        matrix,
    ),
    "views": (
        lambda x: (x.view(-1, 4) + 1, x.reshape(x.shape[0], 2, -1).transpose(0, 1).contiguous(), x.flatten() * 2),
        lambda a, b: (torch.randn(a, 8),),
    ),
    "made": (
        lambda x: (torch.arange(x.shape[0]) + 1, torch.ones_like(x), torch.full((x.shape[1],), 3.0)),
        matrix,
    ),
    "numbers that are sizes": (lambda x: (x / x.shape[0], x * x.shape[1] ** -0.5, x.shape[0] * 2), matrix),
    "floats made of sizes": (
        lambda x: (
            x * (1 / x.shape[0]),
            x.long() * (x.shape[1] / 3),
            x.bfloat16() + x.shape[0] / 7,
            x.half() * (x.shape[0] / 7),
            torch.full_like(x, 1 / x.shape[1]),
            nn.functional.batch_norm(x, x[0] * 1, x[0].abs(), training=True),
            nn.functional.scaled_dot_product_attention(x[None], x[None] * 2, x[None]),
            nn.functional.scaled_dot_product_attention(x[None, None], x[None, None] * 2, x[None, None]),
        ),
        matrix,
    ),
    "read by index": (lambda i: nn.functional.embedding(i, TABLE), lambda a, b: (torch.randint(0, 50, (a, b)),)),
    "padded and scanned": (lambda x: (nn.functional.pad(x, (1, 2)), x.cumsum(0), x.var(), x.argmax(-1)), matrix),
    "mirrored": (
        lambda x: (x.flip(0), x[:4].flip(0) * 2),
        lambda a, b: (torch.randn(4, b),),
    ),
    "repeated and turned": (lambda x: (x.expand(3, -1, -1) + 0, x.repeat(2, 1), x.T.contiguous() + 1), matrix),
}


@pytest.mark.parametrize("group", GROUPS)
def test_one_compilation_serves_every_size(group: str, made: list[Artifact]) -> None:
    agree(*GROUPS[group])
    assert [artifact.results_of_eager for artifact in made] == [False]


@pytest.mark.parametrize("by_token", [False, True], ids=["by head", "by token"])
def test_attention_of_any_width_is_stored_like_its_queries(by_token: bool) -> None:
    q = torch.randn(2, 6, 4, 8).transpose(1, 2) if by_token else torch.randn(2, 4, 6, 8)
    result = torch.compile(attention, backend="buddy", dynamic=True)(q)
    torch.testing.assert_close(result, attention(q), check_stride=True)


def test_images_of_any_number(made: list[Artifact]) -> None:
    def f(x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(nn.functional.conv2d(x, KERNEL, padding=1).relu(), 2)

    compiled = torch.compile(f, backend="buddy")
    with torch.no_grad():
        for batch in (2, 5, 11):  # PyTorch itself tells batches below 16 from others
            (x,) = marked((torch.randn(batch, 3, 8, 8),), (batch,))
            torch.testing.assert_close(compiled(x), f(x))
    assert [artifact.results_of_eager for artifact in made] == [False]


def test_images_of_any_size_are_compiled_one_by_one(made: list[Artifact]) -> None:
    def f(x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, KERNEL).relu()

    compiled = torch.compile(f, backend="buddy", dynamic=True)
    first, second = torch.randn(2, 3, 9, 10), torch.randn(2, 3, 17, 18)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="images of a size known only at the call"):
            results = compiled(first)
        torch.testing.assert_close(results, f(first))
        torch.testing.assert_close(compiled(second), f(second))
    assert len(made) == 2


def test_graphs_that_are_compiled_for_each_size_take_floats() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.factor = nn.Conv2d(1, 2, 3), 2.5

        def forward(self, x: Tensor) -> Tensor:
            return self.convolution(x) * self.factor

    model = Scaled().eval()
    compiled = torch.compile(model, backend="buddy", dynamic=True, options={"fallback": "error"})
    x = torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="images of a size known only at the call"):
            torch.testing.assert_close(compiled(x), model(x))
        for model.factor in (2.5, -0.5):
            x = torch.randn(1, 1, 9, 9)
            torch.testing.assert_close(compiled(x), model(x))


def test_what_a_call_tells_is_symbols_in_the_order_of_inputs(made: list[Artifact]) -> None:
    agree(lambda x, y: x @ y, lambda a, b: (torch.randn(a, 6), torch.randn(6, b)))
    (artifact,) = made
    assert [(s.name, s.source, s.index) for s in artifact.symbols] == [("s0", 0, 0), ("s1", 1, 1)]
    assert artifact.results[0].shape == ("s0", "s1")


def test_dynamic_true_takes_numbers_too(made: list[Artifact]) -> None:
    def f(x: Tensor, n: int) -> Tensor:
        return x[:n] * n

    compiled = torch.compile(f, backend="buddy", dynamic=True)
    with torch.no_grad():
        for rows, n in ((8, 3), (9, 7), (70, 66)):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x, n), f(x, n))
    assert len(made) == 1


def test_results_are_views_at_offsets_that_a_call_tells(made: list[Artifact]) -> None:
    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        middle, z = x.shape[0] // 2, x + 1
        return [x.chunk(2)[1], x[middle:], x.narrow(1, 1, x.shape[1] - 1), y[middle], x.t()[2:], z, z[middle:], z.t()]

    compiled = torch.compile(f, backend="buddy")
    for a, b in SIZES:
        whole = torch.randn(a + 3, b)  # views of it begin elsewhere in every call
        args = marked((whole[3:], torch.randn(a, b)), (a, b))
        with torch.no_grad():
            results, expected = compiled(*args), f(*args)
        for ours, theirs in zip(results, expected, strict=True):
            assert torch.equal(ours, theirs)
            assert (ours.stride(), ours.storage_offset()) == (theirs.stride(), theirs.storage_offset())
        assert all(ours.data_ptr() == theirs.data_ptr() for ours, theirs in zip(results[:5], expected[:5], strict=True))
    assert len(made) == 1


def test_views_by_strides_that_a_piece_is_not_told_are_in_eager() -> None:
    """Around what has to be in eager the pieces have the sizes of their inputs alone, not their strides."""

    def f(x: Tensor) -> list[Tensor]:
        return [x.as_strided((2, 2), (1, 2)) * 2, x.t(), x[1:], x + 1]

    def in_pieces(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return run_aot(module, inputs, lambda aten: backend.compile_aten(aten, backend.BackendSettings()))

    compiled = torch.compile(f, backend=in_pieces, dynamic=True)
    for columns in (7, 5):
        x = torch.randn(6, 10)[:, :columns]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="a graph of .* strides made of the size")
            torch.testing.assert_close(compiled(x), f(x))


def test_the_second_size_makes_dims_dynamic_and_the_third_compiles_nothing(made: list[Artifact]) -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, backend="buddy")
    with torch.no_grad():
        for rows in (3, 5, 9, 130):
            x = torch.randn(rows, 4)
            assert torch.equal(compiled(x), x * 2 + 1)
    assert len(made) == 2


def test_gradients_of_a_dynamic_batch(made: list[Artifact]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    compiled = torch.compile(model, backend="buddy")
    for batch in (5, 9, 70):
        x = torch.randn(batch, 8)
        torch._dynamo.mark_dynamic(x, 0)
        ours = torch.autograd.grad(compiled(x).square().mean(), list(model.parameters()))
        theirs = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        torch.testing.assert_close(ours, theirs)
    assert len(made) == 2  # forward and backward


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=40,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).eval()


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=40, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return GPT2Model(config).eval()


@pytest.mark.parametrize("build", sampled([bert, gpt2], [bert], "a second model, with no op that the first lacks"))
def test_a_model_takes_any_batch_and_length(build: Callable[[], nn.Module], made: list[Artifact]) -> None:
    """BERT's two layers are one function, which is passed the symbols."""
    warnings.simplefilter("default")  # transformers' own
    model = build()
    compiled = torch.compile(lambda i: model(i)[0], backend="buddy")
    with torch.no_grad():
        for sizes in ((2, 7), (3, 12), (5, 37)):
            (ids,) = marked((torch.randint(0, 50, sizes),), sizes)
            # Layers of sums over 16 to 37 elements: the figures of the module's own comparison for f32.
            torch.testing.assert_close(compiled(ids), model(ids)[0], atol=1e-5, rtol=1.3e-6)
    assert [artifact.results_of_eager for artifact in made] == [False]


def test_torch_export_with_dims() -> None:
    model, n = nn.Linear(8, 4).eval(), torch.export.Dim("n")
    compiler = DynamoCompiler()
    warnings.simplefilter("default")  # torch.export's own
    (graph,) = compiler.importer_by_export(model, torch.randn(3, 8), dynamic_shapes={"input": {0: n}})
    assert isinstance(graph.inputs[0].tensor_meta.shape[0], Size)
    run = compiler.dynamo_run()
    for rows in (2, 40, 133):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(run(x)[0], model(x))


def test_what_is_only_compiled_for_known_sizes_is_compiled_for_each_where_no_eager_is_allowed() -> None:
    torch._dynamo.reset()
    strict = torch.compile(lambda x: x.roll(1, 0) * 2, backend="buddy", dynamic=True, options={"fallback": "error"})
    with pytest.warns(UserWarning, match=r"compiled again for each set of sizes: roll.default would run in eager"):
        first = strict(torch.arange(6.0))
    assert first.tolist() == [10, 0, 2, 4, 6, 8]
    assert strict(torch.arange(3.0)).tolist() == [4, 0, 2]
    never = torch.compile(
        lambda x: torch.linalg.eigh(x)[1], backend="buddy", dynamic=True, options={"fallback": "error"}
    )
    with pytest.warns(UserWarning, match="compiled again"), pytest.raises(Exception, match="would run in eager"):
        never(torch.eye(3))


def test_a_size_that_is_computed_and_equal_to_one_is_broadcast() -> None:
    """The graph's guards say that `x.shape[1] // 3` is 1; it stays an expression."""

    def call(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first = x[:, : x.shape[1] // 3]
        return (
            x + first, torch.where(first > 0, x, 1), torch.addcmul(x, first, x), torch.cat([x, first.expand(2, 4)]),
            x.clone().copy_(first), nn.functional.linear(x, x, x.flatten()[: x.shape[1] // 3]),
            y + y.diagonal(1, 1, -1), y[: y.shape[0] // 3] @ y.mT,
        )  # fmt: skip

    x, y = torch.randn(2, 4), torch.randn(3, 1, 2)
    run = torch.compile(call, backend="buddy", dynamic=True, options={"fallback": "error"})
    for found, expected in zip(run(x, y), call(x, y), strict=True):
        torch.testing.assert_close(found, expected)
