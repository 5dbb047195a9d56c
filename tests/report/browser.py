"""A real browser for tests: headless Chromium, spoken to through its debugging pipe, with nothing but the standard library.

It collects what goes wrong in a page: exceptions, errors on the console, and anything that the page tries to fetch.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium():
    return next((found for found in map(shutil.which, NAMES) if found), None)


class Browser:
    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self.write_end = os.pipe()
        self.read_end, answers = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        os.set_inheritable(commands, True)
        os.set_inheritable(answers, True)
        launch = ["sh", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "sh", program, "--headless=new", "--no-sandbox", "--disable-gpu",
                  "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--remote-debugging-pipe",
                  f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(launch, pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.number, self.rest, self.events = 0, b"", []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.send("Browser.close", wait=False)
        except OSError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        self.profile.cleanup()

    def _messages(self, seconds):
        """Whatever has arrived, waiting for the first."""
        if select.select([self.read_end], [], [], seconds)[0]:
            data = os.read(self.read_end, 1 << 20)
            if not data:
                raise OSError("the browser ended")
            *whole, self.rest = (self.rest + data).split(b"\0")
            return [json.loads(text) for text in whole]
        return []

    def send(self, method, session=None, wait=True, seconds=90, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data):]
        wanted, end = self.number, time.monotonic() + seconds
        while wait:
            if time.monotonic() > end:
                raise TimeoutError(f"{method}: no answer in {seconds} s")
            answer = None
            for message in self._messages(1):
                if message.get("id") == wanted:
                    answer = message
                elif "method" in message:
                    self.events.append(message)
            if answer:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path, **options):
        return Page(self, path, **options)


class Page:
    """A page in a tab of its own, drawn completely when this returns."""

    def __init__(self, browser, path, width=1200, height=900, dark=False, scale=1, ready="document.documentElement.dataset.ready === 'yes'"):
        self.browser = browser
        context = browser.send("Target.createTarget", url="about:blank")
        self.target = context["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height, scale)
        self.set_dark(dark)
        self.send("Page.navigate", url=f"file://{path}")
        end = time.monotonic() + 120
        while not self.evaluate(f"document.readyState === 'complete' && ({ready})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{path} was not drawn in 120 s")
            time.sleep(0.1)
        self.settle()

    def send(self, method, **parameters):
        return self.browser.send(method, session=self.session, **parameters)

    def resize(self, width, height=900, scale=1):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def set_dark(self, dark):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def settle(self):
        """Two frames and what they set off."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 150))))")

    def evaluate(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", "exception"))
        return result["result"].get("value")

    def in_frame(self, expression, seconds=60):
        """The same in the page's only frame, once it is drawn."""
        end = time.monotonic() + seconds
        while True:
            frame = self.send("Page.getFrameTree")["frameTree"]["childFrames"][0]["frame"]["id"]
            world = self.send("Page.createIsolatedWorld", frameId=frame)["executionContextId"]
            ready = "document.readyState === 'complete' && document.documentElement.dataset.ready === 'yes'"
            result = self.send("Runtime.evaluate", contextId=world, returnByValue=True, expression=f"({ready}) ? ({expression}) : null")["result"]
            if result.get("value") is not None:
                return result["value"]
            if time.monotonic() > end:
                raise TimeoutError("the frame was not drawn")
            time.sleep(0.2)

    def move_mouse(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def problems(self):
        """Exceptions, errors and warnings on the console, and requests for anything that is not in the page."""
        self.evaluate("0")  # so that what was on its way has arrived
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            what = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = what["exceptionDetails"]
                found.append("exception: " + details.get("exception", {}).get("description", details["text"]))
            elif event["method"] == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
                found.append("console: " + " ".join(str(argument.get("value", argument.get("description"))) for argument in what["args"]))
            elif event["method"] == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                found.append("log: " + what["entry"]["text"])
            elif event["method"] == "Network.requestWillBeSent":
                address = what["request"]["url"]
                if not address.startswith(("data:", "blob:")) and what.get("type") != "Document":
                    found.append("request: " + address)
        return found

    def screenshot(self, path, whole=False):
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)
