"""A real browser for the tests: headless Chromium, spoken to through its DevTools protocol."""

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import websocket

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Chromium:
    """A tab of a headless Chromium, spoken to through the DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update"]
        flags += ["--remote-allow-origins=*", "--remote-debugging-port=0"]
        assert CHROMIUM
        command = [CHROMIUM, *flags, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **quiet)
        self.events: list[dict[str, Any]] = []
        self._count = 0
        port = self._wait_for(profile / "DevToolsActivePort")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            tab = next(target for target in json.load(answer) if target["type"] == "page")
        self._socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=30)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _wait_for(file: Path) -> str:
        deadline = time.monotonic() + 60
        while not (file.is_file() and file.read_text()):
            assert time.monotonic() < deadline, "Chromium did not start within a minute"
            time.sleep(0.05)
        return file.read_text().split()[0]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; keep events received meanwhile."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def open(self, page: Path | str, width: int = 1280, dark: bool = False) -> None:
        """Open a file or an address in a window of a width, light or dark, and wait for it."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        address = page.as_uri() if isinstance(page, Path) else page
        for url in ("about:blank", address):  # first blank: nothing of the last page is left
            self.events.clear()
            self.call("Page.navigate", url=url)
            while not any(event["method"] == "Page.loadEventFired" for event in self.events):
                self.events.append(json.loads(self._socket.recv()))

    def says(self, expression: str) -> Any:
        """Evaluate JavaScript in the page and return its value; a promise is awaited."""
        options = {"returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """Return what the page logged, threw or requested from elsewhere since it was opened."""
        loud = ["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"]
        loud += ["Page.javascriptDialogOpening", "Network.requestWillBeSent"]
        own = ("file:", "data:", "about:")
        return [
            event
            for event in self.events
            if event["method"] in loud
            and not event["params"].get("request", {}).get("url", "").startswith(own)
        ]

    def close(self) -> None:
        """End the browser."""
        self.call("Browser.close")
        self._socket.close()
        self.process.wait(timeout=30)
