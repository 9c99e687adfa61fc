#include "cli/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "cli/terminal/amount.h"
#include "cli/terminal/progress.h"

static bool quiet;

void report_set_quiet(bool on) { quiet = on; }

/* --- messages --------------------------------------------------------------------------------- */

int report_error(const struct error *e) {
    char text[sizeof e->text + 16];
    snprintf(text, sizeof text, "hearth: %s", e->text);
    progress_print(text);
    return error_exit_code(e->code);
}

void report_note(const char *fmt, ...) {
    char text[1024] = "hearth: ";
    if (quiet) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + 8, sizeof text - 8, fmt, ap);
    va_end(ap);
    progress_print(text);
}

/* Appends a line about experts if the turn has chosen some. */
static void put_expert_stats(const struct expert_stats *x, struct buf *out) {
    char text[32], other[32];
    if (!x->chosen) return;
    buf_fmt(out, "\nexperts: %.0f%% of its experts on a device, ", 100.0 * (double)x->hits / (double)x->chosen);
    if (x->pinned) buf_fmt(out, "pinned (%016llx)", (unsigned long long)x->pinned);
    else
        buf_fmt(out, "%llu uploaded (%s), %llu unused", (unsigned long long)x->uploaded,
                amount_bytes(x->upload_bytes, text, sizeof text), (unsigned long long)x->wasted);
    if (x->predicted[0]) {
        buf_str(out, "; expert predictions correct:");
        for (int i = 0; i < 3; i++)
            if (x->predicted[i])
                buf_fmt(out, "%s %.0f%% (%d ahead)", i ? "," : "",
                        100.0 * (double)x->predicted_chosen[i] / (double)x->predicted[i], i + 1);
        buf_fmt(out, "; %llu uploaded for them, %llu unused", (unsigned long long)x->predicted_uploads,
                (unsigned long long)x->predicted_wasted);
    }
    buf_fmt(out, "; expert time: CPU %s", amount_seconds(x->cpu_s, text, sizeof text));
    if (x->device_s > 0) buf_fmt(out, ", devices %s", amount_seconds(x->device_s, other, sizeof other));
    if (x->n_placements)
        buf_fmt(out, ", placement %s per layer",
                amount_seconds(x->placement_s / (double)x->n_placements, text, sizeof text));
}

void report_stats_text(const struct turn_stats *s, struct buf *out) {
    char text[32], rate[32];
    int fresh = s->prompt_tokens - s->cached_tokens, steps = s->answer_tokens - 1;
    if (s->ttft_s > 0 && steps > 0 && s->decode_s > 0)
        buf_fmt(out, "%s tokens a second, first token after %s\n", amount_rate(steps / s->decode_s, rate, sizeof rate),
                amount_seconds(s->ttft_s, text, sizeof text));
    buf_fmt(out, "prompt: %s", amount_count(s->prompt_tokens, "token", text, sizeof text));
    if (s->cached_tokens) buf_fmt(out, ", %d of them cached", s->cached_tokens);
    if (s->image_s > 0) buf_fmt(out, ", images in %s", amount_seconds(s->image_s, text, sizeof text));
    if (s->ttft_s <= 0) buf_str(out, ", stopped during prefill");
    else if (s->prefill_s > 0 && fresh > 0)
        buf_fmt(out, ", prefilled in %s (%s tokens/s)", amount_seconds(s->prefill_s, text, sizeof text),
                amount_rate(fresh / s->prefill_s, rate, sizeof rate));
    if (s->ttft_s > 0 && (steps <= 0 || s->decode_s <= 0))
        buf_fmt(out, "; first token after %s", amount_seconds(s->ttft_s, text, sizeof text));
    buf_fmt(out, "\nanswer: %s", amount_count(s->answer_tokens, "token", text, sizeof text));
    if (steps > 0 && s->decode_s > 0)
        buf_fmt(out, " in %s (%s tokens/s)", amount_seconds(s->decode_s, text, sizeof text),
                amount_rate(steps / s->decode_s, rate, sizeof rate));
    buf_fmt(out, "; %s of weights read", amount_bytes(s->bytes_read, text, sizeof text));
    if (s->prefill_mode) buf_fmt(out, "; prefill by %s", s->prefill_mode);
    if (s->decode_mode) buf_fmt(out, ", decode by %s", s->decode_mode);
    if (s->drafted) buf_fmt(out, "; %d of %d drafted tokens accepted", s->accepted, s->drafted);
    put_expert_stats(&s->experts, out);
}

void report_stats(const struct turn_stats *s) {
    struct buf b = {0};
    report_stats_text(s, &b);
    if (b.data) progress_print(b.data);
    buf_free(&b);
}

void report_explain_text(const struct turn_stats *s, struct buf *out) {
    char expected[32], took[32];
    buf_fmt(out, "prompt: %s", *s->prefill_why ? s->prefill_why : "the engine gave no reason");
    if (s->prefill_expected_s > 0 && s->prefill_s > 0)
        buf_fmt(out, " (expected %s, took %s)", amount_seconds(s->prefill_expected_s, expected, sizeof expected),
                amount_seconds(s->prefill_s, took, sizeof took));
    if (!s->decode_mode || !*s->decode_why) return;
    buf_fmt(out, "\nanswer: decoded by %s: %s", s->decode_mode, s->decode_why);
    if (s->batch_expected_s > 0)
        buf_fmt(out, " (a decode step: expected %s, took %s)",
                amount_seconds(s->batch_expected_s, expected, sizeof expected),
                amount_seconds(s->batch_s, took, sizeof took));
    put_expert_stats(&s->experts, out);
    if (!s->draft) return;
    if (!s->drafted) buf_fmt(out, "\ndrafts: by %s, none, not expected to pay off", s->draft);
    else
        buf_fmt(
            out,
            "\ndrafts: by %s, %d of %d drafted tokens accepted, up to %d per step, about %.2f times as fast as without",
            s->draft, s->accepted, s->drafted, s->max_drafted,
            s->decode_s > 0 ? fmax(1 + s->draft_saved_s / s->decode_s, 0) : 1);
}

void report_explain(const struct turn_stats *s) {
    struct buf b = {0};
    report_explain_text(s, &b);
    if (b.data && *s->prefill_why) report_note("%s", b.data);
    buf_free(&b);
}
