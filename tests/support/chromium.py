"""Chromium without a window, spoken to over its own pipes (the DevTools protocol): what a page asks
for, prints and says.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time

import pytest

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (Debian: apt install chromium)"
)


class Browser:
    """One page of one browser.

    ``requests`` has the URLs that it asked for, ``said`` what was written to its console, errors
    and warnings included.
    """

    def __init__(self, folder):
        to_read, to_write, from_read, from_write = *os.pipe(), *os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--window-size=1280,1000",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}/profile",
        ]
        # Chromium reads descriptor 3 and writes 4; ours are moved out of their way.
        low = to_read, from_write
        to_read, from_write = (fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in low)
        for each in low:
            os.close(each)
        command = [
            "bash",
            "-c",
            f'exec "$@" 3<&{to_read} 4>&{from_write}',
            "bash",
            CHROMIUM,
            *flags,
        ]
        self.process = subprocess.Popen(
            command,
            pass_fds=(to_read, from_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self.out, self.into = (
            os.fdopen(from_read, "rb", buffering=0),
            os.fdopen(to_write, "wb", buffering=0),
        )
        self.number, self.rest, self.session = 0, b"", None
        self.requests, self.said = [], []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.out.close()
        self.into.close()

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.into.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self):
        while b"\0" not in self.rest:
            found = self.out.read(1 << 20)
            assert found, "Chromium has gone"
            self.rest += found
        line, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(line)
        told = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif message.get("method") == "Log.entryAdded":
            self.said.append(told["entry"]["text"])
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.said.append(
                " ".join(str(each.get("value", each.get("description"))) for each in told["args"])
            )
        elif message.get("method") == "Runtime.exceptionThrown":
            self.said.append(
                told["exceptionDetails"]
                .get("exception", {})
                .get("description", told["exceptionDetails"]["text"])
            )
        return message

    def open(self, url, drawn):
        """Open a page and wait until an expression of it is true."""
        self.ask("Page.navigate", url=url)
        self.until(drawn)

    def until(self, expression):
        end = time.monotonic() + 120
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.said)
            time.sleep(0.05)

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def press(self, key, code=None, text=""):
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code or key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode={"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40}.get(key, 0),
            )

    def scheme(self, name):
        self.ask(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )

    def picture(self, whole=True):
        """A PNG."""
        return base64.b64decode(
            self.ask("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))[
                "data"
            ]
        )

    def _clip(self, whole):
        if not whole:
            return {}
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        }

    def printed(self):
        """A PDF, of the page size that the page asks for."""
        return base64.b64decode(
            self.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
        )
