/* --pull: chooses the files, says what they are, downloads them and makes the snapshot. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/hub/hub.h"
#include "cli/hub/hub_choice.h"
#include "cli/hub/hub_preview.h"
#include "cli/hub/hub_progress.h"
#include "cli/hub/hub_store.h"
#include "cli/modes/bandwidth.h"
#include "cli/modes/verdict.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/ask.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"

struct pull {
    struct app *app;
    struct hub_name name;
    bool is_offer, asks; /* asks: a person can answer */
    struct hub hub;
    struct hub_listing listing;
    struct hub_quants quants;
    struct hub_store store;
    struct hub_set settings, all;                 /* files that the model is described by; all files, these first */
    char title[HUB_NAME_MAX + HUB_QUANT_MAX + 1]; /* as -m accepts it */
    const struct hub_quant *quant;                /* the one that is pulled; NULL: a checkpoint of safetensors */
    double rate, share;                           /* memory bandwidth; part of the weights that a token reads */
};

/* --- downloading ------------------------------------------------------------------------------ */

static void set_download(struct pull *p, struct hub_download *d, const struct hub_file *f, struct hub_request *r) {
    *d = (struct hub_download){.store = &p->store, .file = f, .fd = -1, .lock = -1};
    *r = (struct hub_request){.what = f->path, .size = f->size, .is_file = true, .sink = &hub_download_sink, .ctx = d};
}

/* Downloads those files of a set whose blobs are missing. */
static int download(struct pull *p, const struct hub_set *set, bool shows, struct error *e) {
    size_t n = 0;
    struct hub_download *d = mem_calloc(set->n + 1, sizeof *d);
    struct hub_request *r = mem_calloc(set->n + 1, sizeof *r), **list = mem_calloc(set->n + 1, sizeof *list);
    int rc = d && r && list ? 0 : error_set(e, ERR_MEMORY, "no memory");
    char prefix[300];
    snprintf(prefix, sizeof prefix, "/%s/resolve/%s/", p->listing.repo, p->listing.commit);
    for (size_t i = 0; i < set->n && !rc; i++) {
        bool twice = hub_store_has(&p->store, set->v[i]);
        for (size_t k = 0; k < n && !twice; k++) twice = !strcmp(d[k].file->oid, set->v[i]->oid);
        if (twice) continue;
        set_download(p, &d[n], set->v[i], &r[n]);
        rc = hub_client_url(&p->hub, r[n].url, prefix, set->v[i]->path, e);
        list[n] = &r[n];
        n++;
    }
    struct hub_progress progress = {.downloads = d, .n = n, .is_terminal = p->app->tty_err, .shows = shows};
    if (!rc && n) {
        hub_progress_begin(&progress);
        rc = hub_client_run(&p->hub, list, n, hub_progress_tick, &progress, e);
        progress_clear();
    }
    for (size_t i = 0; i < n; i++) hub_download_close(&d[i]);
    mem_free(d);
    mem_free(r);
    mem_free(list);
    return rc;
}

static uint64_t bytes_left(const struct pull *p) {
    uint64_t left = 0;
    for (size_t i = 0; i < p->all.n; i++) {
        const uint64_t size = p->all.v[i]->size, more = size - hub_store_bytes(&p->store, p->all.v[i]);
        left = left + more < left ? UINT64_MAX : left + more;
    }
    return left;
}

/* Links the files in reverse order. config.json or the first part comes last, so that other programs never see an
 * incomplete model. */
static int make_snapshot(struct pull *p, struct error *e) {
    int rc = 0;
    for (size_t i = p->all.n; i-- > 0 && !rc;) {
        struct hub_file f = *p->all.v[i];
        char path[PATHS_MAX];
        if (p->quant && p->all.v[i] == p->quant->tower) {
            hub_choice_tower_path(p->quant, path, sizeof path);
            f.path = path;
        }
        rc = hub_store_link(&p->store, p->listing.commit, &f, e);
    }
    return rc ? rc : hub_store_set_main(&p->store, p->listing.commit, e);
}

/* --- choosing --------------------------------------------------------------------------------- */

static void print_lines(const struct pull *p, const struct buf *b) {
    if (b->data && !b->failed && !p->app->opts.v[OPT_QUIET].on) progress_print(b->data);
}

