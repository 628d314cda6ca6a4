"""Op classes of checks, observers, random numbers and imported nodes."""

from __future__ import annotations

from typing import ClassVar

from buddy.compiler.graph.node import Op, OpType


class AssertOp(Op):
    """Raises an error if the only element of the first argument is 0; the second argument is the message."""

    has_effect = True
    targets = ("_assert_async.msg",)


OBSERVE_TARGET = "buddy.observe.default"


class ObserveOp(Op):
    """Passes its only argument to the observer of the run, if the run has one; has no result.

    A run calls the observer in graph order, so the n-th call belongs to the n-th observed node.
    """

    has_effect = True
    only_eager = "it passes a value to the observer of the run"
    targets = (OBSERVE_TARGET,)


class RandomOp(Op):
    """Draws numbers from the distribution given by its arguments."""

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
    """Returns random numbers in the shape, strides and element type of its first argument."""

    targets: ClassVar[tuple[str, ...]] = (
        "rand_like.default", "randn_like.default", "randint_like.default", "randint_like.low_dtype", "bernoulli.p",
        "uniform.default", "normal_functional.default", "exponential.default", "geometric.default",
        "log_normal.default", "cauchy.default", "random.default", "random.to", "random.from",
    )  # fmt: skip


class PhiloxOp(Op):
    """Returns random bits of Philox 4x32-10, a function of a seed, a stream number and the index of each element."""

    op_type = OpType.ElementwiseType
    targets = ("buddy.philox32.default", "buddy.philox64.default")


# The constants of Philox 4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), and Random123.
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)


class ImportedOp(Op):
    """An op of an imported MLIR or ONNX file; `target` is the name of the op there, after `onnx.` for ONNX."""

    only_eager = "an imported program is not run node by node"


class ImportedResultOp(Op):
    """A result of an imported MLIR module, or a buffer that the module writes to, as a node."""

    only_eager = ImportedOp.only_eager
