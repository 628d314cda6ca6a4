"""Run as a program: prints the devices that IREE's runtime finds, as JSON on one line."""

from __future__ import annotations

import json


def find_devices() -> list[tuple[str, str, str]]:
    """Returns `(driver, path, name)` of each device; skips a driver whose libraries are missing."""
    import iree.runtime as runtime

    rows = []
    for driver in runtime.query_available_drivers():
        try:
            devices = runtime.get_driver(driver).query_available_devices()
        except Exception:
            continue
        rows += [(driver, str(device.get("path", "")), str(device.get("name", ""))) for device in devices]
    return rows


if __name__ == "__main__":
    print(json.dumps(find_devices()))