static void put_quant(const struct pull *p, const struct hub_quant *q, bool proposed, int width, struct buf *out) {
    char bytes[32], number[32];
    buf_fmt(out, "  %-*s  %8s  ", width, q->label, amount_bytes(hub_choice_quant_bytes(q), bytes, sizeof bytes));
    if (*q->missing) buf_fmt(out, "incomplete: lacks %s", q->missing);
    else if (!hub_choice_fits(hub_choice_quant_bytes(q), mem_total()))
        buf_str(out, "larger than the memory: read from disk");
    else if (p->rate > 0 && p->share > 0)
        buf_fmt(out, "fits, up to %s tok/s",
                amount_rate(p->rate / (p->share * (double)q->bytes), number, sizeof number));
    else buf_str(out, "fits");
    buf_str(out, proposed ? "  <- suits this machine best\n" : "\n");
}

/* Shows all quants, and asks for one where a person can answer. */
static int ask_quant(struct pull *p, size_t *at, struct error *e) {
    struct buf b = {0};
    char answer[HUB_QUANT_MAX];
    int width = 0;
    for (size_t i = 0; i < p->quants.n; i++)
        if ((int)strlen(p->quants.v[i].label) > width) width = (int)strlen(p->quants.v[i].label);
    buf_fmt(&b, "%s has %zu quants:\n", p->listing.repo, p->quants.n);
    for (size_t i = 0; i < p->quants.n; i++) put_quant(p, &p->quants.v[i], i == *at, width, &b);
    if (p->asks || p->app->tty_err) print_lines(p, &b);
    b.len = 0;
    int rc = 0;
    if (p->asks) {
        buf_fmt(&b, "Which one? Enter takes %s > ", p->quants.v[*at].label);
        if (b.failed || !ask_text(b.data, answer, sizeof answer))
            rc = error_set(e, ERR_CANCELLED, "nothing was downloaded");
        else if (*answer) rc = hub_choice_find(&p->listing, &p->quants, answer, at, e);
    } else
        report_note("%s has %zu quants; %s suits this machine best, %s:QUANT takes another", p->listing.repo,
                    p->quants.n, p->quants.v[*at].label, p->listing.repo);
    buf_free(&b);
    return rc;
}

/* Adds the files of a quant to the model. */
static int take_quant(struct pull *p, size_t at, struct error *e) {
    const struct hub_quant *q = &p->quants.v[at];
    if (*q->missing)
        return error_set(e, ERR_RUNTIME, "%s:%s: the repository lacks %s, so the set is incomplete", p->listing.repo,
                         q->label, q->missing);
    p->all.n = 0;
    p->quant = q;
    return hub_choice_add_quant(&p->listing, q, &p->all, e);
}

/* Reads from the headers which part of the weights a token reads, for the speeds of all quants. */
static int measure_share(struct pull *p, size_t at, struct error *e) {
    struct buf text = {0};
    struct arena arena = {0};
    struct json root;
    int rc = take_quant(p, at, e);
    if (!rc) rc = hub_preview(p->app, &p->hub, &p->listing, &p->store, &p->settings, &p->all, &text, &arena, &root, e);
    if (!rc) {
        const double all = (double)json_int(json_path(&root, "bytes.all"), 0),
                     token = (double)json_int(json_path(&root, "bytes.per_token"), 0);
        if (all > 0 && token > 0 && token <= all) p->share = token / all;
    } else if (rc == ERR_MODEL) rc = 0; /* show_verdict() refuses it, if it is the one */
    arena_free(&arena);
    buf_free(&text);
    return rc;
}

static int choose_quant(struct pull *p, struct error *e) {
    size_t at = 0;
    int rc = 0;
    if (*p->name.quant) rc = hub_choice_find(&p->listing, &p->quants, p->name.quant, &at, e);
    else if (p->quants.n > 1) {
        at = hub_choice_propose(&p->quants, mem_total(), p->rate, 1);
        if (at == p->quants.n)
            return error_set(e, ERR_RUNTIME, "%s: no quant is complete; %s is missing", p->listing.repo,
                             p->quants.v[0].missing);
        rc = measure_share(p, at, e);
        if (!rc) at = hub_choice_propose(&p->quants, mem_total(), p->rate, p->share);
        if (!rc) rc = ask_quant(p, &at, e);
    }
    if (!rc) rc = take_quant(p, at, e);
    if (!rc) snprintf(p->title, sizeof p->title, "%s:%s", p->listing.repo, p->quants.v[at].label);
    return rc;
}

