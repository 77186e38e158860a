"""Headless Chromium, by its debugging protocol over a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars",
    "--window-size=760,620",
)  # fmt: skip


class Browser:
    """One page.

    Attributes:
        errors: exceptions of the page, and what it wrote to the console.
        requests: addresses that it asked for.
    """

    def __init__(self, folder: Path) -> None:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        if found is None:
            pytest.skip("chromium is not installed")
        (self._in, out), (into, self._out) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (into, out)]

        def ends() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        self._process = subprocess.Popen(
            [found, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=ends, pass_fds=(3, 4), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (into, out, *theirs):
            os.close(end)
        self._rest, self._number = b"", 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network"):
            self.call(f"{part}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 16)
            assert more, "chromium has ended"
            self._rest += more
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(json.dumps(parameters["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        return message

    def run(self, code: str) -> Any:
        """What JavaScript says."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, code: str, seconds: float = 120) -> None:
        """Wait until it says something true."""
        end = time.monotonic() + seconds
        while not self.run(code):
            assert time.monotonic() < end, code
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write a picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
