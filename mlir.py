"""`import mlir` in a script: MLIR's Python bindings, also where they come from a package of another name.

A build of MLIR that is on the path comes first. Only where there is none do these names mean the bindings that
`buddy.compiler.mlir.bindings` has found; `mlir.ir` is then the very module that they come from.
"""

import os
import sys

_builds = [os.path.join(entry or os.curdir, "mlir") for entry in sys.path]
# Most builds are namespace packages, which Python takes only where it finds no module like this one.
__path__ = [folder for folder in _builds if os.path.isfile(os.path.join(folder, "ir.py"))]

if not __path__:
    from buddy.compiler.mlir.mlir_alias import install

    sys.modules[__name__] = install(__name__)
