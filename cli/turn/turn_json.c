/* Answers and statistics as JSON, for --json, --json-lines and --batch. */
#include <string.h>

#include "cli/terminal/out.h"
#include "cli/turn/turn.h"

void turn_json_usage(const struct turn *t, struct buf *b) {
    const struct turn_stats *s = &t->stats;
    buf_fmt(b, "{\"prompt_tokens\": %d, \"cached_tokens\": %d, \"answer_tokens\": %d, \"total_tokens\": %d}",
            s->prompt_tokens, s->cached_tokens, s->answer_tokens, s->prompt_tokens + s->answer_tokens);
}

static void put_experts(const struct expert_stats *x, struct buf *b) {
    buf_fmt(b,
            ", \"experts\": {\"chosen\": %llu, \"on_device\": %llu, \"moved\": %llu, \"moved_in_vain\": %llu, "
            "\"moved_bytes\": %llu",
            (unsigned long long)x->chosen, (unsigned long long)x->hits, (unsigned long long)x->uploaded,
            (unsigned long long)x->wasted, (unsigned long long)x->upload_bytes);
    buf_fmt(b, ", \"foreseen\": {\"moved\": %llu, \"moved_in_vain\": %llu", (unsigned long long)x->predicted_uploads,
            (unsigned long long)x->predicted_wasted);
    for (int i = 0; i < 3; i++)
        buf_fmt(b, "%s[%llu, %llu]%s", i ? ", " : ", \"right_of_said\": [", (unsigned long long)x->predicted_chosen[i],
                (unsigned long long)x->predicted[i], i < 2 ? "" : "]");
    buf_fmt(b, "}, \"processor_s\": %.6f, \"device_s\": %.6f, \"deciding_s\": %.6f, \"decided\": %llu", x->cpu_s,
            x->device_s, x->placement_s, (unsigned long long)x->n_placements);
    if (x->pinned) buf_fmt(b, ", \"pinned\": \"%016llx\"", (unsigned long long)x->pinned);
    buf_char(b, '}');
}

void turn_json_timing(const struct turn *t, struct buf *b) {
    const struct turn_stats *s = &t->stats;
    buf_fmt(b,
            "{\"queue_s\": %.6f, \"ttft_s\": %.6f, \"prefill_s\": %.6f, \"decode_s\": %.6f, \"bytes_read\": %llu, "
            "\"prefill\": ",
            s->queue_s, s->ttft_s, s->prefill_s, s->decode_s, (unsigned long long)s->bytes_read);
    out_json_string(b, s->prefill_mode, s->prefill_mode ? strlen(s->prefill_mode) : 0);
    buf_str(b, ", \"decode\": ");
    out_json_string(b, s->decode_mode, s->decode_mode ? strlen(s->decode_mode) : 0);
    buf_fmt(b, ", \"drafted\": %d, \"accepted\": %d", s->drafted, s->accepted);
    if (s->experts.chosen) put_experts(&s->experts, b);
    buf_char(b, '}');
}

void turn_json_answer(const struct turn *t, struct buf *b) {
    buf_str(b, "\"text\": ");
    out_json_string(b, t->text.data, t->text.len);
    buf_str(b, ", \"thinking\": ");
    out_json_string(b, t->thinking.data, t->thinking.len);
    if (t->tool.len) {
        buf_str(b, ", \"tool\": ");
        out_json_string(b, t->tool.data, t->tool.len);
    }
    buf_fmt(b, ", \"reason\": \"%s\", \"usage\": ", turn_reason_name(t->reason));
    turn_json_usage(t, b);
}
