"""`python -m tests.tools.explain.make_data`: writes the traces and logs in `data/`, by runs of `data/model.py`.

Records that no reader needs and paths of the machine are removed, so that the files are small and readable.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).with_name("data")
# Records that take most of the space of a trace.
DROPPED = ("chromium_event", "dynamo_output_graph", "describe_storage", "guard_added_fast", "artifact")
KEPT_ARTIFACTS = ("dynamo_graph_break_reason", "recompile_reasons", "torch_version")
RECORD = re.compile(r"^V\d{4} [\d:.]+ \d+ \S+\] (\{.*\})$")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        logs = {"TORCH_LOGS": "recompiles,graph_breaks,guards", "TORCH_TRACE": f"{folder}/trace"}
        done = subprocess.run(
            [sys.executable, str(DATA / "model.py")],
            env={**os.environ, **logs},
            capture_output=True,
            text=True,
            check=True,
        )
        (trace,) = Path(folder, "trace").iterdir()
        (DATA / "trace").mkdir(exist_ok=True)
        (DATA / "trace" / "torch_trace.log").write_text(_portable(_short(trace.read_text())))
        (DATA / "torch_logs.txt").write_text(_portable(done.stderr))


def _short(text: str) -> str:
    lines, is_kept = list[str](), False
    for line in text.splitlines():
        if match := RECORD.match(line):
            fields = json.loads(match[1])
            name = next(iter(fields))
            is_kept = name not in DROPPED or fields[name].get("name") in KEPT_ARTIFACTS
            if name == "compilation_metrics":
                own = {key: value for key, value in fields[name].items() if value and not key.endswith("_config")}
                line = line.replace(match[1], json.dumps({**fields, name: own}))
        if is_kept:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _portable(text: str) -> str:
    """The text without paths of the machine, and without guards on hooks and on marks of dimensions."""
    text = re.sub(r"[^\s\"(]*/site-packages", "/usr/lib/python3/dist-packages", text)
    text = re.sub(r"[^\s\"(]*/tools/explain/data/model\.py", "/home/user/model.py", text)
    return re.sub(r"^.*_(?:GUARD: hasattr|hooks\b).*\n", "", text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
