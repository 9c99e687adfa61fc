#!/usr/bin/env python3
"""Random answers with thinking, text and tool calls, which the fake engine gives word for word, in every protocol of the server, whole and as streams:
calls.py HEARTH_FAKE [--seeds 1-5]
Each reply must have the thinking, the text and the calls that this file finds in the answer; a stream must be what its protocol says."""
import concurrent.futures
import json
import re

from common import Difference, check, main, text

CHAT, RESPONSES, MESSAGES, OLLAMA, GENERATE = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"
THINK, END_THINK, CALL, END_CALL = "\x0e\x0f\x10\x11"  # what the fake engine turns into control tokens
PIECES = ["é", "漢", "😀", "\n", "\r\n", "\t", '"', "\\", "{", "}", "</tool_call>", "<tool_call>", "<think>", "data: ", "\u2028", "\x7f", "\x1b[31m", " "]
NAMES = ("weather", "time", "a-b_c", "x", "functions.weather", "unknown", " weather ", "né")


BYTES = ["\ue0ff", "\ue0e6\ue0bc", "\ue0a2", "\ue0c3", "\ue0f0\ue09f\ue098"]  # bytes that are no UTF-8, as the fake engine reads them


def words(r, most=6, pieces=PIECES + BYTES):
    return "".join(r.choice(pieces) if r.random() < 0.4 else text(r, 3) + " " * (r.random() < 0.5) for _ in range(r.randrange(most)))


def value(r, depth=0):
    kind = r.randrange(9 if depth < 3 else 6)
    if kind < 3:
        return words(r, 4)
    if kind < 6:
        return r.choice((0, -1, 1.5, 1e300, 1234567890123456789, True, False, None, -0.0, 2 ** 53 + 1))
    if kind < 7:
        return [value(r, depth + 1) for _ in range(r.randrange(3))]
    return {words(r, 3): value(r, depth + 1) for _ in range(r.randrange(3))}


def spaced(r, data):
    """Returns JSON text with random white space around and within it."""
    out = json.dumps(data, ensure_ascii=False, indent=r.choice((None, None, 0, 2)), separators=r.choice((None, (",", ":"), (" ,  ", " :\t"))))
    if r.random() < 0.5:
        out = re.sub("[^\0-\x7f\ue000-\ue0ff]", lambda c: json.dumps(c[0])[1:-1], out)
    return r.choice(("", "", " ", "\n", "\r\n\t")) + out + r.choice(("", "", " ", "\n\n"))


def call(r, names):
    """Returns the markup of a call or of several, and what they are as [(name, arguments)], or None if it is no call."""
    calls = []
    objects = []
    for _ in range(r.choice((1, 1, 1, 2))):
        name, arguments = r.choice(names), {words(r, 3): value(r) for _ in range(r.randrange(3))}
        form = r.randrange(8)
        inner = {"name": name, "arguments": arguments} if form < 3 else {"name": name, "parameters": arguments} if form == 3 else {"name": name, "arguments": spaced(r, arguments)} if form < 6 else {"name": name}
        if form > 5:
            arguments = {}
        objects.append({"type": "function", "function": inner} if form == 1 else {"id": "5", **inner} if r.random() < 0.2 else inner)
        calls.append((name.strip(" \t\r\n").removeprefix("functions."), arguments))
    markup = spaced(r, objects if len(objects) > 1 or r.random() < 0.2 else objects[0])
    if r.random() < 0.12:
        return r.choice((markup[:r.randrange(len(markup))] + "{", '{"name": 5}', '{"name": ""}', "[]", "", '{"name": "x", "arguments": [1]}', '{"name": "x", "arguments": "[1]"}', '{"arguments": {}}')), None
    return markup, calls


