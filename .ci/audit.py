"""Checks `requirements.lock` for known vulnerabilities: `audit.py FOLDER-OF-PIP-AUDIT`.

The exit code is 1 if a package has one. If the database cannot be reached, a line says that the audit was not done, and
why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
# Asked about first: if the database does not know this package, it is not asked about the others.
FIRST = "torch"
SECONDS = 300


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: audit.py FOLDER-OF-PIP-AUDIT", file=sys.stderr)
        return 2
    program = Path(sys.argv[1]) / "pip-audit"
    lines = (line.split()[0].partition("+")[0] for line in LOCK.read_text("utf-8").splitlines() if "==" in line)
    pins = dict(line.split("==") for line in lines)
    found, why = asked(program, {FIRST: pins[FIRST]})
    if not why:
        found, why = asked(program, pins)
    if why:
        print(f"== audit: NOT DONE: {why}")
        return 0
    for line in found:
        print(f"== audit: {line}")
    print(f"== audit: {len(pins)} packages of {LOCK.name}, {len(found)} with a known vulnerability or not told of")
    return 1 if any("not told of" not in line for line in found) else 0


def asked(program: Path, pins: dict[str, str]) -> tuple[list[str], str]:
    """A line for each package that is vulnerable, or unknown to the database; or the reason why the audit failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in pins.items()))
        file.flush()
        words = ["-r", file.name, "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
        try:
            done = subprocess.run([program, *words], capture_output=True, text=True, timeout=SECONDS, check=False)
            told = json.loads(done.stdout)["dependencies"]
        except FileNotFoundError:
            return [], "pip-audit is not there"
        except subprocess.TimeoutExpired:
            return [], f"the service of advisories has not answered in {SECONDS} s"
        except (ValueError, KeyError):
            last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
            return [], f"the service of advisories cannot be reached ({last.partition(':')[0]})"
    silent = [item["name"] for item in told if "skip_reason" in item]
    if len(silent) == len(told):
        return [], "the package index that is set up here tells of no advisories"
    lines = [f"{name}: not told of" for name in silent]
    for item in told:
        ids = ", ".join(each["id"] for each in item.get("vulns", ()))
        lines += [f"{item['name']} {item['version']}: {ids}"] * bool(ids)
    return lines, ""


if __name__ == "__main__":
    sys.exit(main())
