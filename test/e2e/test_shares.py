"""Fair shares of the resident engine: clients take turns at sessions, the waiting queue and connections. Runs on the fake engine."""
import http.client
import json
import select
import time

import driver
from server import Case, ask


class Shares(Case):
    """Clients take turns: a job at the socket, a program at the port, and the users that each names."""

    def job(self, s, n=1):
        connections, job = s.from_job(n)
        self.addCleanup(job.end)
        self.addCleanup(lambda: [c.close() for c in connections])
        return connections

    def in_turn(self, s, clients, want):
        """clients: (name, connection, further fields) in the order in which they ask, while another answer occupies the only session."""
        first = s.stream("read")
        s.settles("begins", lambda status: status["sessions"] and status["sessions"][0]["state"] == "prefill")
        asked, ends = {}, []
        for i, (name, c, more, headers) in enumerate(clients):
            c.request("POST", "/v1/chat/completions", json.dumps(ask("x", **more)), headers)
            asked[c.sock] = (name, c)
            s.settles("asks", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == i + 1)
        first.close()
        while asked:
            ready = select.select(list(asked), [], [], driver.PATIENCE)[0]
            self.assertTrue(ready)
            ends += [asked[sock][0] for sock in ready]
            self.assertEqual(sorted(ends), sorted(want[:len(ends)]))  # answers that ended at the same time came in some order
            for sock in ready:
                self.assertEqual(asked.pop(sock)[1].getresponse().status, 200)

    def test_jobs_take_turns(self):
        s = self.serve("--parallel", "1")
        many, others = self.job(s, 6), [self.job(s, 1 + (i == 0))[:] for i in range(12)]
        clients = [(f"many {i}", c, {}, {}) for i, c in enumerate(many)] + [(f"{k} of job {j}", c, {}, {}) for j, job in enumerate(others) for k, c in enumerate(job)]
        want = ["many 0"] + [f"0 of job {j}" for j in range(12)] + ["many 1", "1 of job 0"] + [f"many {i}" for i in range(2, 6)]
        self.in_turn(s, clients, want)
        pids = {x.get("process") for x in s.status()["sessions"]}
        self.assertEqual(pids, {None})

    def test_users_take_turns(self):
        """At the port, where a client is known only by its program's name and the user it names."""
        s = self.serve("--parallel", "1", "--listen", "127.0.0.1:0")
        host, port = s.url.split("/")[2].split(":")
        key = {"Authorization": f"Bearer {s.key}"}
        who = [("a", {}, "A/1"), ("a", {}, "A/1"), ("a", {}, "A/1"), ("b", {}, "B/1"), ("u", {"user": "u"}, "A/1"), ("u", {"user": "u"}, "A/1"), ("v", {"safety_identifier": "v"}, "A/1"), ("u", {"user": "u"}, "B/1")]
        names = [f"{name} {i}" for i, (name, more, agent) in enumerate(who)]
        clients = [(name, http.client.HTTPConnection(host, int(port), timeout=driver.PATIENCE), more, {**key, "User-Agent": agent}) for name, (_, more, agent) in zip(names, who)]
        self.in_turn(s, clients, [names[i] for i in (0, 3, 4, 6, 7, 1, 5, 2)])

    def test_room_for_another(self):
        """Beside a client that has all answers of --parallel, another is answered at once."""
        s = self.serve("--parallel", "8")
        many = self.job(s, 11)
        for c in many:
            c.request("POST", "/v1/chat/completions", json.dumps(ask("read")))
        states = lambda status: sorted(x["state"] for x in status["sessions"])
        s.settles("eight", lambda status: states(status) == ["prefill"] * 8 + ["waiting"] * 3)
        self.assertEqual(s.chat("hello")[1]["choices"][0]["message"]["content"], "You said: hello")
        self.assertEqual(states(s.status()), ["idle"] + ["prefill"] * 8 + ["waiting"] * 3)
        out = self.run_bin("--status")[1].decode()
        pid = s.status()["sessions"][0]["process"]
        self.assertEqual(out.count(f", for process {pid}\n"), 9, out)
        self.assertIn(f"\n  3 waiting, with prompts of {3 * len('1user2read1assistant2')} tokens, for process {pid}\n", out)
        many.pop().close()
        many.pop(0).close()
        s.settles("the next one", lambda status: states(status) == ["idle"] + ["prefill"] * 8 + ["waiting"])

    def test_room_to_wait(self):
        """A client that fills its part of the waiting queue is refused while others still have room; likewise with connections."""
        s = self.serve("--parallel", "1")
        many, refused = self.job(s, 300), []
        for c in many:
            c.request("POST", "/v1/chat/completions", json.dumps(ask("read")))
            if c is many[0]:
                s.settles("the first begins", lambda status: [x["state"] for x in status["sessions"]] == ["prefill"])
        s.settles("all have asked", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 192)
        while len(refused) < 300 - 193 and (ready := select.select([c.sock for c in many if c not in refused], [], [], driver.PATIENCE)[0]):
            refused += [c for c in many if c.sock in ready]
        self.assertEqual((len(refused), select.select([c.sock for c in many if c not in refused], [], [], 0)[0]), (300 - 193, []))
        r = refused[0].getresponse()
        self.assertEqual((r.status, r.headers["Retry-After"]), (503, "1"))
        self.assertIn("of them from this client", json.loads(r.read())["error"]["message"])
        other = self.job(s)[0]
        other.request("POST", "/v1/chat/completions", json.dumps(ask("hello")))
        s.settles("it may wait", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 193)
        for c in many:
            c.close()
        self.assertEqual(json.loads(other.getresponse().read())["choices"][0]["message"]["content"], "You said: hello")

    def test_room_to_connect(self):
        s = self.serve()
        many = self.job(s, 500)
        other = self.job(s)[0]
        other.request("GET", "/v1/models")
        self.assertEqual(other.getresponse().status, 200)
        status = 0
        for c in (many[0], many[-1]):
            c.request("GET", "/v1/models")
            r = c.getresponse()
            self.assertEqual((r.status, r.headers["Connection"], r.headers["Retry-After"]), (503, "close", "1") if c is many[-1] else (200, None, None))
        closed = lambda: [c for c in many[1:-1] if select.select([c.sock], [], [], 0)[0]]
        until = time.time() + driver.PATIENCE
        while len(closed()) < 500 - 385 and time.time() < until:
            time.sleep(0.05)
        self.assertEqual(closed(), many[384:-1])


if __name__ == "__main__":
    driver.unittest.main()
