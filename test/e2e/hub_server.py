"""A hub that speaks Hugging Face's API, on two ports: the endpoint, and the host to which it redirects for large files. Tests make it fail."""
import hashlib
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, address):
        """The client has gone."""


class Hub:
    """repos: {"ORG/NAME": {path: bytes}}; files whose names end in LARGE are stored as LFS objects."""
    LARGE = (".safetensors", ".gguf")

    def __init__(self, case):
        self.repos, self.commits, self.log, self.page = {}, {}, [], 1000
        self.token = None  # what the hub demands
        self.gated = False
        self.lists = {}  # {path: entry}: replaces what a list says of a file
        self.faults = []  # functions (path, handler) -> True: it has answered; called for each download of a file
        self.data = {}  # {path: bytes}: sent instead of the file's own bytes
        self.lock = threading.Lock()
        hub = self

        class Endpoint(Handler):
            def do_GET(self):
                hub.endpoint(self)

        class Store(Handler):
            def do_GET(self):
                hub.store(self)

        self.servers = [Server(("127.0.0.1", 0), kind) for kind in (Endpoint, Store)]
        self.url, self.cdn = (f"http://127.0.0.1:{s.server_address[1]}" for s in self.servers)
        for s in self.servers:
            threading.Thread(target=s.serve_forever, daemon=True).start()
            case.addCleanup(s.server_close)
            case.addCleanup(s.shutdown)

    def add(self, name, files, revision=1):
        self.repos[name] = files
        self.commits[name] = hashlib.sha1(f"{name} {revision}".encode()).hexdigest()

    def sent(self, what=""):
        """The log of downloads: [(server, path, first byte, has a token)] of the files whose names contain a text."""
        with self.lock:
            return [row for row in self.log if what in row[1]]

    def entry(self, path, data):
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        row = {"type": "file", "path": path, "size": len(data), "oid": oid}
        if path.endswith(self.LARGE):
            row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return {**row, **self.lists.get(path, {})}

    def endpoint(self, h):
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path)
        token = (h.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.token and token != self.token:
            return h.answer(401, b'{"error": "Invalid credentials"}')
        if m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/main", path):
            if m[1] not in self.repos:
                return h.answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return h.answer(200, json.dumps({"id": m[1], "sha": self.commits[m[1]], "siblings": []}).encode())
        if m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(\w+)", path):
            rows = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}] + [self.entry(p, d) for p, d in self.repos[m[1]].items()]
            at = int(urllib.parse.parse_qs(url.query).get("cursor", ["0"])[0])
            more = {"Link": f'<https://elsewhere.example{url.path}?recursive=true&cursor={at + self.page}>; rel="next"'} if at + self.page < len(rows) else {}
            return h.answer(200, json.dumps(rows[at:at + self.page]).encode(), more)
        m = re.fullmatch(r"/([^/]+/[^/]+)/resolve/(\w+)/(.+)", path)
        if not m or m[1] not in self.repos or m[3] not in self.repos[m[1]] or m[2] != self.commits[m[1]]:
            return h.answer(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
        if self.gated:
            return h.answer(403, b"Access to this model is restricted", {"X-Error-Code": "GatedRepo"})
        if m[3].endswith(self.LARGE):
            return h.answer(302, b"", {"Location": f"{self.cdn}/{m[1]}/{urllib.parse.quote(m[3])}?signed=1"})
        self.send_file(h, "endpoint", m[3], self.repos[m[1]][m[3]])

    def store(self, h):
        path = urllib.parse.unquote(urllib.parse.urlsplit(h.path).path)
        org, name, file = path[1:].split("/", 2)
        if f"{org}/{name}" not in self.repos:
            return h.answer(404, b"no")
        self.send_file(h, "store", file, self.repos[f"{org}/{name}"][file])

    def send_file(self, h, server, path, data):
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", h.headers.get("Range") or "")
        first = int(m[1]) if m else 0
        with self.lock:
            self.log.append((server, path, first if m and not m[2] else "header" if m else 0, "Authorization" in h.headers))
        for fault in list(self.faults):
            if fault(path, h):
                return
        data = self.data.get(path, data)
        if m and first >= len(data):
            return h.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        if not m:
            return h.answer(200, data)
        last = min(int(m[2] or len(data) - 1), len(data) - 1)
        h.answer(206, data[first:last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def head(self, status, length, more=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, status, body, more=None):
        self.head(status, len(body), more)
        try:
            self.wfile.write(body)
        except OSError:
            pass

    def drop(self):
        """Ends the connection without more bytes."""
        self.close_connection = True
        try:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def first_byte(self):
        m = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
        return int(m[1]) if m else 0


def is_header(h):
    """A request for a header has both ends of its range."""
    return re.fullmatch(r"bytes=\d+-\d+", h.headers.get("Range") or "") is not None


def cut_after(hub, suffix, n, times=1, gate=None):
    """A fault: the next downloads of a file end after n bytes; with an event, once that is set."""
    left = [times]

    def fault(path, h):
        if not path.endswith(suffix) or is_header(h) or not left[0]:
            return False
        left[0] -= 1
        data, first = next(files[path] for files in hub.repos.values() if path in files), h.first_byte()
        h.head(206 if first else 200, len(data) - first, {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"} if first else None)
        h.wfile.write(data[first:first + n])
        if gate:
            h.wfile.flush()
            gate.wait()
        h.drop()
        return True
    return fault


def stall_after(hub, suffix, n, gate, times=1):
    """A fault: the next downloads of a file stop after n bytes, with an open connection, until the event `gate` is set."""
    return cut_after(hub, suffix, n, times, gate)


def status(suffix, code, times=1, server=None, more=None):
    """A fault: the next downloads of a file get a status."""
    left = [times]

    def fault(path, h):
        if not path.endswith(suffix) or is_header(h) or not left[0]:
            return False
        left[0] -= 1
        h.answer(code, b"no", more)
        return True
    return fault
