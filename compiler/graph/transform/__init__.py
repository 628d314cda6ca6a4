"""Graph passes: functions that rewrite a Buddy graph in place. Recipes name them."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.transform.fusion import (
    apply_classic_fusion,
    flash_attention_prefill,
    gqa_attention_fusion,
    replace_matmul_with_onednn,
    replace_matmul_with_onednn_selective,
    simply_fuse,
)
from buddy.compiler.graph.transform.quantisation import integer_products
from buddy.compiler.graph.transform.rewriting import Note, Transform, TransformError, observe
from buddy.compiler.graph.transform.simplification import (
    drop_identities,
    eliminate_matmul_transpose_reshape,
    eliminate_transpose,
    maxpool2d_simplify,
    slice_parts,
)
from buddy.compiler.protocol.errors import check_registration
from buddy.compiler.protocol.recipe import OptionValue, typed_options

__all__ = [
    "Note",
    "Transform",
    "TransformError",
    "apply_classic_fusion",
    "drop_identities",
    "eliminate_matmul_transpose_reshape",
    "eliminate_transpose",
    "flash_attention_prefill",
    "gqa_attention_fusion",
    "graph_pass",
    "integer_products",
    "maxpool2d_simplify",
    "observe",
    "options_of",
    "replace_matmul_with_onednn",
    "replace_matmul_with_onednn_selective",
    "run_transform",
    "simply_fuse",
    "slice_parts",
    "transforms",
]

# In a valid order to run them.
_BUILT_IN_PASSES: tuple[Transform, ...] = (
    drop_identities,
    slice_parts,
    integer_products,
    maxpool2d_simplify,
    eliminate_transpose,
    eliminate_matmul_transpose_reshape,
    gqa_attention_fusion,
    flash_attention_prefill,
    replace_matmul_with_onednn,
    replace_matmul_with_onednn_selective,
    apply_classic_fusion,
    simply_fuse,
    observe,
)
# The passes that `graph_pass` has registered, by name.
_PLUGIN_PASSES: dict[str, Transform] = {}


def graph_pass(transform: Transform) -> Transform:
    """Decorator that registers a graph pass for recipes, under the function's name with `-` for `_`.

    Raises `BuddyError` if other code has registered the name.
    """
    name = _recipe_name(transform)
    check_registration("graph pass", name, transforms().get(name), transform)
    _PLUGIN_PASSES[name] = transform
    return transform


def transforms() -> dict[str, Transform]:
    """Returns the graph passes by name, in a valid order to run them; those of plug-ins are last."""
    return {**{_recipe_name(transform): transform for transform in _BUILT_IN_PASSES}, **_PLUGIN_PASSES}


def _recipe_name(transform: Transform) -> str:
    """Returns the name of a graph pass in recipes."""
    return transform.__name__.replace("_", "-")


def options_of(transform: Transform) -> dict[str, OptionValue]:
    """Returns a graph pass's options, by their names in recipes, with the defaults.

    Options are the parameters after the graph, with `-` for `_`.
    """
    _graph, *options = signature(transform).parameters.values()
    return {parameter.name.replace("_", "-"): parameter.default for parameter in options}


def run_transform(graph: Graph, name: str, options: Mapping[str, OptionValue]) -> list[Note]:
    """Runs the graph pass `name` on `graph`, in place, and returns its notes.

    Raises `TransformError` if the pass is unknown, its options are invalid, or it rejects the graph.
    """
    transform = transforms().get(name)
    if transform is None:
        raise TransformError("unknown graph pass")
    try:
        typed = typed_options(name, options_of(transform), options)
    except ValueError as error:
        raise TransformError(str(error)) from error
    with graph.rewriting():
        return transform(graph, **{key.replace("-", "_"): value for key, value in typed.items()}) or []
