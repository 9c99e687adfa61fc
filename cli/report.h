#pragma once
/* Messages on stderr, each on its own lines with the prefix "hearth: ", and statistics as text. The progress line is
 * cleared first. */
#include <stdbool.h>

#include "engine/engine.h"

void report_set_quiet(bool quiet);       /* suppresses notes */
int report_error(const struct error *e); /* returns the exit code */
void report_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void report_stats(const struct turn_stats *s); /* the --stats line */
void report_stats_text(const struct turn_stats *s, struct buf *out);
/* --explain, one line: why the modes of a turn were chosen, and expected against measured times. */
void report_explain(const struct turn_stats *s);
void report_explain_text(const struct turn_stats *s, struct buf *out);
