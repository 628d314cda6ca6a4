"""The op classes with their ATen and prims targets, under the names that Buddy-MLIR's scripts use."""

from buddy.compiler.graph.operations.arithmetic import *  # noqa: F403
from buddy.compiler.graph.operations.checks import *  # noqa: F403
from buddy.compiler.graph.operations.choice import *  # noqa: F403
from buddy.compiler.graph.operations.contractions import *  # noqa: F403
from buddy.compiler.graph.operations.given import *  # noqa: F403
from buddy.compiler.graph.operations.indexing import *  # noqa: F403
from buddy.compiler.graph.operations.linear_algebra import *  # noqa: F403
from buddy.compiler.graph.operations.observing import *  # noqa: F403
from buddy.compiler.graph.operations.random import *  # noqa: F403
from buddy.compiler.graph.operations.reductions import *  # noqa: F403
from buddy.compiler.graph.operations.shapes import *  # noqa: F403
from buddy.compiler.graph.operations.sorting import *  # noqa: F403
from buddy.compiler.graph.operations.special import *  # noqa: F403
from buddy.compiler.graph.operations.windows import *  # noqa: F403
