"""The op classes with their ATen and prims targets, under the names that Buddy-MLIR's scripts use."""

from buddy.compiler.graph.operations.contractions import *  # noqa: F403
from buddy.compiler.graph.operations.effects import *  # noqa: F403
from buddy.compiler.graph.operations.elementwise import *  # noqa: F403
from buddy.compiler.graph.operations.reductions import *  # noqa: F403
from buddy.compiler.graph.operations.shapes import *  # noqa: F403
from buddy.compiler.graph.operations.special import *  # noqa: F403
