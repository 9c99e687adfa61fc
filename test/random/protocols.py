#!/usr/bin/env python3
"""Random conversations with tools in the protocols of the server, at once, beside clients that leave: protocols.py BINARY [--seeds 1-5] [--models DIR...]
A conversation is the same prompt in every protocol, and its answer, whole or as a stream, is that of an engine with no other client, also where a client goes on
with calls and their results; afterwards the server has as many sessions and as much memory as before."""
import json
import os
import random

from common import Difference, check, main, text, together

import calls
from served import leave

TEMPLATE = """{{ bos_token }}{% if tools %}<|system|>Write <tool_call> and JSON with name and arguments.{{ tools | tojson }}<|end|>{% endif %}{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>
{{- '[' + m.reasoning_content + ']' if m.reasoning_content else '' }}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
SCHEMAS = {"weather": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city"], "additionalProperties": False},
           "time": {"type": "object", "properties": {"zone": {"enum": ["x", "yy €"]}}, "additionalProperties": False}}
PATHS = (calls.CHAT, calls.RESPONSES, calls.MESSAGES, calls.OLLAMA)


def conversation(r):
    """Returns messages as [role, text, thinking, calls]; a call is (id, name, arguments), and the text of a result begins with its call's id."""
    out = [["system", text(r, 6), "", []]] if r.random() < 0.4 else []
    for i in range(r.randrange(1, 3)):
        out.append(["user", text(r, 6), "", []])
        for k in range(r.choice((0, 0, 1, 2))):
            made = [(f"c{i}{k}{n}", r.choice(("weather", "time")), {r.choice(("city", "zone", "é")): r.choice((text(r, 3), 5, None, [1.5, {}]))}) for n in range(r.randrange(1, 3))]
            out.append(["assistant", text(r, 4) if r.random() < 0.5 else "", text(r, 4) if r.random() < 0.5 else "", made])
            out += [["tool", text(r, 5), "", [c]] for c in made]
        if out[-1][0] == "user":
            out.append(["assistant", text(r, 5), "", []])
    while out[-1][0] == "assistant":
        out.pop()
    return out


