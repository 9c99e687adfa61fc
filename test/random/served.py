#!/usr/bin/env python3
"""Random requests of three protocols to one resident engine at once, beside clients that leave and bad requests:
served.py BINARY [--seeds 1-5] [--models DIR...]
Each answer, whole or as a stream, must be what the same request gets from an engine that has no other."""
import json
import os
import random
import time

from common import Difference, check, main, text, together

PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 5}}
SCHEMAS = [{"type": "object", "properties": PROPERTIES, "required": ["a"], "additionalProperties": False},
           {"type": "array", "items": {"enum": ["x", "yy", 3]}, "minItems": 1, "maxItems": 3}, {"type": "boolean"}]
BAD = [b"{", b"[]", b'{"messages": []}', b'{"messages": [{"role": "user"}]}'] + [
    b'{"messages": [{"role": "user", "content": "x"}], ' + member + b"}"
    for member in (b'"temperature": -1', b'"n": 0', b'"max_tokens": "a"', b'"stop": 5', b'"logit_bias": {"a": 1}')]
CHAT, COMPLETION, RESPONSES, MESSAGES, OLLAMA, GENERATE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"


def request(r, shared):
    """Returns a path and a body."""
    path = r.choice([CHAT] * 5 + [COMPLETION, RESPONSES, MESSAGES, OLLAMA, GENERATE])
    question = (r.choice(shared) + "\n\n" if r.random() < 0.5 else "") + text(r, r.choice((3, 10, 40)))
    limit, sampling = r.choice((1, 3, 10, 30)), {"temperature": r.choice((0, 0, 1, 1.3)), "seed": r.randrange(1000)}
    messages = [{"role": "user", "content": question}]
    if r.random() < 0.2:
        messages += [{"role": "assistant", "content": text(r, 4)}, {"role": "user", "content": text(r, 5)}]
    if path == RESPONSES:
        return path, {"input": question, "max_output_tokens": limit, "temperature": 0, "store": False, **({"instructions": "be brief"} if r.random() < 0.3 else {})}
    if path == MESSAGES:
        return path, {"messages": messages, "max_tokens": limit, "temperature": 0, "model": "x", **({"stop_sequences": ["e"]} if r.random() < 0.3 else {})}
    if path in (OLLAMA, GENERATE):
        return path, {"model": "x", **({"prompt": question} if path == GENERATE else {"messages": messages}), "stream": False, "options": {"num_predict": limit, **sampling}}
    body = {"max_tokens": limit, **sampling}
    if path == COMPLETION:
        body["prompt"] = r.choice((question, [r.randrange(20, 250) for _ in range(r.randrange(1, 30))]))
        members = (("logprobs", 0.3, (0, 2)), ("n", 0.3, (2,)), ("stop", 0.3, ("e", ["a", "th"])), ("echo", 0.1, (False,)))
    else:
        body["messages"] = ([{"role": "system", "content": r.choice(("be brief", r.choice(shared)))}] if r.random() < 0.3 else []) + messages
        members = (("n", 0.25, (2, 3)), ("stop", 0.3, ("e", ["a", "th"], ["\n", "xy"], "é")), ("logit_bias", 0.15, ({"50": -100, "60": 5}, {"70": 30})),
                   ("frequency_penalty", 0.15, (0.5, -0.5)), ("presence_penalty", 0.15, (0.7,)), ("repeat_penalty", 0.1, (1.2,)), ("top_k", 0.15, (1, 5)), ("min_p", 0.15, (0.1,)),
                   ("top_p", 0.15, (0.8,)), ("logprobs", 0.35, (True,)), ("store", 0.1, (False,)))
    body |= {name: r.choice(values) for name, share, values in members if r.random() < share}
    if path == CHAT:
        if body.get("logprobs") and r.random() < 0.6:
            body["top_logprobs"] = r.choice((0, 1, 3))
        schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": r.choice(SCHEMAS)}}
        form = r.choice([None] * 7 + [("response_format", schema), ("guided_choice", ["yes", "no", "maybe é"]), ("guided_regex", "[a-c]{2,5}(x|yz)*[0-9]"),
                                      ("response_format", {"type": "json_object"})])
        if form:
            body |= {form[0]: form[1], "max_tokens": 60}
        elif r.random() < 0.1:
            body |= {"messages": messages + [{"role": "assistant", "content": "I am "}], "continue_final_message": True}
    return path, body


