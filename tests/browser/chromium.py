"""A headless Chromium over the DevTools pipe: nothing but the standard library is needed."""

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

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Chromium:
    """One browser with one page. ``events`` collects what the page reports."""

    def __init__(self) -> None:
        assert EXECUTABLE
        self.events: list[dict[str, Any]] = []
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        from_us, self._out = os.pipe()
        self._in, to_us = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to descriptor 4; both
        # pipes are first moved out of the way, so that neither dup2 closes the other's end.
        command = f'exec 3<&{from_us} 4>&{to_us}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", command, EXECUTABLE, *FLAGS, f"--user-data-dir={self._profile}"],
            pass_fds=(from_us, to_us),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._buffer = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(60)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result = answer["result"]
                assert isinstance(result, dict)
                return result

    def open(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file at a viewport and colour scheme and wait until it is laid out."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        deadline = time.monotonic() + 30
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            assert time.monotonic() < deadline, "the page did not load in 30 s"
            self._read(30)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page (DevTools may, the page's own policy may not)."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it prints, on the paper that its style sheet asks for."""
        answer = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(answer["data"])

    def close(self) -> None:
        """End the browser and remove its profile."""
        self._process.terminate()
        self._process.wait(10)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], seconds)
            assert ready, f"the browser said nothing for {seconds} s"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser ended"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        assert isinstance(message, dict)
        if "method" in message:
            self.events.append(message)
        return message