/* Downloads the settings, and adds the weights that they name and the texts. */
static int choose_tensors(struct pull *p, struct error *e) {
    const struct hub_file *index;
    struct buf text = {0};
    char path[PATHS_MAX], *data = NULL;
    size_t n = 0;
    enum { MAX_INDEX = 256 << 20 };
    int rc = hub_choice_add_settings(&p->listing, &p->settings, &index, e);
    if (!rc) rc = hub_store_room(&p->store, hub_choice_bytes(&p->settings), e);
    if (!rc) rc = download(p, &p->settings, false, e);
    if (!rc && index && (size_t)snprintf(path, sizeof path, "%s/blobs/%s", p->store.dir, index->oid) < sizeof path)
        rc = file_read(path, MAX_INDEX, &data, &n, e);
    if (!rc) rc = hub_choice_add_shards(&p->listing, data, n, &p->all, e);
    mem_free(data);
    buf_free(&text);
    return rc;
}

static int choose(struct pull *p, struct error *e) {
    snprintf(p->title, sizeof p->title, "%s", p->listing.repo);
    if (!*p->name.quant && hub_choice_has_tensors(&p->listing)) return choose_tensors(p, e);
    if (p->quants.n || *p->name.quant) return choose_quant(p, e);
    return hub_choice_fail(&p->listing, e);
}

/* --- saying what it is ------------------------------------------------------------------------ */

/* Says why a tower that is downloaded gives the model no images. */
static void put_no_images(const struct pull *p, const struct json *root, struct buf *out) {
    const struct json *why = json_path(root, "images.why");
    if (!p->quant || !p->quant->tower || !why || why->type != JSON_STRING) return;
    buf_fmt(out, "reads no images: %.*s\n", (int)why->n, why->string);
}

static int show_verdict(struct pull *p, struct error *e) {
    struct buf text = {0}, out = {0};
    struct arena arena = {0};
    struct json root;
    char bytes[32];
    int rc = hub_preview(p->app, &p->hub, &p->listing, &p->store, &p->settings, &p->all, &text, &arena, &root, e);
    if (rc == ERR_MODEL && p->app->opts.v[OPT_FORCE].on) {
        report_note("%s; pulling it all the same", e->text);
        rc = 0;
    } else if (rc == ERR_MODEL) {
        struct error why = *e;
        rc = error_set(e, ERR_RUNTIME, "%s: hearth cannot open it: %.300s; --force pulls it all the same", p->title,
                       why.text);
    } else if (!rc) {
        const uint64_t all = hub_choice_bytes(&p->all);
        buf_fmt(&out, "%s · %s in %zu file%s\n", p->title, amount_bytes(all, bytes, sizeof bytes), p->all.n,
                p->all.n == 1 ? "" : "s");
        verdict_put(&out, &root);
        put_no_images(p, &root, &out);
        print_lines(p, &out);
    }
    arena_free(&arena);
    buf_free(&text);
    buf_free(&out);
    return rc;
}

static int ask_start(struct pull *p, uint64_t left, struct error *e) {
    struct buf b = {0};
    char bytes[32], answer[64];
    if (!p->is_offer) return 0;
    buf_fmt(&b, "Download %s now? Enter: yes, n: no > ", amount_bytes(left, bytes, sizeof bytes));
    const bool agreed =
        !b.failed && ask_text(b.data, answer, sizeof answer) && (!*answer || *answer == 'y' || *answer == 'Y');
    buf_free(&b);
    if (agreed) return 0;
    return error_set(e, ERR_CANCELLED, "%s was not downloaded; hearth --pull %s does it later", p->title, p->title);
}

