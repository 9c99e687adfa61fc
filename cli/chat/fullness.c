#include "cli/chat/fullness.h"

#include "cli/open.h"

int fullness_percent(const struct repl *r, const struct chat_session *t, int n_more) {
    const int context = r->app->info ? r->app->info->context : 0;
    return t->n_in_context && context > 0 ? (int)(100LL * (t->n_in_context + n_more) / context) : 0;
}

bool fullness_wants_summary(const struct repl *r, const struct chat_session *t) {
    const struct opt_value *at = &r->app->opts.v[OPT_COMPACT_AT];
    return at->text && t == r->active && !t->keeps_whole && t->conv.n >= 3 && !open_is_builtin(r->app) &&
           fullness_percent(r, t, 0) >= at->integer;
}
