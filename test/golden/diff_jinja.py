#!/usr/bin/env python3
"""Random templates over the whole grammar, rendered by Jinja2 (as transformers sets it up) and by us, compared.

  diff_jinja.py RENDER_MAIN [--cases N] [--seed S] [--show K]

RENDER_MAIN is the program built from test/golden/render_main.c. A case is equal when both give the same text or both
fail. On demand only: needs jinja2 from PyPI.
"""
import argparse, datetime, json, os, random, subprocess, sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """transformers' {% generation %}: the body as the caller of a method that returns it."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_back"), [], [], body).set_lineno(line)

    def _back(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 11, 21, 9, 30, 0).strftime(f)
    return env


WORDS = ["", "a", "ab", "Hello World", " x ", "\n", "line one\nline two\n\n", "user", "<|im_end|>", "ÄÖü ß", "日本語 テ", "e\u0301", "it's", 'say "hi"',
         "a,b,,c", "12", "-3.5", "0x1F", "1e3", "{}", "%s", "\\n", "tab\there", "ΑΣ ΣΑΣ", "ﬁn ŉ", "x\u00a0y\u2003", "<b>&'\"", "camelCase-word (x) [y]",
         "\x1f\x7f", "😀 smile", "İstanbul", "ǆ ǅ"]
NAMES = ["a", "b", "c", "xs", "d", "s", "n", "messages", "ns", "x", "y", "missing", "tools"]
KEYS = ["role", "content", "items", "name", "k", "id", "keys", "1"]


class Gen:
    def __init__(self, rng):
        self.r = rng
        self.loops = 0
        self.macros = []

    def pick(self, *of):
        return self.r.choice(of)

    # -- values of the conversation
    def value(self, depth=0):
        k = self.r.random()
        if depth > 2 or k < 0.5:
            return self.pick(self.r.choice(WORDS), self.r.randint(-3, 12), self.r.choice([0.5, -2.25, 1e20, 1.0, 3.14159, 1e-7, 100.0, 2.5]),
                             True, False, None, self.r.choice(WORDS))
        if k < 0.75:
            return [self.value(depth + 1) for _ in range(self.r.randint(0, 4))]
        return {self.r.choice(KEYS): self.value(depth + 1) for _ in range(self.r.randint(0, 4))}

    def variables(self):
        v = {"a": self.value(), "b": self.value(), "c": self.value(), "x": self.value(), "tools": self.value(),
             "xs": [self.value(1) for _ in range(self.r.randint(0, 5))], "s": self.r.choice(WORDS) + self.r.choice(WORDS), "n": self.r.randint(-2, 9),
             "d": {self.r.choice(KEYS): self.value(1) for _ in range(self.r.randint(0, 5))},
             "messages": [{"role": self.pick("user", "assistant", "system", "tool"), "content": self.r.choice(WORDS)} for _ in range(self.r.randint(0, 4))]}
        for m in v["messages"]:
            if self.r.random() < 0.3:
                m[self.r.choice(KEYS)] = self.value(1)
        for k in list(v):
            if self.r.random() < 0.05:
                del v[k]
        return v

    # -- expressions
    def string(self):
        w = self.r.choice(WORDS)
        if self.r.random() < 0.1:
            return self.pick(r"'\x41\u00e9\n\t\\'", r'"a\qb"', r"'\'q\''", r'"\101\0"', "'a' 'b'", r"'\é'", '"multi\nline"')
        q = self.pick("'", '"')
        return q + w.replace("\\", "\\\\").replace(q, "\\" + q) + q

    def literal(self):
        return self.pick(self.string(), str(self.r.randint(0, 12)), self.pick("1.5", "2.0", "1e3", "0.1", "1_000", "0x1f", "0b11", "0o17", "12.5e-3"),
                         self.pick("true", "false", "none", "True", "False", "None"), self.string())

    def name(self):
        return self.r.choice(NAMES)

    def args(self, *kinds):
        return ", ".join(kinds)

    def method(self, o):
        i = self.expr(3)
        return o + "." + self.pick(
            "upper()", "lower()", "strip()", "strip('\\n x')", "lstrip()", "rstrip('x')", "title()", "capitalize()", "split()", "split(',')",
            "split(',', 1)", "rsplit(' ', 1)", "split(%s)" % self.string(), "splitlines()", "replace('a', 'bb')", "replace(%s, %s)" % (self.string(), self.string()),
            "startswith(%s)" % self.string(), "endswith(('a', 'b'))", "find('a')", "rfind('a')", "count('a')", "index('a')", "join(['x', 'y'])", "join(%s)" % i,
            "items()", "keys()", "values()", "get('role')", "get(%s, %s)" % (i, i), "isdigit()", "isalpha()", "isupper()", "islower()", "isspace()", 
            "ljust(6, '*')", "rjust(6)", "partition(' ')", "rpartition('a')", "format(1, 'x')", "append(1)", "pop()", "update({})", "isalnum()",
            "removeprefix('a')", "removesuffix('b')", "index(%s)" % i, "count(%s)" % i, "copy()", "foo()")

    def filter(self):
        i = self.expr(3)
        return self.pick(
            "length", "upper", "lower", "trim", "trim('x')", "title", "capitalize", "string", "list", "first", "last", "join", "join(', ')", "join(', ', attribute='role')",
            "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(indent=1, sort_keys=true)",
            "default('d')", "default(%s, true)" % i, "d", "replace('a', 'b')", "replace('a', 'b', 1)", "reverse", "reverse|list", "sort", "sort(reverse=true)",
            "sort(attribute='role')", "sort(case_sensitive=true)", "unique|list", "map('upper')|list", "map(attribute='content')|list", "map(attribute='x', default='-')|list",
            "map('default', 'q')|join", "select|list", "select('string')|list", "select('greaterthan', 1)|list", "reject('none')|list",
            "selectattr('role', 'equalto', 'user')|list", "selectattr('role')|list", "rejectattr('role', 'in', ['user', 'tool'])|list", "items|list", "dictsort",
            "dictsort(by='value')", "dictsort(reverse=true)", "batch(2)|list", "batch(3, '-')|list", "sum", "sum(start=1)",
            "min", "max", "min(attribute='role')", "abs", "round", "round(1)", "round(2, 'floor')", "round(1, 'ceil')", "int", "int(7)", "int(0, 16)", "float", "float(2)",
            "indent", "indent(2, true)", "indent('> ', blank=true)", "truncate(5)", "truncate(9, true, '..')", "truncate(4, leeway=0)", "escape", "e",
            "safe", "groupby('role')", "groupby('role', default='none')", "format(1)", "attr('upper')", "count", "nosuch",
            "first|upper", "list|length", "string|length", "tojson|safe", "map('length')|list", "map('trim')|list", "xmlattr" if False else "items")

    def test(self):
        i = self.expr(3)
        return self.pick("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "callable",
                         "odd", "even", "divisibleby 3", "divisibleby(2)", "in [1, 2, 'a']", "in(%s)" % i, "eq 1", "equalto 'user'", "ne(2)", "gt 1", "lt(%s)" % i, "ge 2",
                         "le 3", "sameas true", "upper", "lower", "nosuch", "filter", "greaterthan 1")

    def good(self, depth):
        """An expression that mostly works: a value of a known type under an operation that it supports."""
        string = lambda: self.pick("s", self.string(), "s", "m.content" if False else "s", "(s ~ n)", "d|string", self.string() + " * 2")
        number = lambda: self.pick("n", str(self.r.randint(0, 99)), "xs|length", "s|length", "1.5", "(n + 1)", "-n", "2.75")
        seq = lambda: self.pick("xs", "messages", "[3, 1, 2]", "['b', 'A', 'c']", "range(4)", "(1, 2, 3)", "s.split()", "d.keys()", "messages|map(attribute='content')|list", "s")
        k = self.r.randint(0, 9)
        if k == 0:
            return self.method(string())
        if k == 1:
            return "%s|%s" % (string(), self.pick("upper", "lower", "trim", "title", "capitalize", "length", "reverse", "list", "tojson", "indent(3)", "indent(1, true, true)",
                                                  "replace('a', 'X')", "truncate(6)", "truncate(7, true)", "e", "int", "float", "first",
                                                  "last", "string", "join('-')", "unique|join", "sort|join", "batch(2)|list", "e|upper", "safe|replace('x', '<')",
                                                  "trim('H a')", "int(5)", "int(2, 16)"))
        if k == 2:
            return "%s|%s" % (seq(), self.pick("length", "first", "last", "list", "reverse|list", "join(', ')", "tojson" if False else "string", "sort(reverse=true)|string",
                                               "batch(2)|list", "unique|list", "map('string')|join('/')", "select|list", "reject('defined')|list",
                                               "map('tojson')|join", "select('string')|join", "map('length')|list", "groupby(0)|list", "min", "max", "sum", "batch(2, 'f')|list"))
        if k == 3 and self.r.random() < 0.1:  # in brackets: Jinja2 prints a folded -2 ** n so that Python reads -(2 ** n)
            return "((%s) ** %s)" % (self.pick("n", "2", "1.5"), self.pick("n", "2", "0.5"))
        if k == 3:
            return "%s %s %s" % (number(), self.pick("+", "-", "*", "/", "//", "%", "==", "<", ">=", "!="), number())
        if k == 4:
            return "%s|%s" % (number(), self.pick("abs", "round", "round(1)", "round(-1)", "int", "float", "string", "tojson", "round(1, 'floor')", "round(0, 'ceil')"))
        if k == 5:
            return "(%s)[%s:%s%s]" % (seq() if self.r.random() < 0.5 else string(), self.pick("", "1", "-2", "n"), self.pick("", "2", "-1", "n"), self.pick("", ":2", ":-1", ":", ":-2"))
        if k == 6:
            return "messages|%s" % self.pick("selectattr('role', 'equalto', 'user')|list", "map(attribute='content')|join('|')", "groupby('role')|list", "sort(attribute='role')",
                                             "rejectattr('role', 'eq', 'tool')|map(attribute='role')|list", "map(attribute='k', default='?')|list", "sort(attribute='role,content')|tojson",
                                             "selectattr('content')|list|length", "map('items')|map('list')|list", "map('dictsort')|list", "unique(attribute='role')|list", "tojson(indent=2)")
        if k == 7:
            return "'%s' %% %s" % (self.pick("%5.1f|", "%d", "%-6s|", "%s", "%04d", "%+.2e", "%g", "%x", "% d", "%.3s", "%%%i", "%6.2f%%"), self.pick(number(), string(), "(n,)"))
        if k == 8:
            spec = self.pick("", ":>8", ":<6", ":^9", ":05", ":.2f", ":+d", ":,", ":x", ":e", ":%", ":08.3f", "!r", "!s:>5", ":*^7", ":.3", ":g")
            return "'{%s%s}|{{}}'.format(%s)" % (self.pick("", "0"), spec, self.pick(number(), string(), number()))
        return "d|%s" % self.pick("dictsort", "tojson", "tojson(sort_keys=true)", "items|list", "length", "list", "string", "dictsort(true)", "dictsort(by='key', reverse=true)", "tojson(indent=4)")

    def expr(self, depth=0):
        depth += getattr(self, "top", 0) if depth == 0 else 0
        if self.r.random() < 0.35:
            return self.good(depth)
        k = self.r.random()
        if depth >= 4 or k < 0.2:
            return self.name() if self.r.random() < 0.6 else self.literal()
        e = lambda: self.expr(depth + 1)
        if k < 0.32:
            return "%s %s %s" % (e(), self.pick("+", "-", "*", "/", "//", "%", "~", "+", "~"), e())
        if k < 0.36:
            return "(%s)" % e()
        if k < 0.42:
            return "%s %s %s" % (e(), self.pick("==", "!=", "<", "<=", ">", ">=", "in", "not in"), e())
        if k < 0.47:
            return "%s %s %s" % (e(), self.pick("and", "or"), e())
        if k < 0.5:
            return self.pick("not ", "-", "+", "") + e()
        if k < 0.54:
            return "(%s if %s else %s)" % (e(), e(), e()) if self.r.random() < 0.8 else "(%s if %s)" % (e(), e())
        if k < 0.58:
            return "%s.%s" % (self.pick(self.name(), "(%s)" % e()), self.r.choice(KEYS[:7]))
        if k < 0.64:
            return "%s[%s]" % (self.name(), self.pick(e(), "0", "-1", "'role'", "1"))
        if k < 0.69:
            return "%s[%s:%s%s]" % (self.name(), self.pick("", "1", "-2", "n"), self.pick("", "2", "-1", "n"), self.pick("", ":2", ":-1", ":", ":-2"))
        if k < 0.75:
            return self.method(self.pick(self.name(), self.string(), "(%s)" % e()))
        if k < 0.88:
            return "%s|%s" % (self.pick(self.name(), "(%s)" % e(), self.string()), self.filter())
        if k < 0.93:
            return "%s is %s%s" % (self.pick(self.name(), "(%s)" % e()), self.pick("", "not "), self.test())
        if k < 0.96:
            return self.pick("[%s]" % ", ".join(e() for _ in range(self.r.randint(0, 3))), "(%s,)" % e(), "(%s, %s)" % (e(), e()),
                             "{%s}" % ", ".join("%s: %s" % (self.string(), e()) for _ in range(self.r.randint(0, 3))))
        if k < 0.98:
            if self.macros and self.r.random() < 0.6:
                return "%s(%s)" % (self.r.choice(self.macros), self.pick("", e(), "p=" + e(), "%s, %s" % (e(), e()), "q=" + e()))
            return self.pick("range(%d)" % self.r.randint(0, 5), "range(1, n)", "range(5, 0, -2)|list", "dict(a=1, b=%s)" % e(), "strftime_now('%Y-%m-%d %H:%M')",
                             "namespace(a=%s).a" % e(), "range(n)|list")
        if self.loops:
            return "loop." + self.pick("index", "index0", "first", "last", "length", "revindex", "revindex0", "depth", "previtem", "nextitem", "cycle('o', 'e')",
                                       "changed(%s)" % self.name())
        return "'%s' %% (%s)" % (self.pick("%s", "%d", "%5.2f|", "%-6s|", "%x", "%r", "%%%s", "%05d", "%+d", "%e", "%g"), e())

    # -- statements
    def text(self):
        return self.pick("text", " ", "\n", "  \n  ", "a\n b\n", "<|im_start|>", "\t", "x ", "\n\n", "é", "{ % } #")

    def tag(self, inside):
        return "{%" + self.pick("", "", "-", "+") + self.pick(" ", "  ", "\n") + inside + self.pick(" ", " ", "\n ") + self.pick("", "", "-", "+") + "%}"

    def out(self):
        return "{{" + self.pick("", "-", "+") + " " + self.expr() + " " + self.pick("", "-") + "}}"

    def body(self, depth):
        return "".join(self.stmt(depth + 1) for _ in range(self.r.randint(1, 3)))

    def target(self):
        return self.pick(*NAMES[:11])

    def stmt(self, depth=0):
        k = self.r.random()
        if depth > 3 or k < 0.2:
            return self.text()
        if k < 0.45:
            return self.out()
        if k < 0.55:
            s = self.tag("if " + self.expr()) + self.body(depth)
            while self.r.random() < 0.3:
                s += self.tag("elif " + self.expr()) + self.body(depth)
            if self.r.random() < 0.4:
                s += self.tag("else") + self.body(depth)
            return s + self.tag("endif")
        if k < 0.7:
            target, over = self.pick(("x", self.name()), ("x", "xs"), ("m", "messages"), ("k, v", "d.items()"), ("k, v", "d|items"), ("x", self.expr(2)), ("i", "range(3)"))
            cond = " if " + self.expr(2) if self.r.random() < 0.2 else ""
            self.loops += 1
            s = self.tag("for %s in %s%s" % (target, over, cond)) + self.body(depth)
            if self.r.random() < 0.15:
                s += self.tag("if " + self.expr(2)) + self.tag(self.pick("break", "continue")) + self.tag("endif") + self.text()
            self.loops -= 1
            if self.r.random() < 0.2:
                s += self.tag("else") + self.body(depth)
            return s + self.tag("endfor")
        if k < 0.8:
            return self.tag("set %s = %s" % (self.pick(self.target(), self.target(), "ns.v", "a, b"), self.expr()))
        if k < 0.83:
            return self.tag("set ns = namespace(v=%s, w=0)" % self.expr(2))
        if k < 0.86:
            f = self.pick("", " | upper", " | trim", " | replace('a', s)")
            return self.tag("set %s%s" % (self.target(), f)) + self.body(depth) + self.tag("endset")
        if k < 0.9:
            name = self.pick("m1", "m2", "m3")
            loops, self.loops = self.loops, 0
            s = self.tag("macro %s(%s)" % (name, self.pick("", "p", "p, q=1", "p='d'", "x, y=x"))) + self.body(depth) + \
                self.pick("", "{{ p }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}", "{{ x }}", "{{ q }}") + self.tag("endmacro")
            self.loops = loops
            self.macros.append(name)
            return s
        if k < 0.92 and self.macros:
            loops, self.loops = self.loops, 0
            s = self.tag("call %s(%s)" % (self.r.choice(self.macros), self.pick("", "1"))) + self.body(depth) + self.tag("endcall")
            self.loops = loops
            return s
        if k < 0.94:
            return self.tag("filter " + self.pick("upper", "trim", "replace('e', '3')", "indent(2)", "title|lower")) + self.body(depth) + self.tag("endfilter")
        if k < 0.96:
            return self.tag("with %s = %s" % (self.target(), self.expr(2))) + self.body(depth) + self.tag("endwith")
        if k < 0.97:
            loops, self.loops = self.loops, 0
            s = self.tag("generation") + self.body(depth) + self.tag("endgeneration")
            self.loops = loops
            return s
        if k < 0.98:
            return "{#" + self.pick("", "-") + " note\n " + self.pick("", "-") + "#}" + self.text()
        if k < 0.99:
            return self.tag("raw") + self.pick("{{ x }}", "{% if %}", "a\n") + self.tag("endraw")
        return self.tag("for x in xs recursive") + "<{{ x }}" + self.pick("{{ loop(x) if x is sequence and x is not string }}", "{{ loop.depth }}") + ">" + self.tag("endfor")

    def template(self):
        k = self.r.random()
        if k < 0.5:  # one expression is more informative: long templates mostly end in an error
            self.top = 2 if k < 0.3 else 1
            return self.out()
        return "".join(self.stmt() for _ in range(self.r.randint(1, 4)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("render")
    p.add_argument("--cases", type=int, default=5000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", type=int, default=8)
    a = p.parse_args()
    env = environment()
    child = subprocess.Popen([a.render, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env=dict(os.environ, SOURCE_DATE_EPOCH="1795253400", TZ="UTC"))
    good = errors = skipped = bad = 0
    for i in range(a.cases):
        g = Gen(random.Random(a.seed * 1000003 + i))
        variables, source = g.variables(), g.template()
        try:
            want, kind = env.from_string(source).render(**variables), "T"
        except RecursionError:
            skipped += 1
            continue
        except Exception as e:
            want, kind = "%s: %s" % (type(e).__name__, e), "E"
        if kind == "T" and (" at 0x" in want.lower() or len(want) > 1 << 20):
            skipped += 1  # addresses of generators and methods
            continue
        child.stdin.write((json.dumps(source) + "\n" + json.dumps(variables) + "\n").encode())
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            print("CRASH at seed %d case %d:\n%s\n%s" % (a.seed, i, source, json.dumps(variables)))
            return 1
        got_kind, got = line[:1].decode(), json.loads(line[1:])
        if got_kind == "E" and ("beyond 64 bits" in got or "complex" in got):
            skipped += 1  # Python's integers are unbounded, and its roots of negative numbers are complex
        elif got_kind == kind and (kind == "E" or got == want):
            good += kind == "T"
            errors += kind == "E"
        else:
            bad += 1
            if bad <= a.show:
                print("== case %d\n-- template\n%s\n-- variables %s\n-- want %s %r\n-- got  %s %r" % (i, source, json.dumps(variables, ensure_ascii=False), kind, want[:600],
                                                                                                     got_kind, got[:600]))
    child.stdin.close()
    print("diff_jinja: %d texts equal, %d errors in both, %d skipped, %d differ" % (good, errors, skipped, bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
