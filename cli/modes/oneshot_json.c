#include "cli/modes/oneshot_json.h"

#include <string.h>

#include "cli/terminal/out.h"
#include "cli/turn/code_block.h"

static bool json_printed; /* the object of --json, or the last line of --json-lines, was printed */

static int write_json_line(struct buf *b) {
    buf_char(b, '\n');
    int rc = b->failed ? ERR_MEMORY : out_write(b->data, b->len);
    buf_free(b);
    return rc;
}

/* --json-lines: chunks never split a character, which the decoder holds back */
int oneshot_json_text(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct buf b = {0};
    buf_fmt(&b, "{\"type\": \"%s\", \"text\": ",
            part == OUTPUT_THINKING    ? "thinking"
            : part == OUTPUT_TOOL_CALL ? "tool"
                                       : "delta");
    out_json_string(&b, data, n);
    buf_char(&b, '}');
    return write_json_line(&b);
}

void oneshot_json_error(const struct app *a, const struct error *e) {
    struct buf b = {0};
    const bool answers = opt_mode(&a->opts) == OPT_COUNT, lines = answers && a->opts.v[OPT_JSON_LINES].on;
    if (json_printed || (!answers && out_wrote()) || (!lines && !a->opts.v[OPT_JSON].on)) return;
    buf_str(&b, lines ? "{\"type\": \"error\", \"error\": {" : "{\"error\": {");
    buf_fmt(&b, "\"code\": %d, \"message\": ", error_exit_code(e->code));
    out_json_string(&b, e->text, strlen(e->text));
    buf_str(&b, "}}");
    write_json_line(&b);
}

void oneshot_json_end(const struct turn *t) {
    struct buf b = {0};
    buf_str(&b, "{\"type\": \"usage\", \"usage\": ");
    turn_json_usage(t, &b);
    buf_str(&b, ", \"timing\": ");
    turn_json_timing(t, &b);
    buf_char(&b, '}');
    write_json_line(&b);
    buf_fmt(&b, "{\"type\": \"done\", \"reason\": \"%s\"}", turn_reason_name(t->reason));
    write_json_line(&b);
    json_printed = true;
}

int oneshot_json_answer(const struct app *a, const struct turn *t, const struct buf *calls, int n_parts, uint64_t seed,
                        struct error *e) {
    struct buf b = {0};
    const char *code;
    size_t n;
    const char *name = a->info->name;
    buf_str(&b, "{\"model\": ");
    out_json_string(&b, name, strlen(name));
    buf_str(&b, ", ");
    turn_json_answer(t, &b);
    if (calls->len) buf_fmt(&b, ", \"calls\": [%s]", calls->data);
    b.failed |= calls->failed;
    if (!strcmp(a->opts.v[OPT_LONG].text, "split")) buf_fmt(&b, ", \"parts\": %d", n_parts);
    if (a->opts.v[OPT_EXTRACT].on) {
        buf_str(&b, ", \"code\": ");
        if (code_block_find(&t->text, 1, &code, &n)) out_json_string(&b, code, n);
        else buf_str(&b, "null");
    }
    buf_fmt(&b, ", \"seed\": %llu, \"timing\": ", (unsigned long long)seed);
    turn_json_timing(t, &b);
    buf_char(&b, '}');
    json_printed = !b.failed;
    return write_json_line(&b) == ERR_MEMORY ? error_set(e, ERR_MEMORY, "no memory") : 0;
}

void oneshot_json_part(const struct app *a, int part, int n_parts) {
    struct buf b = {0};
    if (!a->opts.v[OPT_JSON_LINES].on) return;
    buf_fmt(&b, "{\"type\": \"part\", \"part\": %d, \"parts\": %d}", part, n_parts);
    write_json_line(&b);
}

/* --- tool calls ------------------------------------------------------------------------------- */

void oneshot_json_call(const struct app *a, const struct tool_call *call) {
    struct buf b = {0};
    if (!a->opts.v[OPT_JSON_LINES].on) return;
    buf_str(&b, "{\"type\": \"call\", ");
    tool_round_put_call(call, &b);
    buf_char(&b, '}');
    write_json_line(&b);
}

void oneshot_json_result(const struct app *a, const struct tool_call *call, const struct tool_result *r,
                         struct buf *calls) {
    const bool lines = a->opts.v[OPT_JSON_LINES].on;
    struct buf event = {0}, *b = lines ? &event : calls;
    if (!lines && !a->opts.v[OPT_JSON].on) return;
    buf_str(b, lines ? "{\"type\": \"result\", " : b->len ? ", {" : "{");
    tool_round_put_call(call, b);
    tool_round_put_result(r, b);
    buf_char(b, '}');
    if (lines) write_json_line(b);
}
