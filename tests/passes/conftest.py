"""Lets the tests here import `mlir_jit`, which stands next to the kernels' tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))
