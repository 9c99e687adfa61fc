"""The resident engine compiles schemas beside what it serves. Runs on the fake engine."""
import json
import select
import signal

import driver
from server import Case, ask, chunks


def combinations(n):
    """A schema with 2^n combinations of alternatives."""
    return {"allOf": [{"anyOf": [{"type": "object", "properties": {f"a{i}": {"const": k}}, "required": [f"a{i}"]} for k in (1, 2)]} for i in range(n)]}


class Formats(Case):
    """Schemas are compiled beside the server: one that takes long delays nobody else, and ends at a limit."""

    def hostile(self, s, n, **more):
        """Sends n requests whose schemas take seconds, as one client; returns the connections."""
        out = []
        for _ in range(n):
            c = s.connection()
            c.request("POST", "/v1/chat/completions", json.dumps(ask("x", guided_json=combinations(20), **more)))
            out.append(c)
        return out

    def pending(self, connections):
        return [c for c in connections if not select.select([c.sock], [], [], 0)[0]]

    def test_others_are_served(self):
        s = self.serve()
        connections, job = s.from_job(1)
        self.addCleanup(job.end)
        hung = self.hostile(s, 12) + self.hostile(s, 12, stream=True)
        for i in range(5):
            self.assertEqual(s.request("GET", "/health")[0], 200)
            self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in chunks(s.stream(f"hello {i}"))[0]), f"You said: hello {i}")
        for more in ({}, {"stream": True}):  # another client's schema does not wait for all of these
            connections[0].request("POST", "/v1/chat/completions", json.dumps(ask("x", guided_choice=["abc"], **more)))
            r = connections[0].getresponse()
            self.assertEqual(r.status, 200)
            self.assertEqual(b"[DONE]" in r.read(), bool(more))
        self.assertTrue(self.pending(hung))
        for c in hung:
            c.close()
        self.assertEqual(s.chat("x", guided_choice=["abc"])[0], 200)  # of the same client
        s.settles("idle")

    def test_limit(self):
        s = self.serve()
        for more in ({}, {"stream": True}):
            status, _, data = s.request("POST", "/v1/chat/completions", ask("x", guided_json=combinations(20), **more))
            self.assertEqual(status, 400, data)
            self.assertRegex(json.loads(data)["error"]["message"], "guided_json: too complex: (its grammar takes more than 200 million steps|compiling it takes longer than 30 s)")

    def test_end(self):
        """A server that ends waits for no schema, and tells those who do."""
        s = self.serve()
        hung = self.hostile(s, 3)
        s.request("GET", "/health")
        self.assertEqual(len(self.pending(hung)), 3)
        s.p.terminate()
        for c in hung:
            r = c.getresponse()
            self.assertEqual(r.status, 503)
            self.assertIn("shutting down", json.loads(r.read())["error"]["message"])
        self.assertEqual(s.p.wait(driver.PATIENCE), -signal.SIGTERM)

    def test_fast_enough(self):
        """Schemas of the sizes that clients send."""
        s = self.serve()
        for schema in ({"enum": [f"value-{i}" for i in range(40000)]}, {"oneOf": [{"const": f"value-{i}", "title": "x"} for i in range(20000)]},
                       {"oneOf": [{"type": "object", "properties": {"kind": {"const": f"t{i}"}, "x": {"type": "integer"}}, "required": ["kind"], "additionalProperties": False} for i in range(2000)]}):
            status, j = s.chat("x", guided_json=schema)
            self.assertEqual(status, 200, j)


if __name__ == "__main__":
    driver.unittest.main()