/* Orders the files: settings, weights, then tokenizer and template. */
static int join_sets(struct pull *p, struct error *e) {
    struct hub_set weights = p->all;
    int rc = 0;
    p->all = (struct hub_set){0};
    for (size_t i = 0; i < p->settings.n && !rc; i++) rc = hub_choice_add(&p->all, p->settings.v[i], e);
    for (size_t i = 0; i < weights.n && !rc; i++) rc = hub_choice_add(&p->all, weights.v[i], e);
    if (!rc && p->settings.n) rc = hub_choice_add_texts(&p->listing, &p->all, e);
    mem_free(weights.v);
    return rc;
}

static int pull_files(struct pull *p, struct error *e) {
    char bytes[32];
    const double begin = clock_now();
    struct hub_set weights = p->all;
    bool is_there = true;
    for (size_t i = 0; i < weights.n; i++) is_there &= hub_store_has(&p->store, weights.v[i]);
    int rc = hub_store_room(&p->store, bytes_left(p), e);
    if (!rc && !is_there) rc = show_verdict(p, e);
    if (!rc) rc = join_sets(p, e);
    if (rc) return rc;
    const uint64_t left = bytes_left(p);
    rc = hub_store_room(&p->store, left, e);
    if (!rc && left) rc = ask_start(p, left, e);
    if (!rc) rc = download(p, &p->all, true, e);
    if (!rc) rc = make_snapshot(p, e);
    if (rc) return rc;
    if (!left) report_note("%s is complete already; hearth -m %s opens it", p->title, p->title);
    else {
        char time[32];
        report_note("pulled %s: %s in %s; hearth -m %s opens it", p->title, amount_bytes(left, bytes, sizeof bytes),
                    amount_duration(clock_now() - begin, time, sizeof time), p->title);
    }
    return 0;
}

static int pull(struct pull *p, struct error *e) {
    int rc = hub_client_open(&p->hub, e);
    if (!rc) rc = digest_load(e);
    if (!rc) {
        progress_begin("asking the hub");
        rc = hub_listing_fetch(&p->hub, p->name.repo, &p->listing, e);
        progress_clear();
    }
    if (!rc) rc = hub_store_open(&p->store, p->name.repo, e);
    if (!rc) rc = hub_choice_quants(&p->listing, &p->quants, e);
    if (!rc) {
        progress_begin("measuring the memory");
        p->rate = bandwidth_of_machine(p->app);
        progress_clear();
        rc = choose(p, e);
    }
    if (!rc) rc = pull_files(p, e);
    mem_free(p->settings.v);
    mem_free(p->all.v);
    mem_free(p->quants.v);
    hub_store_close(&p->store);
    hub_listing_free(&p->listing);
    hub_client_close(&p->hub);
    return rc;
}

int hub_pull_run(struct app *a, struct error *e) {
    struct pull p = {.app = a, .asks = a->tty_in && a->tty_err && !a->opts.v[OPT_QUIET].on, .store = {.lock = -1}};
    if (!hub_name_parse(a->opts.v[OPT_PULL].text, &p.name))
        return error_set(e, ERR_USAGE, "--pull %.200s: not a name on a hub; give ORG/NAME or ORG/NAME:QUANT",
                         a->opts.v[OPT_PULL].text);
    int rc = pull(&p, e);
    if (rc == ERR_CANCELLED && !sig_interrupted() && !sig_terminated()) rc = e->code = ERR_RUNTIME;
    return rc;
}

int hub_pull_offer(struct app *a, const char *name, struct error *e) {
    struct pull p = {.app = a, .is_offer = true, .asks = a->tty_in && a->tty_err && a->tty_out, .store = {.lock = -1}};
    if (!p.asks || a->opts.v[OPT_QUIET].on || !hub_name_parse(name, &p.name)) return ERR_CANCELLED;
    char folder[HUB_NAME_MAX]; /* a mistyped path below an existing folder is not a name on the hub */
    snprintf(folder, sizeof folder, "%.*s", (int)strcspn(name, "/"), name);
    if (file_is_dir(folder)) return ERR_CANCELLED;
    struct buf b = {0};
    buf_fmt(&b, "%s is not on this machine.", name);
    print_lines(&p, &b);
    buf_free(&b);
    int rc = pull(&p, e);
    if (rc == ERR_CANCELLED && !sig_interrupted() && !sig_terminated()) rc = e->code = ERR_RUNTIME;
    return rc;
}
