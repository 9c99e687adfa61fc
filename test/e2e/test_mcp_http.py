"""MCP servers with a URL, on the fake engine: one of our own, whose path says what it does, and the official package."""
import http.server
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import unittest

import driver

NEW, OLD = "2026-07-28", "2025-06-18"
TOOLS = [{"name": "echo", "description": "Echoes.", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}, {"name": "other", "inputSchema": {"type": "object"}}]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", kind="application/json", **headers):
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def events(self, *parts, end=True):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        for part in parts:
            self.wfile.write(part() if callable(part) else part)
            self.wfile.flush()
        self.close_connection = True

    def do_DELETE(self):
        self.server.log.append("DELETE " + self.headers.get("Mcp-Session-Id", "-"))
        self.reply(200)

    def do_POST(self):
        s, kind = self.server, self.path.strip("/")
        m = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        head = {k: self.headers.get(k) for k in ("MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name", "Authorization")}
        s.log.append(m.get("method", "reply " + json.dumps(m.get("result", m.get("error")))))
        s.heads.append(head)
        assert self.headers["Content-Type"] == "application/json" and {"application/json", "text/event-stream"} <= set(re.split(", *", self.headers["Accept"]))
        if kind in ("login", "token") and head["Authorization"] != "Bearer good":
            return self.reply(401, {"error": "invalid_token"}, **({"WWW_Authenticate": 'Bearer resource_metadata="https://x/.well-known/oauth-protected-resource"'} if kind == "login" else {}))
        if kind == "moved":
            return self.reply(307, Location="http://127.0.0.1:1/elsewhere")
        if kind == "page":
            return self.reply(200, b"<html>hello</html>", "text/html")
        if kind == "nothing":
            return self.reply(404, b"", None)
        if kind == "hangs":
            time.sleep(30)
        if "id" not in m or "method" not in m:
            return self.reply(202, b"", None)
        stateless = kind in ("stateless", "stateless-events")
        if stateless and m["params"].get("_meta", {}).get("io.modelcontextprotocol/protocolVersion") != NEW:
            return self.reply(400, {"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32602, "message": "no _meta"}})
        if stateless and (head["MCP-Protocol-Version"], head["Mcp-Method"], head["Mcp-Name"]) != (NEW, m["method"], m["params"].get("name")):
            return self.reply(400, {"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32020, "message": f"header mismatch {head}"}})
        if m["method"] == "server/discover":
            if not stateless:
                return self.reply(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Bad Request: Missing session ID"}})
            return self.result(m, {"supportedVersions": [NEW], "capabilities": {"tools": {}}, "resultType": "complete"})
        if m["method"] == "initialize":
            s.n_sessions += 1
            session = {"badsession": "a b\u00e9", "longsession": "x" * 600}.get(kind, f"session-{s.n_sessions}")
            return self.result(m, {"protocolVersion": "2025-03-26" if kind == "older" else OLD, "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}, **({} if kind == "sessionless" else {"Mcp_Session_Id": session}))
        if not stateless and kind != "sessionless" and (head["Mcp-Session-Id"] != f"session-{s.n_sessions}" or (kind == "forgets" and m["method"] == "tools/call" and s.n_sessions == 1) or kind == "never"):
            return self.reply(404, {"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32001, "message": "Session not found"}})
        if not stateless and head["MCP-Protocol-Version"] != ("2025-03-26" if kind == "older" else OLD):
            return self.reply(400, b"wrong version", "text/plain")
        if m["method"] == "tools/list":
            return self.result(m, {"tools": TOOLS})
        return self.call(kind, m)

    def result(self, m, result, **headers):
        message = {"jsonrpc": "2.0", "id": m["id"], "result": result}
        if self.path.endswith("events"):
            return self.events(b": hello\r\n\r\nevent: message\r\nid: 1\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n")
        return self.reply(200, message, **headers)

    def call(self, kind, m):
        s = self.server
        message = {"jsonrpc": "2.0", "id": m["id"], "result": {"content": [{"type": "text", "text": "echo: " + m["params"]["arguments"].get("text", "")}], "resultType": "complete"}}
        event = lambda data: b"data: " + json.dumps(data).encode() + b"\n\n"
        if kind == "asks":
            def waits():
                end = time.monotonic() + driver.PATIENCE
                while sum(x.startswith("reply") for x in s.log) < 2 and time.monotonic() < end:
                    time.sleep(0.01)
                return b""
            return self.events(event({"jsonrpc": "2.0", "id": "p", "method": "ping"}), event({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {}}), event({"jsonrpc": "2.0", "method": "notifications/message"}), waits, event(message))
        if kind == "lines":
            text = json.dumps(message)
            return self.events(*(b"data: " + part.encode() + b"\n" for part in re.split("(?<=,) ", text)), b"\n", event({"jsonrpc": "2.0", "id": m["id"], "result": {"content": []}}))
        if kind == "other":
            return self.reply(200, {**message, "id": m["id"] + 1})
        if kind == "notjson":
            return self.reply(200, b'{"jsonrpc": ')
        if kind == "badevent":
            return self.events(b"data: {\n\n")
        if kind == "cut":
            return self.events(b"data: {}")
        if kind == "ends":
            return self.events(b": nothing\n\n")
        if kind == "long":
            return self.reply(200, b'{"x": "' + b"x" * (17 << 20) + b'"}')
        if kind == "longevent":
            return self.events(b"data: " + b"x" * (17 << 20))
        if kind == "head":
            return self.reply(200, b"{}", X_Long="x" * 60000, **{f"X_{i}": "y" * 60000 for i in range(5)})
        if kind == "error":
            return self.reply(400, {"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32602, "message": "no such tool"}})
        if kind == "breaks":
            return self.reply(500, b"oops", "text/plain")
        if kind == "flood":
            def forever():
                try:
                    while True:
                        self.wfile.write(event({"jsonrpc": "2.0", "id": "i" * 60000, "method": "roots/list"}))
                except OSError:
                    return b""
            return self.events(forever)
        if kind == "slow":
            s.release.wait(driver.PATIENCE)
            self.close_connection = True
            return
        return self.result(m, message["result"])


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 50

    def handle_error(self, request, address):
        pass  # clients that leave


class Http(driver.ChatCase):
    def setUp(self):
        super().setUp()
        self.s = Quiet(("127.0.0.1", 0), Handler)
        self.s.log, self.s.heads, self.s.n_sessions, self.s.release = [], [], 0, threading.Event()
        threading.Thread(target=self.s.serve_forever, args=(0.02,), daemon=True).start()
        self.host = f"127.0.0.1:{self.s.server_port}"
        self.addCleanup(self.s.server_close)
        self.addCleanup(self.s.shutdown)
        self.addCleanup(self.s.release.set)

    def use(self, kind, *options, env=None, prompt='use echo {"text": "hi"}'):
        self.s.log.clear(), self.s.heads.clear()
        self.s.n_sessions = 0
        return self.run_bin("--mcp", f"http://{self.host}/{kind}", "--allow", "all", *options, "-p", prompt, env=env)

    def result(self, kind, **more):
        rc, out, err = self.use(kind, "--json", **more)
        self.assertEqual(rc, 0, err)
        call, = json.loads(out)["calls"]
        return call["status"], call["result"]

    def test_revisions(self):
        """Both revisions, with JSON and with streams; sessions, their headers and their end."""
        for kind, begins, end in (("stateless", ["server/discover", "tools/list", "tools/call"], None), ("stateless-events", ["server/discover", "tools/list", "tools/call"], None),
                                  ("good", ["server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"], "DELETE session-1"), ("sessionless", ["server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"], None),
                                  ("older", ["server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"], "DELETE session-1")):
            rc, out, err = self.use(kind)
            self.assertEqual((rc, out), (0, b"It says: echo: hi.\n"), (kind, err))
            self.assertEqual(self.s.log, begins + ([end] if end else []), kind)
            self.assertEqual({h["Authorization"] for h in self.s.heads}, {None})

    def test_stream(self):
        """Requests of the server are answered beside its stream; data on several lines, and a second reply, are understood."""
        self.assertEqual(self.result("asks"), ("ok", "echo: hi"))
        self.assertEqual([x for x in self.s.log if x.startswith("reply")], ["reply {}", 'reply {"code": -32601, "message": "this client has no such method"}'])
        self.assertEqual(self.result("lines"), ("ok", "echo: hi"))

    def test_session_lost(self):
        """A session that the server has forgotten is begun again, once."""
        self.assertEqual(self.result("forgets"), ("ok", "echo: hi"))
        self.assertEqual(self.s.log[-4:], ["initialize", "notifications/initialized", "tools/call", "DELETE session-2"])
        rc, out, err = self.use("never")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("does not keep its session", err)

    def test_results(self):
        for kind, what in (("other", "answers another request"), ("notjson", "message: "), ("badevent", "message: "), ("cut", "its stream ended without a reply"), ("ends", "its stream ended without a reply"), ("long", "longer than 16 MB"),
                           ("longevent", "longer than 16 MB"), ("error", "tools/call: no such tool (code -32602)"), ("breaks", "status 500; check the URL"), ("flood", "does not read the replies")):
            status, result = self.result(kind)
            self.assertEqual(status, "failed", kind)
            self.assertIn(what, result, kind)
            self.assertIn(f"MCP server {self.host}", result)
        self.assertEqual(self.result("head")[0], "failed")

    def test_bad_servers(self):
        for kind, what in (("moved", "redirects (status 307) to http://127.0.0.1:1/elsewhere, which is not followed"), ("page", "answers with text/html instead of JSON; check the URL"), ("nothing", "status 404; check the URL"),
                           ("badsession", "its session id is not one"), ("longsession", "its session id is not one")):
            rc, out, err = self.use(kind)
            self.assertEqual((rc, out), (1, b""), kind)
            self.assertIn(f"--mcp: MCP server {self.host}", err)
            self.assertIn(what, err)
        rc, out, err = self.use("hangs", env={"HEARTH_LIMITS": "patience=10"})
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("no answer to initialize after 30 s", err)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            rc, out, err = self.run_bin("--mcp", f"http://127.0.0.1:{free.getsockname()[1]}/", "-p", "x")
        self.assertEqual((rc, out), (1, b""))
        self.assertRegex(err, "--mcp: MCP server 127.0.0.1:\\d+: .*[Cc]onnect")
        for url, what in (("http://user:pw@127.0.0.1/", "a name or a password"), ("http://127.0.0.1/#x", "without #"), ("http://", "not a URL"), ("https://[x/", "not a URL")):
            rc, out, err = self.run_bin("--mcp", url, "-p", "x")
            self.assertEqual((rc, out), (2, b""), err)
            self.assertIn(what, err)

    def test_token(self):
        """A token goes to its host only; without one the message says what to do. OAuth is refused by name."""
        rc, out, err = self.use("login")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn(f"MCP server {self.host} (status 401) wants a login with OAuth, which is not supported; if it gives out tokens, make one and set HEARTH_MCP_TOKEN to {self.host}=TOKEN", err)
        self.assertIn(f"wants a token; set HEARTH_MCP_TOKEN to {self.host}=TOKEN", self.use("token")[2])
        for token in (f"{self.host}=good", f"other.example=x  {self.host}=good"):
            for kind in ("login", "token"):
                rc, out, err = self.use(kind, env={"HEARTH_MCP_TOKEN": token})
                self.assertEqual((rc, out), (0, b"It says: echo: hi.\n"), err)
                self.assertEqual({h["Authorization"] for h in self.s.heads}, {"Bearer good"})
        for token in (f"127.0.0.1=good", f"{self.host}0=good", f"x{self.host}=good"):
            self.assertIn("wants a token", self.use("token", env={"HEARTH_MCP_TOKEN": token})[2])
            self.assertEqual({h["Authorization"] for h in self.s.heads}, {None})
        self.assertIn("rejects the token; check HEARTH_MCP_TOKEN", self.use("token", env={"HEARTH_MCP_TOKEN": f"{self.host}=bad"})[2])
        for token, what in (("good", "must be HOST=TOKEN"), (f"{self.host}=a\x01b", "printable ASCII")):
            rc, out, err = self.use("token", env={"HEARTH_MCP_TOKEN": token})
            self.assertEqual(rc, 2)
            self.assertIn(what, err)
        rc, out, err = self.run_bin("--mcp", "http://mcp.example/", "-p", "x", env={"HEARTH_MCP_TOKEN": "mcp.example=x"})
        self.assertEqual(rc, 2)
        self.assertIn("would be sent unencrypted", err)
        self.assertNotIn("good", self.use("moved", env={"HEARTH_MCP_TOKEN": f"{self.host}=good"})[2])
        tool = self.write("env.json", json.dumps({"name": "env", "command": ["env"]}))
        self.assertNotIn(b"secret", self.run_bin("--tool", tool, "--allow", "all", "-p", "use env {}", env={"HEARTH_MCP_TOKEN": "a=secret"})[1])

    def test_cancel(self):
        """Ctrl-C during a call ends it, and tells the server of the revision with sessions."""
        t = self.chat("--mcp", f"http://{self.host}/slow", "--allow", "all")
        t.send('use echo {"text": "hi"}\r')
        end = time.monotonic() + driver.PATIENCE
        while "tools/call" not in self.s.log and time.monotonic() < end:
            time.sleep(0.02)
        t.send("\x03")
        self.last = t.prompt(t.until("stopped", self.last))
        self.assertIn("notifications/cancelled", self.s.log)
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)

    def test_timeout(self):
        status, result = self.result("slow", env={"HEARTH_LIMITS": "patience=20"})
        self.assertEqual(status, "failed")
        self.assertIn("no answer to tools/call after 60 s", result)
        self.assertIn("notifications/cancelled", self.s.log)

    def test_allocations(self):
        args = ["--mcp", f"http://{self.host}/good", "--allow", "all", "-q", "-p", 'use echo {"text": "hi"}']
        n = self.allocations(*args)
        for at in range(1, n + 1, max(1, n // 30)):
            self.s.n_sessions = 0
            rc, out, err = self.run_bin(*args, env={"HEARTH_FAULT": f"alloc:{at}"})
            self.assertGreaterEqual(rc, 0, (at, err))
            self.assertTrue(rc or out == b"It says: echo: hi.\n" or b"no memory" in out, (at, rc, out, err))

    @unittest.skipUnless(importlib.util.find_spec("mcp"), "the Python package mcp is not installed")
    def test_package(self):
        """The official package as a server; each revision of it speaks its own protocol."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        path = self.write("server.py", f"""
try:
    from mcp.server import MCPServer as Server
    server, how = Server("s"), dict(port={port})
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server
    server, how = Server("s", port={port}), {{}}
@server.tool()
def add(a: int, b: int) -> str:
    return f"sum {{a + b}}"
server.run(transport="streamable-http", **how)
""")
        p = subprocess.Popen([sys.executable, path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        end = time.monotonic() + driver.PATIENCE
        while time.monotonic() < end and socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)
        for _ in range(2):
            rc, out, err = self.run_bin("--mcp", f"http://127.0.0.1:{port}/mcp", "--allow", "all", "-p", 'use add {"a": 3, "b": 4}')
            self.assertEqual((rc, out), (0, b"It says: sum 7.\n"), err)


if __name__ == "__main__":
    unittest.main()
