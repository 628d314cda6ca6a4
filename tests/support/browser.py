"""Drives a headless Chromium over the pipe of its DevTools protocol, for tests of pages.

with Browser(path) as browser:
    browser.open("file:///tmp/page.html")
    assert browser.evaluate("document.title") == "…"
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str:
    """Returns the path of a browser that these tests can drive; "" without one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), "")


class Browser:
    """A page in a headless browser. `requests` are the addresses that it asks for, `errors` those of scripts."""

    def __init__(self, path: str, width: int = 1400, height: int = 900) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="buddy-browser-", ignore_cleanup_errors=True)
        command_end, self._write_fd = os.pipe()
        self._read_fd, answer_end = os.pipe()

        # The browser reads commands from descriptor 3, and writes answers to 4.
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            f"--user-data-dir={self._folder.name}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        shell = f'exec "$0" "$@" 3<&{command_end} 4>&{answer_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, path, *options], pass_fds=(command_end, answer_end),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(command_end)
        os.close(answer_end)
        self._buffer, self._last_id, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> Browser:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write_fd)
        os.close(self._read_fd)
        self._folder.cleanup()

    def open(self, address: str) -> None:
        """Opens a page, and waits until its element `app` is shown."""
        self._call("Page.navigate", url=address)
        self.wait_for("!!globalThis.report && document.readyState === 'complete'")

    def wait_for(self, condition: str, seconds: float = 30.0) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, f"not true: {condition}"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression; a promise is awaited. Raises `AssertionError` with its exception."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        details = answer.get("exceptionDetails")
        assert details is None, details.get("exception", details).get("description", details)
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key, as a person does: `j`, `Enter`, `]`."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "PageDown": 34, "End": 35, "Home": 36}
        code = {"windowsVirtualKeyCode": codes[key], "code": key} if key in codes else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def type(self, text: str) -> None:
        for character in text:
            self.press(character)

    def move_mouse(self, selector: str, number: int = 0) -> None:
        """Moves the mouse to the start of an element, in two steps: the first one may replace the element below it."""
        expression = f"(r => [r.x + 60, r.y + r.height / 2])(document.querySelectorAll({selector!r})[{number}]"
        x, y = self.evaluate(f"{expression}.getBoundingClientRect())")
        for step in (0, 1):
            self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)

    def prefer(self, scheme: str) -> None:
        """Prefers `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path) -> None:
        """Writes a picture of the page as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def print(self) -> bytes:
        """Returns the printed page as PDF."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])

    # ---- the protocol --------------------------------------------------------------------------------------------

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", details).get("description", str(details)))

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read_fd, 1 << 20)
            assert data, "the browser has exited"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))
