"""Other programs from PyPI as clients of --serve: each is skipped where its package is not installed. Runs on the fake engine."""
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

import driver
from server import Case

TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"the Python package {package} is not installed")


class Clients(Case):
    def setUp(self):
        super().setUp()
        self.s = self.serve("--listen", "127.0.0.1:0")

    def run_client(self, code, *args):
        """Runs a script in a process of its own, with the URL and the key; returns what it printed as JSON."""
        env = {**self.env, "OPENAI_API_KEY": self.s.key, "OPENAI_BASE_URL": self.s.url, "OPENAI_API_BASE": self.s.url, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "LLM_USER_PATH": os.path.join(self.home, "llm")}
        p = subprocess.run([sys.executable, "-W", "ignore", "-c", "import json, os\nurl, key = os.environ['OPENAI_BASE_URL'], os.environ['OPENAI_API_KEY']\n" + code, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=driver.PATIENCE * 3)
        self.assertEqual(p.returncode, 0, p.stderr.decode()[-2000:])
        return json.loads(p.stdout.decode().strip().split("\n")[-1])

    @needs("openai")
    def test_openai(self):
        """Pieces of calls, joined by the client's own helper."""
        got = self.run_client(f"""
import openai
client = openai.OpenAI(max_retries=0)
with client.chat.completions.stream(model="fake", messages=[dict(role="user", content="call")], tools=[{TOOL!r}]) as stream:
    pieces = [e.arguments_delta for e in stream if e.type == "tool_calls.function.arguments.delta"]
    final = stream.get_final_completion().choices[0]
print(json.dumps([len(pieces), [[c.function.name, json.loads(c.function.arguments)] for c in final.message.tool_calls], final.finish_reason]))""")
        self.assertGreaterEqual(got[0], 2)
        self.assertEqual(got[1:], [[["weather", {"city": "Bern \U0001f600"}], ["time", {}]], "tool_calls"])

    @needs("anthropic")
    def test_anthropic(self):
        got = self.run_client(f"""
import anthropic
client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
tool = {TOOL!r}["function"]
with client.messages.stream(model="fake", max_tokens=500, messages=[dict(role="user", content="call")], tools=[dict(name=tool["name"], description="d", input_schema=tool["parameters"])]) as stream:
    pieces = [e.partial_json for e in stream if e.type == "input_json"]
    final = stream.get_final_message()
print(json.dumps([len(pieces), [[b.name, b.input] for b in final.content if b.type == "tool_use"], final.stop_reason]))""")
        self.assertGreaterEqual(got[0], 2)
        self.assertEqual(got[1:], [[["weather", {"city": "Bern \U0001f600"}], ["time", {}]], "tool_use"])

    @needs("litellm")
    def test_litellm(self):
        got = self.run_client(f"""
import litellm
ask = lambda text, **more: litellm.completion(model="openai/fake", api_base=url, api_key=key, messages=[dict(role="user", content=text)], **more)
a = ask("think")
calls = ask("call", tools=[{TOOL!r}]).choices[0].message.tool_calls
stream = "".join(c.choices[0].delta.content or "" for c in ask("think", stream=True))
claude = litellm.completion(model="anthropic/claude-3-5-sonnet-latest", api_base=url.removesuffix("/v1"), api_key=key, messages=[dict(role="user", content="hello")], max_tokens=50)
print(json.dumps([a.choices[0].message.content, [c.function.name for c in calls], stream, claude.choices[0].message.content]))""")
        self.assertEqual(got, ["the answer", ["weather", "time"], "the answer", "You said: hello"])

    @needs("langchain_openai")
    def test_langchain(self):
        got = self.run_client(f"""
from langchain_openai import ChatOpenAI
chat = ChatOpenAI(model="fake", base_url=url, api_key=key, seed=3)
print(json.dumps([chat.invoke("hello").content, "".join(c.content for c in chat.stream("think")), [c["name"] for c in chat.bind_tools([{TOOL!r}]).invoke("call").tool_calls]]))""")
        self.assertEqual(got, ["You said: hello", "the answer", ["weather", "time"]])

    @needs("pydantic_ai")
    def test_pydantic_ai(self):
        got = self.run_client("""
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
agent = Agent(OpenAIChatModel("fake", provider=OpenAIProvider(base_url=url, api_key=key)), instructions="S")
print(json.dumps(agent.run_sync("prompt x").output))""")
        self.assertEqual(got, "[system]S[user]prompt x[assistant]")

    @needs("aider")
    def test_aider(self):
        """It sends the file and gets a new version of it, which it writes."""
        path = os.path.join(self.home, "hello.py")
        with open(path, "w") as f:
            f.write("greeting = 'old'\n")
        args = ["--model", "openai/fake", "--openai-api-base", self.s.url, "--openai-api-key", self.s.key, "--edit-format", "whole", "--map-tokens", "0", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings",
                "--no-show-release-notes", "--analytics-disable", "--no-detect-urls", "--no-pretty", "--no-fancy-input", "--message", "edit hello.py greeting = 'new'", path]
        p = subprocess.run([sys.executable, "-W", "ignore", "-m", "aider", *args], cwd=self.home, env={**self.env, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, stdin=subprocess.DEVNULL, capture_output=True, timeout=driver.PATIENCE * 6)
        with open(path) as f:
            self.assertEqual(f.read(), "greeting = 'new'\n", p.stdout.decode()[-2000:] + p.stderr.decode()[-2000:])

    @needs("open_webui")
    def test_open_webui(self):
        """The browser front end lists the model and passes a chat on, as its page does."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**self.env, "OPENAI_API_BASE_URL": self.s.url, "OPENAI_API_KEY": self.s.key, "ENABLE_OLLAMA_API": "False", "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "x", "DATA_DIR": self.home, "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1",
               "RAG_EMBEDDING_ENGINE": "openai", "DO_NOT_TRACK": "1", "SCARF_NO_ANALYTICS": "true", "ANONYMIZED_TELEMETRY": "false"}
        with open(os.path.join(self.home, "log"), "wb") as log:
            p = subprocess.Popen([sys.executable, "-c", "from open_webui import app; app()", "serve", "--host", "127.0.0.1", "--port", str(port)], cwd=self.home, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def ask(path, body=None, token=""):
            r = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=json.dumps(body).encode() if body else None, headers={"Content-Type": "application/json", "Authorization": "Bearer " + token})
            with urllib.request.urlopen(r, timeout=driver.PATIENCE) as f:
                return json.load(f)

        try:
            until = time.time() + driver.PATIENCE * 10
            while True:
                try:
                    ask("/health")
                    break
                except OSError as e:
                    with open(os.path.join(self.home, "log"), "rb") as f:
                        self.assertTrue(p.poll() is None and time.time() < until, f"{e} {f.read().decode()[-2000:]}")
                    time.sleep(1)
            token = ask("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
            models = [m["id"] for m in ask("/api/models", token=token)["data"]]
            self.assertIn("fake", models)
            answer = ask("/api/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "stream": False}, token)
            self.assertEqual(answer["choices"][0]["message"]["content"], "You said: hello")
        finally:
            p.terminate()
            p.wait()

    @needs("llm")
    def test_llm(self):
        os.makedirs(os.path.join(self.home, "llm"))
        with open(os.path.join(self.home, "llm", "extra-openai-models.yaml"), "w") as f:
            f.write(f"- model_id: hearth\n  model_name: fake\n  api_base: {self.s.url}\n  api_key_name: hearth\n")
        got = self.run_client("""
import llm
model = llm.get_model("hearth")
print(json.dumps([model.prompt("hello", stream=s, key=key).text() for s in (True, False)]))""")
        self.assertEqual(got, ["You said: hello"] * 2)


if __name__ == "__main__":
    driver.unittest.main()
