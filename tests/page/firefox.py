"""Firefox, by WebDriver BiDi: playwright drives only a build of its own."""

import base64
import json
import os
import re
import shutil
import subprocess
import time

WATCH = """() => {
  window.violations = [];
  document.addEventListener("securitypolicyviolation", event => {
    window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
  });
}"""
IS_SETTLED = """document.getElementById("caption")?.textContent !== ""
&& !document.getElementById("view").hasAttribute("aria-busy")
&& document.getElementById("problem").hidden"""
SECONDS = 60


def executable():
    names = ("firefox", "firefox-esr")
    return os.environ.get("GATTN_FIREFOX") or next(filter(None, map(shutil.which, names)), None)


class Firefox:
    """A browser with one window; what its console says and what it asks for are kept."""

    def __init__(self, path, profile):
        import websocket

        command = [path, "--headless", "--no-remote", "--profile", str(profile)]
        log = profile / "firefox.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, "--remote-debugging-port", "0", "about:blank"], stdout=out, stderr=out
            )
        self.complaints, self.requests, self._last, self._socket = [], [], 0, None
        try:
            address = self._address(log)
            self._socket = websocket.create_connection(
                f"{address}/session", timeout=SECONDS, suppress_origin=True
            )
            self._ask("session.new", capabilities={})
            events = ["log.entryAdded", "network.beforeRequestSent"]
            self._ask("session.subscribe", events=events)
            self._ask("script.addPreloadScript", functionDeclaration=WATCH)
            self._window = self._ask("browsingContext.getTree")["contexts"][0]["context"]
        except BaseException:
            self.close()
            raise

    def _address(self, log):
        for _ in range(10 * SECONDS):
            if found := re.search(
                r"BiDi listening on (ws://\S+)", log.read_text("utf-8", "replace")
            ):
                return found[1]
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise OSError(f"Firefox does not listen: {log.read_text('utf-8', 'replace')[-500:]}")

    def _ask(self, method, **params):
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._last:
            self._note(answer)
        assert answer["type"] == "success", answer
        return answer["result"]

    def _note(self, event):
        said = event.get("params", {})
        if event.get("method") == "log.entryAdded" and said["level"] in ("error", "warn"):
            self.complaints.append(said["text"])
        if event.get("method") == "network.beforeRequestSent":
            self.requests.append(said["request"]["url"])

    def open(self, path, fragment="", size=(1280, 800)):
        """Open a file anew, also if only its fragment differs."""
        viewport = dict(zip(("width", "height"), size, strict=True))
        self._ask("browsingContext.setViewport", context=self._window, viewport=viewport)
        for url in ("about:blank", f"{path.absolute().as_uri()}#{fragment}"):
            self._ask("browsingContext.navigate", context=self._window, url=url, wait="complete")

    def evaluate(self, expression):
        """Evaluate an expression whose value JSON can hold."""
        found = self._ask(
            "script.evaluate",
            expression=f"JSON.stringify(({expression}) ?? null)",
            target={"context": self._window},
            awaitPromise=True,
        )
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])

    def settle(self):
        """Wait until the page has drawn its state."""
        for _ in range(20 * SECONDS):
            if self.evaluate(IS_SETTLED):
                return
            time.sleep(0.05)
        raise AssertionError(f"not settled: {self.evaluate('document.body.innerText')[:500]}")

    def click(self, selector, at=(0.5, 0.5)):
        """Click on an element, at a share of its width and height."""
        box = self.evaluate(
            f"(e => (e.scrollIntoView({{block: 'center'}}), e.getBoundingClientRect()))"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        x, y = box["x"] + at[0] * box["width"], box["y"] + at[1] * box["height"]
        move = {"type": "pointerMove", "x": round(x), "y": round(y)}
        actions = [move, *({"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp"))]
        self._act({"type": "pointer", "id": "mouse", "actions": actions})

    def press(self, *keys):
        """Press keys one after another."""
        kinds = ("keyDown", "keyUp")
        actions = [{"type": kind, "value": key} for key in keys for kind in kinds]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def _act(self, source):
        self._ask("input.performActions", context=self._window, actions=[source])
        self.settle()

    def screenshot(self):
        """Return a picture of the window, as PNG."""
        found = self._ask("browsingContext.captureScreenshot", context=self._window)
        return base64.b64decode(found["data"])

    def close(self):
        """Let the browser go."""
        if self._socket is not None:
            self._socket.close()
        self._process.terminate()
        self._process.wait(SECONDS)
