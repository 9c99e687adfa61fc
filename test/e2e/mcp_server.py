"""A small MCP server for tests. Its first argument says what it does; the methods that it was sent go to the file in MCP_LOG."""
import json
import os
import signal
import sys
import time

KIND = sys.argv[1] if len(sys.argv) > 1 else "good"
TOOLS = [{"name": "echo", "description": "Echoes.", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
         {"name": "fail", "inputSchema": {"type": "object"}}, {"name": "picture", "inputSchema": {"type": "object"}}, {"name": "bad name", "inputSchema": {"type": "object"}},
         {"name": "die", "inputSchema": {"type": "object"}}, {"name": "hang", "inputSchema": {"type": "object"}}, {"name": "garbage", "inputSchema": {"type": "object"}},
         {"name": "flood", "inputSchema": {"type": "object"}}, {"name": "unknown", "inputSchema": {"type": "object"}},
         {"name": "broken", "inputSchema": {"type": "object"}}, {"name": "asks", "inputSchema": {"type": "object"}}, {"name": "input", "inputSchema": {"type": "object"}}]


def write(message):
    sys.stdout.write(message + "\n")
    sys.stdout.flush()


def send(**message):
    write(json.dumps({"jsonrpc": "2.0", **message}))


def log(text):
    if "MCP_LOG" in os.environ:
        with open(os.environ["MCP_LOG"], "a") as f:
            f.write(text + "\n")


def list_tools(params):
    """Two tools a page."""
    at = int(params.get("cursor", "0"))
    if KIND == "many":
        return {"tools": [TOOLS[0], *({"name": f"t{k}", "inputSchema": {"type": "object"}} for k in range(600))]}
    if KIND == "endless":
        return {"tools": [], "nextCursor": "0"}
    return {"tools": TOOLS[at:at + 2], **({"nextCursor": str(at + 2)} if at + 2 < len(TOOLS) else {})}


def call(number, name, arguments):
    text = lambda s, **more: {"content": [{"type": "text", "text": s}], **more}
    if name == "echo":
        send(id="ping-1", method="ping")
        send(id=7, method="sampling/createMessage", params={})
        send(method="notifications/message", params={"data": "x"})
        send(id=number + 1000, result={})  # no request has this id
        return text("echo: " + arguments["text"])
    if name == "fail":
        return text("it did not work", isError=True)
    if name == "picture":
        return {"content": [{"type": "text", "text": "see:"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    if name == "die":
        print("first line\nout of cheese", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hang":
        return None
    if name == "garbage":
        write("Hello, I am a log line\n\r\n  [info] {so am I}")
        return text("a half: \ud83d")
    if name == "broken":
        write('{"jsonrpc": "2.0", "id": ')
        return None
    if name == "asks":
        while True:
            send(id="i" * 60000, method="roots/list")
    if name == "input":
        return {"resultType": "input_required", "inputRequests": {}}
    if name == "flood":
        return text("\x1b]0;x\x07" + "f" * 200000)
    return {}


NEW = "2026-07-28"
STATELESS = KIND == "stateless"


def main():
    global KIND, STATELESS
    if KIND == "silent":
        time.sleep(100)
    if KIND == "exits":
        sys.exit("cannot find its configuration")
    if KIND == "chatty":
        sys.stderr.write("x" * 300000 + "\n")
    for line in sys.stdin:
        m = json.loads(line)
        log(m.get("method", "reply " + json.dumps(m.get("result", m.get("error")))))
        if m.get("method") == "server/discover" and KIND == "strict":
            if os.path.exists(os.environ["MCP_LOG"] + ".again"):
                sys.exit("asked twice")
            open(os.environ["MCP_LOG"] + ".again", "w").close()
            sys.exit("a request before initialize")
        if m.get("method") == "server/discover" and KIND in ("mute", "late"):
            late = m["id"] if KIND == "late" else None
            continue
        if STATELESS and "id" in m and "method" in m:
            meta = m["params"]["_meta"] if m["method"] != "initialize" else {}
            want = {"io.modelcontextprotocol/protocolVersion": NEW, "io.modelcontextprotocol/clientCapabilities": {}}
            if any(meta.get(k) != v for k, v in want.items()) or meta["io.modelcontextprotocol/clientInfo"]["name"] != "hearth":
                send(id=m["id"], error={"code": -32022, "message": "unsupported protocol version", "data": {"supported": [NEW], "requested": meta}})
                continue
        if m.get("method") == "server/discover":
            versions = {"stateless": [NEW], "older": ["2025-11-25"]}.get(KIND)
            if not versions:
                send(id=m["id"], error={"code": -32601, "message": "no such method"})
                continue
            send(id=m["id"], result={"supportedVersions": versions, "capabilities": {"tools": {}}, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
        elif m.get("method") == "initialize" and KIND == "late":
            send(id=late, result={"supportedVersions": [NEW], "capabilities": {"tools": {}}, "resultType": "complete"})
            send(id=m["id"], error={"code": -32022, "message": "unsupported protocol version", "data": {"supported": [NEW]}})
            STATELESS, KIND = True, "stateless"
        elif m.get("method") == "initialize":
            send(id=m["id"], result={"protocolVersion": "2025-06-18", "capabilities": {} if KIND == "toolless" else {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}})
        elif m.get("method") == "tools/list":
            send(id=m["id"], result=list_tools(m["params"]))
        elif m.get("method") == "tools/call":
            if m["params"]["name"] == "unknown":
                send(id=m["id"], error={"code": -32602, "message": "no such tool"})
                continue
            result = call(m["id"], m["params"]["name"], m["params"]["arguments"])
            if result is not None:
                send(id=m["id"], result={**({"resultType": "complete"} if STATELESS else {}), **result})
    log("end of input")


main()
