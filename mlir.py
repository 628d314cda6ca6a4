"""`import mlir` in a script: MLIR's Python bindings, even if their package has another name.

A build of MLIR on the path has priority. Otherwise these names refer to the bindings that
`buddy.compiler.mlir.bindings` has found; `mlir.ir` is then the original module.
"""

import os
import sys

_builds = [os.path.join(entry or os.curdir, "mlir") for entry in sys.path]
# Most builds are namespace packages, which Python only uses if it finds no module like this one.
__path__ = [folder for folder in _builds if os.path.isfile(os.path.join(folder, "ir.py"))]

if not __path__:
    from buddy.compiler.mlir.bindings import install_alias

    sys.modules[__name__] = install_alias(__name__)