def answer(r, names=NAMES):
    """Returns an answer, and its (thinking, text, calls): with a call that is none, all markup is text."""
    plan, thinking, said, markup, calls = "", "", "", "", []
    for _ in range(r.randrange(6)):
        kind = r.randrange(5)
        if kind == 0:
            part = words(r)
            plan, thinking = plan + THINK + part + END_THINK, thinking + part
        elif kind < 3:
            part = words(r)
            plan, said = plan + part, said + (part if said else part.lstrip("\r\n"))
        else:
            part, found = call(r, names)
            plan, markup = plan + CALL + part + END_CALL, markup + "<tool_call>" + part + "</tool_call>"
            calls = calls + found if found and calls is not None else None
    if not calls:
        said, calls = said + markup, []
    return plan, shown(thinking), shown(said), shown(calls)


def shown(s):
    """Returns a text, or the strings in a value, with their single bytes as a client gets them."""
    if not isinstance(s, str):
        return [shown(v) for v in s] if isinstance(s, (list, tuple)) else {shown(k): shown(v) for k, v in s.items()} if isinstance(s, dict) else s
    return b"".join(bytes([ord(c) & 255]) if "\ue000" <= c <= "\ue0ff" else c.encode() for c in s).decode("utf-8", "replace")


def tools(path, names=("weather", "time", "x")):
    functions = [{"name": n, "description": "d", "parameters": {"type": "object"}} for n in names]
    if path == RESPONSES:
        return [{"type": "function", **f} for f in functions]
    if path == MESSAGES:
        return [{"name": f["name"], "description": "d", "input_schema": f["parameters"]} for f in functions]
    return [{"type": "function", "function": f} for f in functions]


def body(path, question, limit, stops, single):
    """Returns the request of a protocol; None if the protocol cannot ask for this."""
    messages = [{"role": "user", "content": question}]
    if path == RESPONSES:
        return None if stops else {"input": question, "tools": tools(path), "max_output_tokens": limit, "parallel_tool_calls": not single, "store": False}
    if path == MESSAGES:
        return {"messages": messages, "tools": tools(path), "max_tokens": limit, "model": "x", "stop_sequences": stops, "tool_choice": {"type": "auto", "disable_parallel_tool_use": single}}
    if path == OLLAMA:
        return None if single else {"model": "x", "messages": messages, "tools": tools(path), "options": {"num_predict": limit, "stop": stops}, "stream": False}
    if path == GENERATE:
        return None if single else {"model": "x", "prompt": question, "options": {"num_predict": limit, "stop": stops}, "stream": False}
    return {"messages": messages, "tools": tools(path), "max_tokens": limit, "stop": stops, "parallel_tool_calls": not single, "logprobs": True, "top_logprobs": 1}


# --- replies: each function returns (thinking, text, [(name, arguments)], whether it is cut, tokens of the prompt and the answer), and whatever else must be equal in a stream ---


def arguments(text, streams):
    """Arguments, or in a stream the beginning of arguments as text."""
    try:
        return json.loads(text)
    except ValueError:
        check("arguments", streams, True)
        return text


def is_begun(stream, whole):
    """Whether a stream has calls that are none as a whole: what has been sent of them stays. A whole reply has them as text."""
    return bool(stream[2]) and not whole[2] and whole[0] == stream[0] and whole[1].startswith(stream[1]) and "<tool_call>" in whole[1] and whole[3:] == stream[3:]


def read_chat(objects, streams):
    thinking = said = ""
    calls, reason, logprobs = [], None, []
    for o in objects:
        for choice in o["choices"]:
            check("no delta after the end", reason, None)
            message = choice["delta" if streams else "message"]
            said, thinking, reason = said + (message.get("content") or ""), thinking + message.get("reasoning_content", ""), choice["finish_reason"]
            logprobs += (choice.get("logprobs") or {}).get("content", [])
            for i, c in enumerate(message.get("tool_calls", [])):
                if streams and c["index"] < len(calls):  # more of the last call's arguments
                    check("piece of a call", (c["index"], set(c["function"])), (len(calls) - 1, {"arguments"}))
                    calls[-1][2] += c["function"]["arguments"]
                    continue
                check("index of a call", c.get("index", i), len(calls))
                calls.append([c["id"].split("_")[-1], c["function"]["name"], c["function"]["arguments"]])
    check("ids of calls", [c[0] for c in calls], [str(i) for i in range(len(calls))])
    calls = [(i, name, arguments(text, streams)) for i, name, text in calls]
    check("reason", reason in ("stop", "length", "tool_calls") and (reason == "tool_calls") <= bool(calls), True)
    usage = objects[-1]["usage"]
    return (thinking, said, [c[1:] for c in calls], reason == "length", usage["prompt_tokens"], usage["completion_tokens"]), (reason, logprobs, usage["completion_tokens_details"])


