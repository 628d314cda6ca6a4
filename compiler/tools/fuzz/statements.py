"""Statements of a random program, as templates with fields for the available tensors (see `operands.py`).

Templates ignore which shapes and dtypes an op supports: statements that eager rejects are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping


def _for_each_name(template: str, names: str) -> tuple[str, ...]:
    """Returns a copy of the template for each of `names`, which replaces @."""
    return tuple(template.replace("@", name) for name in names.split())


_F = "torch.nn.functional"
# `logsumexp` needs a dim, and `count_nonzero` has no `keepdim`: the templates below leave them out.
_REDUCTIONS = "sum mean amax amin prod argmax argmin all any logsumexp nansum count_nonzero nanmean"
_ACTIVATIONS = """
    relu gelu silu elu leaky_relu hardswish hardsigmoid hardtanh mish softplus softsign logsigmoid relu6 tanhshrink selu
    softshrink hardshrink celu
    """

# The kinds of statements with their templates. Simple ones are first, because Hypothesis reduces programs towards them.
STATEMENTS: Mapping[str, tuple[str, ...]] = {
    "unary": (
        *_for_each_name(
            "torch.@({x})",
            """
            neg abs exp log1p sqrt rsqrt sigmoid tanh relu sin cos floor ceil round trunc sign reciprocal square expm1
            erf erfc atan asinh log log2 isnan isfinite signbit logical_not bitwise_not positive frac sgn tan sinh cosh
            asin acos acosh atanh exp2 log10 deg2rad angle isinf nan_to_num logit
            """,
        ),
        "torch.round({x:f}, decimals={n})",
    ),
    "activation": _for_each_name(_F + ".@({x:f})", _ACTIVATIONS),
    "special": (
        *_for_each_name(
            "torch.special.@({x:f})",
            """
            digamma gammaln erfinv i0 i0e i1 i1e bessel_j0 bessel_j1 bessel_y0 bessel_y1 ndtr ndtri log_ndtr entr sinc
            erfcx airy_ai spherical_bessel_j0 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
            modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1
            """,
        ),
        *_for_each_name("torch.special.@({x:f}, {y:f})", "xlogy xlog1py zeta gammainc gammaincc"),
        "torch.special.polygamma({n}, {x:f})",
        "torch.special.chebyshev_polynomial_t({x:f}, {n})",
        "torch.special.hermite_polynomial_h({x:f}, {n})",
        "torch.special.legendre_polynomial_p({x:f}, {n})",
        "torch.frexp({x:f})[{flag}]",
        "torch.ldexp({x:f}, {y:i})",
        "torch.nextafter({x:f}, {y:f})",
    ),
    "binary": tuple(
        template
        for second in ("{y}", "{scalar}")
        for template in _for_each_name(
            f"torch.@({{x}}, {second})",
            """
            add sub mul div maximum minimum pow atan2 fmod remainder hypot lt le gt ge eq ne logical_and logical_or
            logical_xor bitwise_and bitwise_or bitwise_xor floor_divide copysign fmax fmin true_divide heaviside rsub
            """,
        )
    ),
    "operators": (
        *_for_each_name("{x} @ {scalar}", "+ - * / // % < >= == **"),
        *_for_each_name("{scalar} @ {x}", "+ - * / // % < >= =="),
        *_for_each_name("{x:i} @ {n}", "<< >> & | ^"),
        "torch.gcd({x:i}, {y:i})",
        "torch.lcm({x:i}, {y:i})",
    ),
    "ternary": (
        "torch.where({x:b}, {y}, {z})",
        "torch.where({x} > 0, {x}, {y})",
        "torch.where({x:b}, {y}, {scalar})",
        "torch.addcmul({x}, {y}, {z}, value=2)",
        "torch.addcdiv({x:f}, {y:f}, {z:f})",
        "torch.lerp({x:f}, {y:f}, 0.3)",
        "torch.clamp({x}, {y}, {z})",
        "{x}.clamp(-1, 2)",
        "{x}.masked_fill({x} < 0, 1)",
        "{x}.masked_fill({y:b}, {scalar})",
        "torch.add({x}, {y}, alpha=2)",
        "torch._foreach_mul([{x}, {y}], 2)[{flag}]",
        "torch.isclose({x}, {y})",
        "torch.div({x}, {y}, rounding_mode='floor')",
        "torch.div({x}, {y}, rounding_mode='trunc')",
    ),
    "reduction": (
        *_for_each_name("{x}.@()", _REDUCTIONS.replace("logsumexp", "")),
        *_for_each_name("{x}.@({dim})", _REDUCTIONS),
        *_for_each_name("{x}.@({dim}, keepdim=True)", _REDUCTIONS.replace("count_nonzero", "")),
        *_for_each_name("{x:f}.@({dim}, correction={flag}, keepdim={flag})", "std var"),
        *_for_each_name("{x}.@({dim})[0]", "max min mode cummax cummin"),
        # Eager reads past the end of a dim that is expanded (stride 0).
        *_for_each_name("{x}.contiguous().@({dim})[0]", "median nanmedian"),
        *_for_each_name("{x}.@({dim})[1]", "max min"),
        "{x:f}.flatten().logsumexp(0)",
        "torch.var_mean({x:f}, {dim})[{flag}]",
        "{x:f}.norm(dim={dim})",
        "torch.linalg.vector_norm({x:f}, {p}, dim={dim}, keepdim={flag})",
        "torch.aminmax({x}, dim={dim})[{flag}]",
        "{x}.sum(dtype={dtype})",
        "{x:f}.histc(4, -3, 3)",
        "torch.quantile({x:f1}, 0.3)",
    ),
    "scan": (
        *_for_each_name("{x:f}.@({dim})", "softmax log_softmax logcumsumexp"),
        *_for_each_name("{x}.@({dim})", "cumsum cumprod"),
        "{x}.sort(dim={dim}, stable=True)[0]",
        "{x}.sort(dim={dim}, descending=True, stable=True)[{flag}]",
        "{x}.argsort(dim={dim}, stable=True)",
        "{x}.topk({least}, {dim}, largest={flag})[0]",
        "{x}.topk(min(3, {size}), {dim})[{flag}]",
        "{x}.kthvalue(max(1, {least}), {dim})[0]",
        "{x}.diff(dim={dim})",
        "torch.trapezoid({x:f}, dim={dim})",
        "torch.renorm({x:f}, 2, {dim}, 1.0)",
    ),
    "view": (
        "{x}.flatten()",
        "{x}.unsqueeze({dim})",
        "{x}.squeeze()",
        "{x}.squeeze({dim})",
        "{x}.transpose({dim}, -1)",
        "{x}.transpose({dim}, 0).reshape(-1)",
        "{x}.transpose(0, {dim}).reshape({size}, -1)",
        "{x}.reshape(-1, {size})",
        "{x}.narrow({dim}, {start}, {rest})",
        "{x}.select({dim}, {start})",
        "{x}[{n}:]",
        "{x}[..., ::2]",
        "{x}[:, {n}]",
        "{x}[None, ..., {n}:]",
        "{x}.expand(2, *{x}.shape)",
        "{x}.movedim(0, {dim})",
        "{x}.permute(*range({x}.dim())[::-1])",
        "{x}.unfold({dim}, {least}, 1)",
        "{x}.diagonal()",
        "{x}.diagonal({k}, {dim}, -1)",
        "{x}.chunk(2, {dim})[0]",
        "{x}.split({p}, {dim})[-1]",
        "{x}.unbind({dim})[-1]",
        "{x}.view_as({x})",
        "{x}.as_strided(({p}, 2), (1, {n}))",
        "{x}.swapaxes(0, {dim})[{n}:]",
        "{x}.real",
    ),
    "move": (
        "{x}.clone()",
        "{x}.contiguous()",
        "torch.cat([{x}, {y}], {dim})",
        "torch.cat([{x}, {x}, {x}], {dim})",
        "torch.stack([{x}, {y}], {dim})",
        "torch.stack([{x}, {x}], {dim})",
        "{x}.flip({dim})",
        "{x}.roll({k}, {dim})",
        "{x}.rot90()",
        "{x}.repeat_interleave(2, {dim})",
        "{x}.tile(2)",
        "{x:2}.tril()",
        "{x:2}.triu({k})",
        _F + ".pad({x}, ({k}, 1))",
        _F + ".pad({x:3}, (1, {n}), mode='reflect')",
        _F + ".pad({x:4}, (1, 0, {n}, 1), mode='replicate')",
        _F + ".pad({x:3}, (1, 1), mode='circular')",
        "torch.full_like({x}, 3)",
        "torch.arange({x}.shape[{dim}])",
        "torch.outer({x}.flatten()[:9], {y}.flatten()[:9])",
        "torch.meshgrid({x}.flatten()[:5], {y}.flatten()[:5], indexing='ij')[{flag}]",
        "torch.block_diag({x:2}, {y:2})",
        "torch.kron({x:1}, {y:1}[:9])",
        "{x}.select_scatter({y}.select({dim}, 0), {dim}, {start})",
        "{x}.slice_scatter({x}.narrow({dim}, 0, {rest}), {dim}, {start})",
        "{x:2}.diagonal_scatter({x}.diagonal() * 2)",
        _F + ".pixel_shuffle({x:4}.repeat(1, 4, 1, 1), 2)",
        _F + ".pixel_unshuffle({x:4}, 2)",
        _F + ".unfold({x:f4}, 2, padding=1)",
        _F + ".fold({x:f3}.repeat(1, 4, 1), (1, {last} + 1), 2, padding={flag})",
    ),
    "index": (
        "{x}.index_select({dim}, {within}.flatten()[:9])",
        "{x}.gather({dim}, {within})",
        "{x}[{within}]",
        "{x}.take_along_dim({within}, {dim})",
        "{x}.take({within})",
        _F + ".embedding({within}, {x:2})",
        _F + ".embedding_bag({within}.flatten()[None, :9], {x:f2}, mode='mean')",
        "{x}.scatter({dim}, {within}, 1)",
        "{x}.scatter({dim}, {within}, {y:l})",
        "{x}.scatter_add({dim}, {within}, {x})",
        *_for_each_name(
            "{x}.scatter_reduce({dim}, {x:i}.abs() % max(1, {size}), {x}, '@', include_self={flag})",
            "sum prod amax amin",
        ),
        "{x}.index_fill({dim}, {within}.flatten()[:9], 2)",
        "{x}.index_add({dim}, torch.arange({size}).flip(0), {x}, alpha=2)",
        "{x}.index_copy({dim}, torch.arange({size}).roll(1), {x} * 2)",
        "{x}.index_put(({within}.flatten()[:9],), {x}[{start}], accumulate={flag})",
        "{x}.index_put(({x} > 0,), {x}.sum())",
        "{x}.masked_scatter({y:b}, {x}.flip(0))",
        "{x}.put({within}.flatten()[:5], {x}.flatten()[:5], accumulate={flag})",
        "torch.bucketize({x}, torch.arange(-3.0, 4.0), right={flag})",
        "torch.searchsorted({x:f}.sort(-1)[0], {x})",
        _F + ".one_hot({within}, max(1, {size}))",
        "{x:i1}.abs().bincount(minlength={n})",
    ),
    "product": (
        "{x} @ {y}",
        "{x} @ {y}.mT",
        "{x} @ {x}.mT",
        "{x:f3} @ {x:f3}.mT",
        _F + ".linear({x}, self.weight({width}, {last}).to({x}.dtype))",
        _F + ".linear({x:f}.float(), self.weight({width}, {last}), self.weight({width}))",
        "{x:f}.float() @ self.weight({last}, {width})",
        "torch.addmm(self.weight({width}), {x:f2}.float(), self.weight({last}, {width}), beta=0.5)",
        "torch.baddbmm(self.weight(1, {width}), {x:f3}.float(), {x:f3}.float().mT @ {x:f3}.float())",
        "torch.einsum('ij,kj->ik', {x:2}, {x})",
        "torch.einsum('bij,bkj->bik', {x:3}, {x})",
        "torch.tensordot({x:f}, {x:f}, {x}.dim())",
        "torch.dot({x:1}, {x})",
        "torch.mv({x:f2}.float(), self.weight({last}))",
        "torch.cdist({x:f2}, {x:f2})",
        "torch.linalg.cross({x:f2}[:, :3], {x}[:, :3])",
        _F + ".scaled_dot_product_attention({x:f4}, {x}, {x})",
        _F + ".scaled_dot_product_attention({x:f3}, {x} * 2, {x}, is_causal=True)",
        _F + ".scaled_dot_product_attention({x:f4}, {x}, {x}, attn_mask=({x} @ {x}.mT) > 0)",
        _F + ".bilinear({x:f2}.float(), {x:f2}.float(), self.weight(3, {last}, {last}))",
    ),
    "integer product": (
        *(
            template
            for dtype in ("int8", "uint8", "int16", "int32", "int64")
            for template in (
                f"{{x:i2}}.to(torch.{dtype}) @ {{x}}.to(torch.{dtype}).mT",
                f"{{x:i2}}.to(torch.{dtype}).mT @ {{y:i2}}.to(torch.{dtype})",
                f"torch.mv({{x:i2}}.to(torch.{dtype}), {{x}}.to(torch.{dtype})[0])",
                f"torch.addmm({{x:i2}}.to(torch.{dtype}), {{x}}.to(torch.{dtype}), {{x}}.to(torch.{dtype}), beta=2)",
            )
        ),
        *(
            f"torch._int_mm({{x:i2}}.to(torch.{first}), {{x}}.to(torch.{second}).mT)"
            for first in ("int8", "uint8")
            for second in ("int8", "uint8")
        ),
    ),
    "quantised": (
        "torch.fake_quantize_per_tensor_affine({x:f}.float(), 0.1, {n}, -128, 127)",
        "torch.fake_quantize_per_channel_affine({x:f2}.float(), self.weight({channels}).abs() + 0.01,"
        " torch.zeros({channels}, dtype=torch.int32), 1, 0, 255)",
        "torch.quantize_per_tensor({x:f}.float(), 0.1, {n}, torch.qint8).dequantize()",
        "({x:f} / 0.1).nan_to_num().round().clamp(-128, 127).to(torch.int8)",
        *_for_each_name("{x:f}.to(torch.@).to({x}.dtype)", "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"),
        "torch._int_mm({x:i2}.to(torch.int8), {x}.to(torch.int8).mT).float() * 0.01",
    ),
    "long reduction": (
        *(
            f"{{x:f}}.to(torch.{dtype}).flatten().repeat({count}).{name}()"
            for dtype in ("float16", "bfloat16", "float32")
            for count in (257, 4096)
            for name in ("sum", "mean", "std", "norm", "amax")
        ),
        # The factors are at most 1 (`cos`): a product that overflows is NaN if a 0 follows, but 0 if a 0 comes before.
        *_for_each_name("{x:f}.cos().to(torch.@).flatten().repeat(257).prod()", "float16 bfloat16 float32"),
        _F + ".softmax({x:f}.flatten().repeat(300).half(), 0)[:9]",
        _F + ".layer_norm({x:f}.flatten().repeat(300).bfloat16()[None], ({x}.numel() * 300,))[0, :9]",
        "torch.dot({x:f}.flatten().repeat(300).half(), {x}.flatten().repeat(300).half())",
    ),
    "complex": _for_each_name(
        "torch.@(torch.complex({x:f}.float(), {x}.float().flip(0)))",
        """
        exp log log1p log2 log10 expm1 sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh sigmoid
        reciprocal abs angle sgn square
        """,
    ),
    "window": (
        _F + ".conv1d({x:f3}.float(), self.weight({width}, {channels}, 3), padding=1)",
        _F + ".conv1d({x:f3}.float(), self.weight({channels}, 1, 3), padding=2, dilation=2, groups={channels})",
        _F + ".conv2d({x:f4}.float(), self.weight({width}, {channels}, 3, 3), padding=1, stride={p})",
        _F + ".conv2d({x:f4}.float(), self.weight({width}, {channels}, 3, 3), self.weight({width}), padding=1)",
        _F + ".conv2d({x:f4}.float(), self.weight({width}, {channels}, 1, 1))",
        _F + ".conv2d({x:f4}.float(), self.weight({channels}, 1, 3, 3), padding=1, groups={channels})",
        _F + ".conv3d({x:f4}[:, None].float(), self.weight(3, 1, 2, 1, 2), padding=1)",
        _F + ".conv_transpose1d({x:f3}.float(), self.weight({channels}, 3, 2), stride=2)",
        _F + ".conv_transpose2d({x:f4}.float(), self.weight({channels}, 3, 2, 2), stride={p}, padding=1)",
        _F + ".max_pool1d({x:f3}, 2)",
        _F + ".max_pool2d({x:f4}, 2, ceil_mode={flag})",
        _F + ".max_pool2d({x:f4}, 2, padding=1, return_indices=True)[{flag}]",
        _F + ".max_pool3d({x:f4}, 2, 1)",
        _F + ".avg_pool1d({x:f3}, 2, padding=1)",
        _F + ".avg_pool2d({x:f4}, 2, padding=1, count_include_pad={flag})",
        _F + ".avg_pool3d({x:f4}, 2, 1)",
        _F + ".lp_pool2d({x:f4}, 2, 2)",
        _F + ".adaptive_avg_pool1d({x:f3}, {p})",
        _F + ".adaptive_avg_pool2d({x:f4}, 2)",
        _F + ".adaptive_max_pool2d({x:f4}, 2)",
        _F + ".interpolate({x:f4}, scale_factor=2)",
        _F + ".interpolate({x:f4}, size=(3, 5), mode='bilinear', align_corners={flag})",
        _F + ".interpolate({x:f4}, size=(3, 5), mode='bicubic')",
        _F + ".interpolate({x:f3}, size=5, mode='linear')",
        _F + ".interpolate({x:f4}, size=(3, 5), mode='nearest-exact')",
        _F + ".grid_sample({x:f4}, {y:f4}[:1, :2, :2, :1].tanh().expand({x}.shape[0], 2, 2, 2), align_corners={flag})",
    ),
    "layer": (
        _F + ".layer_norm({x}, ({last},), torch.ones({last}, dtype={x}.dtype))",
        _F + ".layer_norm({x:f}.float(), ({last},), self.weight({last}), self.weight({last}))",
        _F + ".layer_norm({x:f2}, {x}.shape)",
        _F + ".rms_norm({x:f}, ({last},))",
        _F + ".group_norm({x:f3}, 1)",
        _F + ".batch_norm({x:f3}.float(), self.weight({channels}), self.weight({channels}).abs())",
        _F + ".instance_norm({x:f3})",
        _F + ".normalize({x:f}, dim={dim})",
        _F + ".local_response_norm({x:f3}, 2)",
        _F + ".prelu({x:f2}.float(), self.weight({channels}))",
        _F + ".glu({x:f}, {dim})",
        _F + ".mse_loss({x:f}, {x:f}.flip(0))",
        _F + ".smooth_l1_loss({x:f}, {x:f} * 2, reduction='none')",
        _F + ".cross_entropy({x:f2}, torch.arange({x}.shape[0]) % {last})",
        _F + ".cross_entropy({x:f2}, {x:f2}.softmax(1), label_smoothing=0.1)",
        _F + ".binary_cross_entropy_with_logits({x:f}, {x:f}.sigmoid())",
        _F + ".kl_div({x:f}.log_softmax(-1), {x:f}.softmax(-1), reduction='sum')",
        _F + ".cosine_similarity({x:f}, {y:f}, -1)",
        "torch.gru_cell({x:f2}.float(), self.weight(3), self.weight(9, {last}), self.weight(9, 3))",
        "torch.lstm_cell({x:f2}.float(), (self.weight(1, 3),) * 2, self.weight(12, {last}), self.weight(12, 3))[0]",
    ),
    "linear algebra": (
        "torch.linalg.det({x:m})",
        "torch.linalg.inv({x:m} @ {x}.mT + torch.eye(3).to({x}.dtype))",
        "torch.linalg.cholesky({x:m} @ {x}.mT + torch.eye(3).to({x}.dtype))",
        "torch.linalg.solve({x:m} @ {x}.mT + torch.eye(3).to({x}.dtype), {x})",
        "torch.linalg.solve_triangular({x:m}.tril() + 9 * torch.eye(3).to({x}.dtype), {x}, upper=False)",
        "torch.linalg.svdvals({x:m})",
        "torch.linalg.eigvalsh({x:m} + {x}.mT)",
        "torch.linalg.qr({x:m} + 9 * torch.eye(3).to({x}.dtype))[1].abs()",  # singular matrices have no gradient
        "torch.linalg.matrix_exp({x:m}.tanh())",
        "torch.linalg.matrix_power({x:m}, {n})",
        "torch.linalg.matrix_norm({x:m}, 'fro')",
    ),
    "fourier": (
        "torch.fft.fft({x:f}, dim={dim}).abs()",
        "torch.fft.rfft({x:f}, dim={dim})",
        "torch.fft.ifft({x}, dim={dim}).real",
        "torch.fft.irfft({x}, dim={dim})",
        "torch.fft.fft2({x:f2}).imag",
        "torch.fft.fftshift({x}, {dim})",
        "torch.complex({x:f}.float(), {x:f}.float().flip(0))",
        "torch.view_as_real({x}.to(torch.complex64))",
        "torch.polar({x:f}.float().abs(), {x:f}.float())",
        "{x}.conj()",
    ),
    "random": (
        "torch.rand_like({x:f})",
        "torch.randn({p}, {n})",
        "torch.randint(-3, 9, ({p}, {n}))",
        "torch.randperm({size})",
        "torch.bernoulli({x:f}.sigmoid().nan_to_num())",
        "torch.normal({x:f}, 1.0)",
        _F + ".dropout({x:f}, 0.5, training=True)",
        _F + ".rrelu({x:f}, training=True)",
    ),
    "cast": ("{bounded}.to({dtype})", "{bounded}.type({dtype})", "{x}.double()", "{x}.view(torch.int32)"),
    "control": (
        "{x} * 2 if {x}.dim() > {n} else {x} + 1",
        "sum(({x} * i for i in range(1, {p})), {x})",
        "torch.cond({x:f}.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), ({x},))",
        "torch.cond({y:f}.mean() > 0, lambda t, u: t + u, lambda t, u: t - u, ({x:f}, {y}))",
        "{x} * 2 if {y}.sum() > 0 else {x} + 1",
        "torch.full((2,), {y:i}.sum().item() % 5) + {x}.sum()",
        "torch.vmap(lambda t: t * 2 - t.sum())({x})",
        "{x}[{x} > 0]",
        "{x}.nonzero()",
        "[t + 1 for t in {x}.unbind(0)][-1]",
    ),
    "in place": (
        "{x}.zero_()",
        "{x}.fill_({n})",
        "{x}.add_({y})",
        "{x}.add_({scalar})",
        "{x}.mul_(2)",
        "{x}.copy_({y:l})",
        "{x}.clamp_(-1, 1)",
        "{x}.relu_()",
        "{x}.sub_({y}, alpha=2)",
        "{x}.div_({y})",
        "{x}.neg_()",
        "{x}.exp_()",
        "{x}[{n}:].mul_(3)",
        "{x}[..., {n}].fill_(4)",
        "{x}[::2].copy_({x}[:1])",
        "{x}.transpose(0, -1).add_(1)",
        "{x}.view(-1)[{n}:].neg_()",
        "{x}.t_().add_(1)",
        "{x}.unsqueeze(0).add_({x})",
        "{x}.diagonal().zero_()",
        "{x}.masked_fill_({y:b}, 2)",
        "{x}.index_fill_({dim}, {within}.flatten()[:3], 2)",
        "{x}.index_put_(({within}.flatten()[:9],), {x}[{start}], accumulate={flag})",
        "{x}.scatter_({dim}, {within}, 1)",
        "{x}.index_add_({dim}, torch.arange({size}), {x} * 2)",
        "{x}.scatter_add_({dim}, {within}, {x} + 1)",
        "{x}.cumsum_({dim})",
        "{x}.normal_()",
        "{x}.bernoulli_(0.5)",
        "torch.sin({x}, out={x})",
    ),
}

# The kinds to draw from: one that is listed n times is n times as likely.
KINDS: tuple[str, ...] = (
    *("unary",) * 3, *("activation",) * 2, "special", *("binary",) * 3, *("operators",) * 2, *("ternary",) * 2,
    *("reduction",) * 4, *("scan",) * 2, *("view",) * 5, *("move",) * 4, *("index",) * 4, *("product",) * 3,
    "integer product", "quantised", "long reduction", "complex", *("window",) * 2, *("layer",) * 2, "linear algebra",
    "fourier", "random", *("cast",) * 2, *("control",) * 2, *("in place",) * 4,
)  # fmt: skip
