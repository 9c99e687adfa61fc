"""--serve --page: what the page may do, and, where a Chromium is installed, the page in it, on the fake engine. SCREENSHOT=FILE keeps a picture of it."""
import base64
import json
import os
import re
import shutil
import subprocess
import time
import unittest
import urllib.error
import urllib.request

import driver
import server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A browser without a window, driven over a pipe."""

    def __init__(self, home):
        to, self.to = os.pipe()
        self.back, back = os.pipe()

        def descriptors():  # the browser reads 3 and writes 4
            os.dup2(to, 1023), os.dup2(back, 1022)
            os.dup2(1023, 3), os.dup2(1022, 4)

        self.p = subprocess.Popen([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run", "--disable-background-networking", "--no-proxy-server", f"--user-data-dir={home}/chromium", "--window-size=1100,800", "about:blank"],
                                  close_fds=False, preexec_fn=descriptors, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": home})
        os.close(to), os.close(back)
        self.rest, self.n, self.session = b"", 0, None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]

    def call(self, method, **params):
        self.n += 1
        os.write(self.to, json.dumps({"id": self.n, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.back, 1 << 16)
                if not more:
                    raise RuntimeError("the browser has ended")
                self.rest += more
            line, self.rest = self.rest.split(b"\0", 1)
            m = json.loads(line)
            if m.get("id") == self.n:
                if "error" in m:
                    raise RuntimeError(m["error"])
                return m["result"]

    def eval(self, code):
        r = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"])
        return r["result"].get("value")

    def until(self, code, want=True):
        end = time.monotonic() + driver.PATIENCE
        while (got := self.eval(code)) != want:
            if time.monotonic() > end:
                raise AssertionError(f"{code}: {got!r}, not {want!r}")
            time.sleep(0.05)

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        self.p.kill()
        self.p.wait()
        os.close(self.to), os.close(self.back)


class Page(server.Case):
    def open(self, *args, binary=driver.BIN):
        s = self.serve("--listen", "127.0.0.1:0", "--page", *args)
        self.page = s.p.stdout.readline().decode().split()[-1]
        return s

    def get(self, url, key=None, method="GET"):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method, headers={"Authorization": "Bearer " + key} if key else {})) as r:
                return r.status, r.headers, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read().decode()

    def test_file(self):
        """The page needs no key, and everything else does; it loads nothing from elsewhere and makes no HTML of texts."""
        s = self.open()
        base = s.url[:-len("/v1")]
        self.assertEqual(self.page, f"{base}/#key={s.key}")
        status, headers, text = self.get(base + "/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        policy = headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
            self.assertIn(part, policy)
        self.assertNotIn(s.key, text)
        self.assertEqual(re.findall(r"(?:src|href)=|https?://|@import|url\(", text), [])
        self.assertEqual(re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), [])
        for path in ("/v1/models", "/hearth/status", "/hearth/experts", "/index.html"):
            self.assertEqual(self.get(base + path)[0], 401, path)
        self.assertEqual(self.get(base + "/", method="POST")[0], 405)
        self.assertEqual(s.request("GET", "/")[0], 200)

    def test_asked_for(self):
        s = self.serve("--listen", "127.0.0.1:0")
        for method, text in (("GET", "hearth is running\n"), ("HEAD", "")):  # as Ollama's clients ask before all else
            status, headers, got = self.get(s.url[:-2], method=method)
            self.assertEqual((status, headers["Content-Type"], got), (200, "text/plain; charset=utf-8", text))
        self.assertEqual(self.get(s.url[:-2] + "x")[0], 401)
        self.assertIn("--page needs --listen", self.run_bin("--serve", "--page")[2])

    def test_experts(self):
        s = self.open()
        m = json.loads(s.request("GET", "/hearth/experts")[2])
        self.assertEqual((m["n_experts"], len(m["layers"]), m["layers"][1]["used"], m["layers"][1]["device"][2]), (8, 3, [10, 10, 100, 10, 10, 0, 2, 10], 1))
        self.assertEqual([d["rank"] for d in m["devices"]], [0, 1])
        with s.stream("drip") as r:
            r.read1()
            self.assertEqual(s.request("GET", "/hearth/experts")[0], 503)

    @unittest.skipUnless(CHROMIUM, "no Chromium is installed")
    def test_browser(self):
        """A chat with streaming, folded thinking and speed; several chats; what a model writes stays text; the experts."""
        s = self.open()
        b = Browser(self.home)
        self.addCleanup(b.close)
        b.call("Page.enable")
        b.call("Page.navigate", url=self.page)
        b.until("document.readyState === 'complete' && document.querySelector('#model')?.value", "fake")
        self.assertEqual(b.eval("location.href"), self.page.split("#")[0])  # the key is not left in the address
        self.assertEqual(b.eval("document.documentElement.outerHTML.includes(sessionStorage.getItem('hearth.key'))"), False)
        ask = lambda text: b.eval(f"document.querySelector('#text').value = {json.dumps(text)}; document.querySelector('#ask').requestSubmit()")
        last = "[...document.querySelectorAll('.assistant')].pop()?.lastElementChild.textContent"
        ask("slow")
        b.until("/^w0 w1/.test(" + last + ") && !/w59/.test(" + last + ") && document.querySelector('#send').textContent === 'Stop'")  # as it comes
        b.until("/w59/.test(" + last + ") && document.querySelector('#send').textContent === 'Send'")
        self.assertRegex(b.eval("document.querySelector('#speed').textContent"), r"^\d+\.\d\d s to the first token, \d+\.\d tokens/s, \d\d+ tokens$")
        ask('say ["\\u000eI ponder\\u000f<img src=x onerror=alert(1)> & **bold**"]')
        b.until(last, "<img src=x onerror=alert(1)> & **bold**")
        self.assertEqual(b.eval("[document.querySelectorAll('#talk img').length, document.querySelector('#talk details').open, document.querySelector('#talk details').lastChild.textContent]"), [0, False, "I ponder"])
        if os.environ.get("SCREENSHOT"):
            b.eval("document.querySelector('#talk details').open = true; 0")
            b.picture(os.environ["SCREENSHOT"])
        ask("drip")
        b.until("/^d0/.test(" + last + ")")
        ask("")  # the button stops it
        b.until("[...document.querySelectorAll('.note')].some(e => e.textContent === '(stopped)')")
        s.settles("stopped")
        b.eval("document.querySelector('#new').click()")
        ask("hello")
        b.until(last, "You said: hello")
        self.assertEqual(b.eval("document.querySelectorAll('#chats li').length"), 2)
        b.eval("document.querySelectorAll('#chats li')[1].firstChild.click()")
        self.assertEqual(b.eval("document.querySelectorAll('.user').length"), 3)
        b.until("!document.querySelector('#show-experts').hidden")
        b.eval("document.querySelector('#show-experts').click()")
        b.until("document.querySelector('#experts').open")
        self.assertIn("8 experts a layer", b.eval("document.querySelector('#experts-text').textContent"))
        self.assertEqual(b.eval("[document.querySelector('#map').width, document.querySelector('#map').height]"), [8, 2])
        if os.environ.get("SCREENSHOT"):
            b.picture(os.environ["SCREENSHOT"] + ".experts.png")
        b.call("Page.navigate", url=self.page.split("#")[0] + "?again")  # the chats are still there, and the key of this tab
        b.until("document.readyState === 'complete' && document.querySelector('#model')?.value", "fake")
        b.until("document.querySelectorAll('#chats li').length", 3)
        b.eval("sessionStorage.clear(); 0")
        b.call("Page.navigate", url=self.page.split("#")[0] + "?anew")
        b.until("document.querySelector('#login')?.open")
        b.eval(f"document.querySelector('#key').value = {json.dumps(s.key)}; document.querySelector('#key-form').requestSubmit()")
        b.until("document.querySelector('#model').value", "fake")


if __name__ == "__main__":
    unittest.main()
