"""A resident engine for tests, and a small client for it, over its Unix socket or a port."""
import http.client
import json
import os
import socket
import subprocess
import time

import driver


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("hearth", timeout=driver.PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


class Job:
    def __init__(self, pid, held):
        self.pid, self.held = pid, held

    def end(self):
        self.held.close()
        os.waitpid(self.pid, 0)


class Server:
    """hearth --serve, once it has announced its socket."""

    def __init__(self, env, *args, binary=driver.BIN, stderr=subprocess.PIPE):
        self.p = subprocess.Popen([binary, "--serve", *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)
        line = self.p.stdout.readline().decode()
        if not line:
            raise RuntimeError(self.p.stderr.read().decode())
        self.path = line.split(" on ")[1].strip()
        self.url = self.key = None
        if "--listen" in args:
            self.url = self.p.stdout.readline().decode().split()[-1]
            self.key = self.p.stdout.readline().decode().split()[-1]

    def connection(self):
        return UnixConnection(self.path)

    def from_job(self, n=1):
        """Makes connections from a process that is a shell job of its own; returns them and that process, which the caller ends."""
        ours, theirs = socket.socketpair()
        child = os.fork()
        if not child:
            try:
                os.setpgid(0, 0)
                os.closerange(3, theirs.fileno())  # descriptors that must not stay open in the child
                os.closerange(theirs.fileno() + 1, 4096)
                for _ in range(n):
                    c = socket.socket(socket.AF_UNIX)
                    c.connect(self.path)
                    socket.send_fds(theirs, [b"x"], [c.fileno()])
                    c.close()
                theirs.recv(1)  # until the other side is closed
            finally:
                os._exit(0)
        theirs.close()
        out = []
        for _ in range(n):
            c = self.connection()
            c.sock = socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])
            c.sock.settimeout(c.timeout)
            out.append(c)
        return out, Job(child, ours)

    def request(self, method, path, body=None, headers={}):
        """Returns (status, headers, body)."""
        c = self.connection()
        c.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, dict(headers), encode_chunked="Transfer-Encoding" in headers)
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, r.headers, data

    def chat(self, text, **more):
        status, headers, data = self.request("POST", "/v1/chat/completions", ask(text, **more))
        return status, json.loads(data)

    def stream(self, text, **more):
        """Returns the response while it is being sent."""
        c = self.connection()
        c.request("POST", "/v1/chat/completions", json.dumps(ask(text, stream=True, **more)))
        return c.getresponse()

    def status(self):
        return json.loads(self.request("GET", "/hearth/status")[2])

    def cpu(self):
        """Returns the CPU seconds that the socket thread has used so far."""
        with open(f"/proc/{self.p.pid}/task/{self.p.pid}/stat") as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def spins(self, share, seconds=1):
        """Returns whether the idle server uses more than that fraction of CPU time; retries, in case it became idle late."""
        for _ in range(6):
            began, at = self.cpu(), time.time()
            time.sleep(seconds)
            if self.cpu() - began < 0.03 + share * (time.time() - at):
                return False
        return True

    def settles(self, what, good=lambda status: all(s["state"] == "idle" for s in status["sessions"])):
        until = time.time() + driver.PATIENCE
        while not good(status := self.status()):
            if time.time() > until:
                raise AssertionError(f"{what}: {status}")
            time.sleep(0.01)

    def end(self):
        if self.p.poll() is None:  # not by a signal, so that a sanitizer can report leaks
            try:
                self.request("POST", "/hearth/stop")
            except OSError:
                self.p.terminate()
        try:
            self.p.wait(driver.PATIENCE)
            if self.p.returncode > 0:
                raise AssertionError(self.p.stderr.read().decode() if self.p.stderr else self.p.returncode)
        finally:
            self.p.kill()
            self.p.stdout.close()
            if self.p.stderr:
                self.p.stderr.close()


def chunks(response):
    """Returns the objects of a stream, and whether its end mark came."""
    out, done = [], False
    for line in response.read().decode().split("\n"):
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            out.append(json.loads(line[6:]))
    return out, done


def streamed_calls(chunks):
    """Joins the pieces of tool calls in chunks of chat completions; the first piece of each has its name and id, and no arguments."""
    calls = []
    for piece in (p for c in chunks for choice in c["choices"] for p in choice["delta"].get("tool_calls", [])):
        if piece["index"] == len(calls):
            assert piece["function"]["arguments"] == "", piece
            calls.append({**piece, "function": dict(piece["function"])})
        else:
            assert piece["index"] == len(calls) - 1 and set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"}, piece
            calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return calls


class Case(driver.Case):
    def setUp(self):
        super().setUp()
        self.env["XDG_RUNTIME_DIR"] = os.path.join(self.home, "run")
        os.mkdir(self.env["XDG_RUNTIME_DIR"], 0o700)

    def serve(self, *args, **more):
        s = Server(self.env, *args, **more)
        self.addCleanup(s.end)
        return s

    def nothing_stays(self, s, hung, fds, before, jobs=()):
        """Hanging connections delay no one, and once they and the jobs are closed no session and no descriptor is left."""
        self.assertGreater(len(hung), 10)
        self.assertEqual(s.chat("beside those that hang", max_tokens=2)[0], 200)
        for c in hung:
            c.close()
        for job in jobs:
            job.end()
        s.settles("empty")
        until = time.time() + driver.PATIENCE
        while fds() > before and time.time() < until:
            time.sleep(0.02)
        self.assertLessEqual(fds(), before)
