"""Ops that draw from PyTorch's random number generator. They run in eager, in order, so that its stream is eager's."""

from __future__ import annotations

from typing import ClassVar

from buddy.compiler.graph.operation import Op


class RandomOp(Op):
    """Draws numbers whose distribution its arguments say."""

    has_effect = True
    only_eager = "it draws from PyTorch's random number generator"
    targets: ClassVar[tuple[str, ...]] = (
        "rand.default", "randn.default", "randint.default", "randint.low", "randperm.default",
        "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float",
        "bernoulli.default", "binomial.default", "multinomial.default", "poisson.default", "_standard_gamma.default",
        "_sample_dirichlet.default", "rrelu_with_noise.default", "rrelu_with_noise_functional.default",
        "_fused_dropout.default",
    )  # fmt: skip


class RandomLikeOp(RandomOp):
    """Fills a tensor like its first argument, of which it reads the form alone: shape, strides and element type."""

    targets: ClassVar[tuple[str, ...]] = (
        "rand_like.default", "randn_like.default", "randint_like.default", "randint_like.low_dtype", "bernoulli.p",
        "uniform.default", "normal_functional.default", "exponential.default", "geometric.default",
        "log_normal.default", "cauchy.default", "random.default", "random.to", "random.from",
    )  # fmt: skip
