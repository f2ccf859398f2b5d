"""A headless Chromium, driven over plain HTTP: what a person would see, and what the console says."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

_START_S = 60.0
_CALL_S = 120.0
_CLOSE_S = 30.0

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver") or shutil.which("chromium.chromedriver")


class Browser:
    """One browser with a profile of its own below `directory`; closing it ends every process of it."""

    def __init__(self, directory: Path, *, dark: bool = False, scripts: bool = True) -> None:
        assert CHROMIUM is not None and DRIVER is not None
        home = directory / "browser"
        home.mkdir()
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a group of its own, that can be ended as one
            env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)},
        )
        self._session = ""
        try:
            self._base = f"http://127.0.0.1:{self._port()}"
            self._session = self._open(home, dark, scripts)
        except BaseException:
            self.close()
            raise

    def _port(self) -> int:
        out = self._driver.stdout
        assert out is not None
        said, end = b"", time.monotonic() + _START_S
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while time.monotonic() < end:
                if not selector.select(timeout=0.5):
                    continue
                piece = os.read(out.fileno(), 4096)
                said += piece
                if found := re.search(rb"successfully on port (\d+)", said):
                    return int(found[1])
                if not piece:
                    break
        raise RuntimeError(f"chromedriver did not start: {said.decode(errors='replace')}")

    def _open(self, home: Path, dark: bool, scripts: bool) -> str:
        args = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-extensions",
            f"--user-data-dir={home / 'profile'}", "--window-size=1200,1400", "--hide-scrollbars",
        ]  # fmt: skip
        if dark:
            args.append("--force-dark-mode")
        settings = {"profile.managed_default_content_settings.javascript": 1 if scripts else 2}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": CHROMIUM, "args": args, "prefs": settings},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        return str(self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            self._base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        # No proxy of the environment may stand between two processes of one machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_CALL_S) as answer:
            return json.loads(answer.read())["value"]

    def visit(self, path: Path) -> None:
        self._call("POST", f"/session/{self._session}/url", {"url": path.as_uri()})

    def run(self, script: str) -> Any:
        """The value that a piece of JavaScript returns."""
        return self._call("POST", f"/session/{self._session}/execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """What the console said since it was last asked."""
        said = self._call("POST", f"/session/{self._session}/se/log", {"type": "browser"})
        return [str(each["message"]) for each in said]

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def screenshot(self, path: Path) -> None:
        import base64

        path.write_bytes(base64.b64decode(self._call("GET", f"/session/{self._session}/screenshot")))

    def close(self) -> None:
        try:
            if self._session:
                self._call("DELETE", f"/session/{self._session}")
        except OSError:
            pass  # the driver is gone already; what is left of its group ends below
        finally:
            try:
                os.killpg(self._driver.pid, signal.SIGTERM)
                self._driver.wait(_CLOSE_S)
            except ProcessLookupError:
                pass  # it ended by itself
            except subprocess.TimeoutExpired:
                os.killpg(self._driver.pid, signal.SIGKILL)
                self._driver.wait(_CLOSE_S)
            if self._driver.stdout is not None:
                self._driver.stdout.close()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