def body(path, messages, names, choice, limit):
    """Returns the request for the answer to a conversation: choice is auto, required or the name of a tool."""
    functions = [{"name": n, "description": "d", "parameters": SCHEMAS[n]} for n in names]
    system = [m[1] for m in messages if m[0] == "system"]
    if path == calls.MESSAGES:
        out = []
        for role, said, thinking, made in messages:
            if role == "tool":
                block = {"type": "tool_result", "tool_use_id": made[0][0], "content": said}
                if out and out[-1]["role"] == "user" and isinstance(out[-1]["content"], list):
                    out[-1]["content"].append(block)
                else:
                    out.append({"role": "user", "content": [block]})
            elif role == "assistant" and (made or thinking):
                blocks = [{"type": "thinking", "thinking": thinking, "signature": ""}] * bool(thinking) + [{"type": "text", "text": said}] * bool(said)
                out.append({"role": role, "content": blocks + [{"type": "tool_use", "id": i, "name": name, "input": a} for i, name, a in made]})
            elif role != "system":
                out.append({"role": role, "content": said})
        choice = {"type": {"required": "any"}.get(choice, choice)} if choice in ("auto", "required") else {"type": "tool", "name": choice}
        return {"model": "x", "system": system[0] if system else "", "messages": out, "tools": [{"name": f["name"], "description": "d", "input_schema": f["parameters"]} for f in functions],
                "tool_choice": choice, "max_tokens": limit, "temperature": 0}
    if path == calls.RESPONSES:
        out = []
        for role, said, thinking, made in messages:
            if role == "tool":
                out.append({"type": "function_call_output", "call_id": made[0][0], "output": said})
                continue
            if thinking:
                out.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thinking}]})
            if said or not made:
                out.append({"role": role, "content": said})
            if role == "assistant":
                out += [{"type": "function_call", "call_id": i, "name": name, "arguments": json.dumps(a)} for i, name, a in made]
        return {"input": out, "tools": [{"type": "function", **f} for f in functions], "tool_choice": choice if choice in ("auto", "required") else {"type": "function", "name": choice},
                "max_output_tokens": limit, "temperature": 0, "store": False}
    out = []
    for role, said, thinking, made in messages:
        m = {"role": role, "content": said}
        if thinking:
            m["reasoning_content" if path == calls.CHAT else "thinking"] = thinking
        if role == "tool":
            m["tool_call_id"] = made[0][0]
        elif made:
            m["tool_calls"] = [{"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(a) if path == calls.CHAT else a}} for i, name, a in made]
        out.append(m)
    tools = [{"type": "function", "function": f} for f in functions]
    if path == calls.OLLAMA:
        return {"model": "x", "messages": out, "tools": tools, "options": {"num_predict": limit, "temperature": 0}} if choice == "auto" else None
    return {"messages": out, "tools": tools, "max_tokens": limit, "temperature": 0, "logprobs": True,
            "tool_choice": choice if choice in ("auto", "required") else {"type": "function", "function": {"name": choice}}}


def go_on(r, messages, answer):
    """Adds an answer, and the results of its calls or another question."""
    thinking, said, made, *_ = answer
    made = [(f"d{len(messages)}{i}", name, arguments) for i, (name, arguments) in enumerate(made)]
    return messages + [["assistant", said, thinking, made]] + ([["tool", text(r, 4), "", [c]] for c in made] or [["user", text(r, 4), "", []]])


def memory(engine):
    """Returns the number of descriptors, and the KiB of memory apart from KV caches, of which each session has one once it is needed."""
    metrics = dict(line.split() for line in engine.request("GET", "/metrics")[2].decode().split("\n") if line and line[0] != "#")
    return len(os.listdir(f"/proc/{engine.p.pid}/fd")), int(float(metrics["hearth_resident_memory_bytes"]) - float(metrics["hearth_kv_cache_bytes"])) // 1024


def one(run):
    r = run.r
    template = os.path.join(run.home, "tools.jinja")
    with open(template, "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    context = ["--template", template, "-c", r.choice(("1000", "1000", "400"))]
    alone = run.reference(*context)
    dialogues = []  # each is [(messages, names, choice, limit, answer)]
    for _ in range(1 if run.few else 3):
        turns, messages, names = [], conversation(r), r.choice((["weather"], ["time"], ["weather", "time"]))
        for _ in range(r.randrange(1, 4)):
            choice, limit = r.choice(("auto", "required", r.choice(names))), r.choice((1, 5, 30)) if r.random() < 0.3 else 80
            answers = []
            for path in PATHS:
                request = body(path, messages, names, choice, limit)
                status = alone.request("POST", path, {**request, "stream": False})[0] if request else 0
                if not request:
                    continue
                try:
                    answers.append((path, calls.ask(alone, path, request, False)[0] if status == 200 else status))
                except Difference as e:
                    raise Difference(f"{path} {json.dumps(request, ensure_ascii=False)}: {e}") from e
                check(f"{path} {json.dumps(request, ensure_ascii=False)}\n    and {answers[0][0]}", answers[-1][1], answers[0][1])
            answer = answers[0][1]
            turns.append((messages, names, choice, limit, answer))
            if isinstance(answer, int):
                break
            messages = go_on(r, messages, answer)
        dialogues.append(turns)
    options = run.usual_options((1, 3, 16), 0)
    engine, problems, n, before = run.serve(*context, *options), [], [0], None

    def client(seed):
        r = random.Random(seed)
        while n[0] > 0 and not problems:
            n[0] -= 1
            path = r.choice(PATHS)
            for messages, names, choice, limit, answer in r.choice(dialogues):
                request = body(path, messages, names, choice, limit)
                if not request:
                    break
                what = f"{' '.join(context + options)} {path} {json.dumps(request, ensure_ascii=False)}"
                try:
                    if r.random() < 0.25:
                        leave(engine, r, path, request)
                    if isinstance(answer, int):
                        got = engine.request("POST", path, {**request, "stream": False})[0]  # a stream may have begun before it failed
                    else:
                        got = calls.ask(engine, path, request, r.random() < 0.6)[0]
                    check(what, json.loads(json.dumps(got)), json.loads(json.dumps(answer)))
                except Exception as e:
                    problems.append(str(e) if isinstance(e, Difference) else f"{what}: {type(e).__name__} {e}")
                    return

    for _ in range(2):
        n[0] = 4 if run.few else 10
        together(client, r, 6, problems)
        engine.settles("at the end")
        after, before = before, memory(engine)
    check("sessions", len(engine.status()["sessions"]) <= int(options[1]), True)
    if before[0] > after[0] + 2 or before[1] > after[1] + 6144:
        raise Difference(f"{' '.join(options)}: descriptors and KiB grew from {after} to {before}")
    engine.end()
    return f"{sum(map(len, dialogues))} answers, {' '.join(context[2:] + options)}"


if __name__ == "__main__":
    main(["ember", "tiny-long"], one)
