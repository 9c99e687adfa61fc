"""Whatever the model, an answer is a valid document or its turn ends with an error: random models of ../shared/fixtures answer every schema, one process per
answer and as a server with several clients. Only with -Dlong_tests=true. HEARTH_DOCUMENTS: answers of the servers."""
import json
import os
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

from documents import VALID, fault, fixtures, validators
from server import Case, ask

DOCUMENTS = int(os.environ.get("HEARTH_DOCUMENTS", "10000"))
SEEDS, CLIENTS = range(1, 6), 8


class Documents(Case):
    def setUp(self):
        super().setUp()
        self.validators, self.models = validators(self), fixtures(self)
        self.lock, self.counts, self.faults = threading.Lock(), {"valid": 0, "errors": 0}, []

    def count(self, label, text, error):
        """Counts one answer; text is None if the turn failed, and error must then give a reason."""
        why = fault(self.validators[label], text) if text is not None else None if error.strip() else "an error without a message"
        with self.lock:
            self.counts["errors" if text is None else "valid"] += not why
            if why:
                self.faults.append(f"{label}: {why}")

    def conclude(self, what, least):
        print(f"{what}: {self.counts}, {len(self.faults)} invalid", flush=True)
        self.assertEqual(self.faults[:20], [])
        self.assertGreaterEqual(self.counts["valid"], least)

    def test_command_line(self):
        def one(model, label, seed):
            rc, out, err = self.run_bin("-m", model, "--no-attach", "--no-save", "-q", "-p", "x", "-t", "1", "-n", "300", "--seed", str(seed), "--schema", json.dumps(VALID[label]))
            self.count(label, out.decode() if rc == 0 else None, err)

        jobs = [(m, label, seed) for m in self.models for label in VALID for seed in SEEDS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: one(*job), jobs))
        self.conclude("processes", len(jobs))

    def test_served(self):
        """A third of the answers have little room: near the limit only tokens that leave room for the end are drawn."""
        labels = list(VALID)

        def one(server, i):
            label = labels[i % len(labels)]
            body = ask("x", seed=i, temperature=(0, 0.7, 1, 2)[i // len(labels) % 4], max_tokens=(300, 300, 80)[i % 3],
                       response_format={"type": "json_schema", "json_schema": {"name": label, "schema": VALID[label]}})
            status, _, data = server.request("POST", "/v1/chat/completions", body)
            j = json.loads(data)
            self.count(label, j["choices"][0]["message"]["content"] if status == 200 else None, j.get("error", {}).get("message", ""))

        each = -(-DOCUMENTS // len(self.models))
        for model in self.models:
            server = self.serve("-m", model, "--kv-cache", "off", "-t", "1", "--parallel", str(CLIENTS))
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(lambda i: one(server, i), range(each)))
            server.end()
        self.conclude("servers", each * len(self.models) * 9 // 10)


if __name__ == "__main__":
    unittest.main()
