"""Results of a benchmark's measurements in separate processes, so that the memory of each is released."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def result_of(script: str, *words: str) -> dict[str, Any]:
    """Returns the JSON object that `script` prints on one line. Raises `CalledProcessError` if it fails."""
    said = subprocess.run([sys.executable, script, *words], stdout=subprocess.PIPE, text=True, check=True).stdout
    # The profiler, and imports of a script, may print other lines.
    found: dict[str, Any] = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    return found
