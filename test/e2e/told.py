"""A server of chat completions that sends what it is told."""
import http.server
import json
import threading


class Told(http.server.BaseHTTPRequestHandler):
    """A scripted server: sends one reply of the list after the other."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, headers, body):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.seen.append(("GET", self.path, self.headers.get("Authorization"), None))
        if isinstance(self.server.models, tuple):  # a reply
            return self.reply(*self.server.models)
        self.reply(200, {"Content-Type": "application/json"}, json.dumps({"data": [{"id": m, "max_model_len": 4096} for m in self.server.models]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(("POST", self.path, self.headers.get("Authorization"), body))
        if hasattr(self.server, "send"):  # instead of a reply
            try:
                return self.server.send(self)
            except OSError:  # the client has left
                return None
        return self.reply(*self.server.replies.pop(0))


def stream(*deltas, end=b"data: [DONE]\n\n", usage=True):
    out = b""
    for d in deltas:
        out += b"data: " + json.dumps({"choices": [{"index": 0, "delta": d if isinstance(d, dict) else {"content": d}, "finish_reason": None}]}).encode() + b"\r\n\r\n"
    out += b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    if usage:
        out += b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}\n\n'
    return 200, {"Content-Type": "text/event-stream"}, out + end


def serve(case, replies=()):
    """Starts one until the end of the test."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Told)
    server.seen, server.replies, server.models = [], list(replies), ["org/name"]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    case.addCleanup(server.server_close)
    case.addCleanup(server.shutdown)
    return server