def parts(path, objects):
    """Returns the answers in one object or in those of a stream, in one form: for each choice its text, why it ended and its log probabilities; and the tokens."""
    if path in (CHAT, COMPLETION):
        choices = {}
        for choice in (c for o in objects for c in o["choices"]):
            out = choices.setdefault(choice["index"], ["", "", None, {}])
            message = choice.get("message") or choice.get("delta") or choice
            out[0] += message.get("content") or message.get("text") or ""
            out[1] += message.get("reasoning_content") or ""
            out[2] = choice.get("finish_reason") or out[2]
            for name, values in (choice.get("logprobs") or {}).items():
                if values:
                    out[3][name] = out[3].get(name, []) + values
        usage = next(o["usage"] for o in reversed(objects) if o.get("usage"))
        return sorted(choices.items()), usage["prompt_tokens"], usage["completion_tokens"]
    last = objects[-1]
    if path == RESPONSES:
        whole = last.get("response", last)
        return [c["text"] for o in whole["output"] for c in o.get("content", [])], whole["status"], whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]
    if path == MESSAGES:
        whole = last.get("content")
        said = "".join(b.get("text", "") for b in whole) if whole is not None else "".join(o["delta"].get("text", "") for o in objects if o["type"] == "content_block_delta")
        end = [last] if whole is not None else [{**o["delta"], **o} for o in objects if o["type"] == "message_delta"]
        begin = last if whole is not None else objects[0]["message"]
        return said, end[0]["stop_reason"], begin["usage"]["input_tokens"] + begin["usage"].get("cache_read_input_tokens", 0), end[0]["usage"]["output_tokens"]
    said = "".join(o["response"] if path == GENERATE else o["message"]["content"] for o in objects)
    return said, last.get("done_reason"), last.get("prompt_eval_count"), last.get("eval_count")


def ask(engine, path, body, streams=False):
    """Returns what parts() does, or the error."""
    if streams:
        body = {**body, "stream": True, **({"stream_options": {"include_usage": True}} if path in (CHAT, COMPLETION) else {})}
    status, _, data = engine.request("POST", path, body)
    if status != 200:
        return status, json.loads(data)
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith(("data: {", "{"))] if streams else [data]
    return parts(path, [json.loads(line) for line in lines])


def leave(engine, r, path, body):
    """Closes the connection within the request, or while the answer is generated."""
    data = json.dumps({**body, "stream": r.random() < 0.6}).encode()
    data = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data
    c = engine.connection()
    c.connect()
    c.sock.sendall(data[:r.choice((len(data), len(data), r.randrange(len(data))))])
    time.sleep(r.random() * r.choice((0.01, 0.1)))
    c.close()


def one(run):
    r = run.r
    shared = [text(r, 120) for _ in range(2)]
    requests = [request(r, shared) for _ in range(4 if run.few else 24)]
    context = r.choice(([], [], ["-c", "120"]))
    alone = run.reference(*context)
    want = [ask(alone, *q) for q in requests]
    options = run.usual_options((2, 5, 16), 0.3)
    on_device = "--gpus" in options  # log probabilities then differ by rounding
    engine, problems, n = run.serve(*context, *options), [], [8 if run.few else 150]

    def comparable(answer):
        if on_device and isinstance(answer[0], list) and isinstance(answer[0][0], tuple):
            answer = [(i, c[:3]) for i, c in answer[0]], *answer[1:]
        return json.loads(json.dumps(answer))

    def client(seed):
        r = random.Random(seed)
        while n[0] > 0 and not problems:
            n[0] -= 1
            i, how = r.randrange(len(requests)), r.choice(("whole", "stream", "stream", "leave", "bad"))
            try:
                if how == "leave":
                    leave(engine, r, *requests[i])
                elif how == "bad":
                    body = r.choice(BAD)
                    status, _, data = engine.request("POST", CHAT, body)
                    check(f"{body!r}: {data!r}", (status, bool(json.loads(data)["error"]["message"])), (400, True))
                else:
                    check(f"{' '.join(options + context)} {how} {requests[i][0]} {json.dumps(requests[i][1], ensure_ascii=False)}",
                          comparable(ask(engine, *requests[i], how == "stream")), comparable(want[i]))
            except Exception as e:
                problems.append(f"{type(e).__name__} {how} {requests[i]}: {e}" if not isinstance(e, Difference) else str(e))

    together(client, r, 8, problems)
    check("sessions at the end", (engine.p.poll(), engine.settles("at the end")), (None, None))
    engine.end()
    return f"{len(requests)} requests, {' '.join(options)}"


if __name__ == "__main__":
    main(["ember", "tiny"], one)