def read_items(items, streams):
    thinking = "".join(c["text"] for o in items if o["type"] == "reasoning" for c in o["content"])
    said = "".join(c["text"] for o in items if o["type"] == "message" for c in o["content"])
    calls = [(o["name"], arguments(o["arguments"], streams)) for o in items if o["type"] == "function_call"]
    check("items", ({o["type"] for o in items} <= {"reasoning", "message", "function_call"}, bool(items), {o["status"] for o in items}, len({o["id"] for o in items})), (True, True, {"completed"}, len(items)))
    return thinking, said, calls


def read_responses(objects, streams):
    whole = objects[-1]
    if streams:
        check("numbers of events", [o["sequence_number"] for o in objects], list(range(len(objects))))
        items, texts, whole = {}, {}, objects[-1]["response"]
        for o in objects[2:-1]:
            i = o["output_index"]
            if o["type"] == "response.output_item.added":
                check("index of an item", (i, len(items)), (len(texts), len(texts)))
                texts[i] = ""
            elif o["type"].endswith(".delta"):
                texts[i] += o["delta"]
            elif o["type"].endswith("_text.done") or o["type"] == "response.function_call_arguments.done":
                check("text of deltas", texts[i], o.get("text", o.get("arguments")))
            elif o["type"] == "response.output_item.done":
                items[i] = o["item"]
                check("text of an item", texts[i], o["item"].get("arguments", "".join(c["text"] for c in o["item"].get("content", []))))
            else:
                check("event", (o["type"] in ("response.content_part.added", "response.content_part.done"), o["part"]["text"]), (True, texts[i]))
        check("items of a stream", list(items.values()), whole["output"])
    cut = whole["status"] == "incomplete"
    if streams:
        check("last event", objects[-1]["type"], "response.incomplete" if cut else "response.completed")
    return (*read_items(whole["output"], streams), cut, whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]), whole["usage"]["output_tokens_details"]


def read_messages(objects, streams):
    whole = objects[0]
    blocks, prompt = whole.get("content"), whole.get("usage")
    if streams:
        blocks, open_block = [], None
        check("events", [o["type"] for o in (objects[0], *objects[-2:])], ["message_start", "message_delta", "message_stop"])
        for o in objects[1:-2]:
            if o["type"] == "content_block_start":
                check("block", (open_block, o["index"]), (None, len(blocks)))
                open_block = o["index"]
                blocks.append(o["content_block"])
                if blocks[-1]["type"] == "tool_use":
                    check("arguments at the start", blocks[-1]["input"], {})
                    blocks[-1]["input"] = ""
                continue
            check("block", o["index"], open_block)
            if o["type"] == "content_block_stop":
                open_block = None
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = arguments(blocks[-1]["input"], True)
                continue
            if o["delta"]["type"] == "signature_delta":
                check("signature", (blocks[-1]["type"], blocks[-1]["signature"], bool(o["delta"]["signature"])), ("thinking", "", True))
                blocks[-1]["signature"] = o["delta"]["signature"]
                continue
            check("thinking after its signature", bool(blocks[-1].get("signature")), False)
            name = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}[o["delta"]["type"]]
            blocks[-1][name if name != "partial_json" else "input"] += o["delta"][name]
        check("last block", open_block, None)
        prompt = objects[0]["message"]["usage"]
        whole = {**objects[-2]["delta"], "usage": objects[-2]["usage"]}
        check("prompt of a stream", prompt["input_tokens"], sum(whole["usage"][n] for n in ("input_tokens", "cache_read_input_tokens")))
    check("signatures", [b for b in blocks if b["type"] == "thinking" and not b["signature"]], [])
    check("empty blocks", [b for b in blocks if b.get("text") == "" or b.get("thinking") == ""], [])
    calls = [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    reason = whole["stop_reason"]
    check("reason", (reason == "tool_use") <= bool(calls), True)
    said = ["".join(b.get(name, "") for b in blocks if b["type"] == name) for name in ("thinking", "text")]
    return (*said, calls, reason == "max_tokens", prompt["input_tokens"] + prompt["cache_read_input_tokens"], whole["usage"]["output_tokens"]), (reason, whole["stop_sequence"])


def read_ollama(objects, streams, generate=False):
    check("done", [o["done"] for o in objects], [False] * (len(objects) - 1) + [True])
    messages = [{**o, "content": o["response"]} if generate else o["message"] for o in objects]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for m in messages for c in m.get("tool_calls", [])]
    said = ["".join(m.get(name, "") for m in messages) for name in ("thinking", "content")]
    last = objects[-1]
    return (*said, calls, last["done_reason"] == "length", last["prompt_eval_count"], last["eval_count"]), ()


def read_generate(objects, streams):
    return read_ollama(objects, streams, True)


READERS = {CHAT: read_chat, RESPONSES: read_responses, MESSAGES: read_messages, OLLAMA: read_ollama, GENERATE: read_generate}


def ask(engine, path, request, streams):
    request = {**request, "stream": streams, **({"stream_options": {"include_usage": True}} if path == CHAT and streams else {})}
    status, headers, data = engine.request("POST", path, request)
    check("status", (status, data if status != 200 else b""), (200, b""))
    said = data.decode()
    if not streams:
        return READERS[path]([json.loads(said)], False)
    objects = []
    if path in (OLLAMA, GENERATE):
        objects = [json.loads(line) for line in said.removesuffix("\n").split("\n")]
    else:
        events = [[line for line in event.split("\n") if not line.startswith(":")] for event in said.removesuffix("\n\n").split("\n\n")]
        for lines in filter(None, events):
            name = lines.pop(0).removeprefix("event: ") if path != CHAT else None
            check("lines of an event", len(lines), 1)
            if lines[0] != "data: [DONE]":
                objects.append(json.loads(lines[0].removeprefix("data: ")))
                check("name of an event", objects[-1].get("type"), name)
    return READERS[path](objects, True)


def one(run):
    r = run.r
    engine = run.serve("--parallel", "16")
    cases = []
    for _ in range(4 if run.few else 40):
        cases.append((answer(r), r.choice((100000, 100000, 100000, r.randrange(1, 200))), r.choice(([], [], [], ["e"], ["</tool", "漢"], [" a", "\n"])), r.random() < 0.15))

    def one_case(case):
        (plan, *parts), limit, stops, single = case
        question = "say " + json.dumps([plan], ensure_ascii=False)
        base = None
        for path in READERS:
            request = body(path, question, limit, stops, single)
            if not request:
                continue
            what = f"{path} {json.dumps(request, ensure_ascii=False)}"
            try:
                whole, more = ask(engine, path, request, False)
                stream = ask(engine, path, request, True)
            except Exception as e:
                raise Difference(f"{what}\n    {type(e).__name__}: {e}") from e
            if not is_begun(stream[0], whole):
                check(what + ": stream", json.loads(json.dumps(stream)), json.loads(json.dumps((whole, more))))
            if path == GENERATE and base[2]:  # it has no calls
                check(f"{what}: calls as text", (whole[0], whole[1].startswith(base[1]), whole[1].count("<tool_call>") > 0, whole[2]), (base[0], True, True, []))
                continue
            base = base or whole
            check(f"{what}: other protocol", json.loads(json.dumps(whole)), json.loads(json.dumps(base)))
        if limit == 100000 and not stops:
            thinking, said, calls = parts
            want = (thinking, said, calls[:1] if single else calls, False)
            check(f"{plan!r}: answer", json.loads(json.dumps(base[:4])), json.loads(json.dumps(want)))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one_case, cases))
    engine.settles("at the end")
    engine.end()
    return f"{len(cases)} answers"


if __name__ == "__main__":
    main(["fake"], one)
