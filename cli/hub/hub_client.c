#include "cli/hub/hub_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "cli/options/paths.h"
#include "cli/options/trim.h"
#include "cli/remote/remote_connection.h"
#include "cli/report.h"

enum {
    MAX_TRIES = 6, /* attempts without progress */
    MAX_HOPS = 8,  /* redirects of an attempt */
    STALL_S = 30,  /* longest wait for any data */
    MAX_RETRY_AFTER_S = 300,
    PROGRESS_BYTES = 1 << 20, /* an attempt that came so much further made progress */
    ERROR_BYTES = 4096
};

/* --- the endpoint and its token --------------------------------------------------------------- */

/* Writes "scheme host port" of a URL. */
static char *host_of(const char *url, bool *is_secure, bool *is_local) {
    CURLU *u = curl.url();
    char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL;
    struct buf b = {0};
    bool ok = u && !curl.url_set(u, CURLUPART_URL, url, 0) && !curl.url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
              !curl.url_get(u, CURLUPART_HOST, &host, 0) &&
              !curl.url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
              curl.url_get(u, CURLUPART_USER, &user, 0) == CURLUE_NO_USER;
    if (ok) {
        buf_fmt(&b, "%s %s %s", scheme, host, port);
        for (char *c = b.data; c && *c; c++)
            if (*c >= 'A' && *c <= 'Z') *c |= 0x20;
        *is_secure = !strcasecmp(scheme, "https");
        *is_local = remote_connection_is_loopback(host);
    }
    curl.free(scheme);
    curl.free(host);
    curl.free(port);
    curl.free(user);
    if (u) curl.url_cleanup(u);
    if (ok && !b.failed) return b.data;
    buf_free(&b);
    return NULL;
}

static bool is_set(const char *name) {
    const char *v = getenv(name);
    return v && *v && strcmp(v, "0") != 0 && strcasecmp(v, "false") != 0 && strcasecmp(v, "no") != 0 &&
           strcasecmp(v, "off") != 0;
}

/* Reads the file that `hf auth login` writes. NULL: none. */
static char *token_of_file(void) {
    static const struct {
        const char *env, *below;
    } places[] = {{"HF_TOKEN_PATH", ""},
                  {"HF_HOME", "/token"},
                  {"XDG_CACHE_HOME", "/huggingface/token"},
                  {"HOME", "/.cache/huggingface/token"}};
    char path[PATHS_MAX], *data = NULL;
    size_t n;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *at = getenv(places[i].env);
        if (!at || *at != '/') continue;
        if ((size_t)snprintf(path, sizeof path, "%s%s", at, places[i].below) >= sizeof path || !file_exists(path) ||
            file_read(path, 4096, &data, &n, NULL))
            return NULL;
        data[trim_end(data, n, " \t\r\n")] = 0;
        return data;
    }
    return NULL;
}

static int add_token(struct hub *h, struct error *e) {
    const char *env = getenv("HF_TOKEN");
    char *file = env || is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") ? NULL : token_of_file();
    const char *token = env ? env : file;
    struct buf b = {0};
    int rc = 0;
    if (token && *token) {
        for (const char *c = token; *c; c++)
            if (*c <= ' ' || *c == 127)
                rc = error_set(e, ERR_USAGE, "%s: the token contains a space or a control character",
                               env ? "HF_TOKEN" : "the file with Hugging Face's token");
        buf_fmt(&b, "Authorization: Bearer %s", token);
        struct curl_slist *list = rc || b.failed ? NULL : curl.slist_append(NULL, b.data);
        if (!rc && !list) rc = error_set(e, ERR_MEMORY, "no memory");
        h->headers = list;
        h->has_token = list != NULL;
        if (list && !h->is_secure && !h->is_local)
            report_note("the token is sent to %s unencrypted; an https:// endpoint protects it", h->endpoint);
    }
    if (b.data) explicit_bzero(b.data, b.len);
    buf_free(&b);
    mem_free(file);
    return rc;
}

int hub_client_open(struct hub *h, struct error *e) {
    static const char *const offline[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    const char *given = getenv("HF_ENDPOINT");
    *h = (struct hub){0};
    for (size_t i = 0; i < sizeof offline / sizeof *offline; i++)
        if (is_set(offline[i]))
            return error_set(e, ERR_RUNTIME, "%s is set, so nothing is downloaded; unset it to pull models",
                             offline[i]);
    int rc = lib_curl(e);
    if (rc) return rc;
    if (!given || !*given) given = "https://huggingface.co";
    if ((size_t)snprintf(h->endpoint, sizeof h->endpoint, "%s", given) >= sizeof h->endpoint)
        return error_set(e, ERR_USAGE, "HF_ENDPOINT: longer than %zu bytes", sizeof h->endpoint - 1);
    h->endpoint[trim_end(h->endpoint, strlen(h->endpoint), "/")] = 0;
    if ((strncasecmp(given, "http://", 7) && strncasecmp(given, "https://", 8)) || strpbrk(given, "?# \r\n") ||
        !(h->host = host_of(h->endpoint, &h->is_secure, &h->is_local)))
        return error_set(e, ERR_USAGE, "HF_ENDPOINT: %.200s is no address such as https://HOST", given);
    if ((rc = add_token(h, e))) return rc;
    h->multi = curl.multi_init();
    return h->multi ? 0 : error_set(e, ERR_MEMORY, "no memory");
}

void hub_client_close(struct hub *h) {
    if (h->multi) curl.multi_cleanup(h->multi);
    if (h->headers) curl.slist_free_all(h->headers);
    mem_free(h->host);
    *h = (struct hub){0};
}

int hub_client_url(const struct hub *h, char out[HUB_URL_MAX], const char *prefix, const char *path, struct error *e) {
    size_t n = (size_t)snprintf(out, HUB_URL_MAX, "%s%s", h->endpoint, prefix);
    for (const char *c = path; *c && n + 4 < HUB_URL_MAX; c++) {
        const bool plain =
            (*c >= '0' && *c <= '9') || ((*c | 0x20) >= 'a' && (*c | 0x20) <= 'z') || strchr("-._~/", *c);
        n += (size_t)snprintf(out + n, HUB_URL_MAX - n, plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
    return n + 4 < HUB_URL_MAX ? 0 : error_set(e, ERR_USAGE, "%.100s: the name is too long", path);
}

/* --- one attempt ------------------------------------------------------------------------------ */

struct hub_transfer {
    struct hub *hub;
    struct hub_request *request;
    CURL *easy;
    char url[HUB_URL_MAX]; /* of this hop */
    int tries, hops;
    double not_before, heard;   /* clock: of the next attempt; of the last data */
    uint64_t from;              /* position in the file at which this attempt begins */
    uint64_t range_first;       /* of Content-Range */
    uint64_t received;          /* bytes of this attempt's answer */
    uint64_t best;              /* furthest position that was progress */
    bool is_running, has_range; /* added to the multi handle; the answer has Content-Range */
    bool has_begun, is_enough;  /* bytes of the answer were accepted; the whole range has arrived */
    int rc;                     /* the sink's error */
    struct error error;
    struct buf error_body;
    char curl_error[CURL_ERROR_SIZE];
};

/* Copies the URL of `<URL>; rel="next"`. */
static void read_link(const char *s, char *out) {
    const char *begin = strchr(s, '<'), *end = begin ? strchr(begin, '>') : NULL,
               *rel = end ? strstr(end, "rel=") : NULL;
    if (rel && !strncmp(rel + 4 + (rel[4] == '"'), "next", 4) && end - begin < HUB_URL_MAX)
        snprintf(out, HUB_URL_MAX, "%.*s", (int)(end - begin - 1), begin + 1);
}

static size_t on_header(char *data, size_t size, size_t n, void *ctx) {
    struct hub_transfer *t = ctx;
    struct hub_request *r = t->request;
    char line[HUB_URL_MAX + 64];
    const size_t k = n < sizeof line ? trim_end(data, n, "\r\n") : 0;
    unsigned long long first;
    memcpy(line, data, k);
    line[k] = 0;
    t->heard = clock_now();
    if (!strncmp(line, "HTTP/", 5)) {
        *r->code = *r->next = 0;
        t->has_range = false;
    } else if (!strncasecmp(line, "X-Error-Code:", 13))
        snprintf(r->code, sizeof r->code, "%.60s", line + 13 + strspn(line + 13, " "));
    else if (!strncasecmp(line, "Link:", 5)) read_link(line + 5, r->next);
    else if (!strncasecmp(line, "Content-Range:", 14) && sscanf(line + 14, " bytes %llu-", &first) == 1)
        t->range_first = first, t->has_range = true;
    return n;
}

/* Checks that the response starts at the requested byte. */
static int begin_answer(struct hub_transfer *t, long status) {
    struct hub_request *r = t->request;
    t->has_begun = true;
    if (status == 206) {
        if (t->has_range && t->range_first == t->from) return 0;
        return error_set(&t->error, ERR_RUNTIME, "%s: the server sent another range than it was asked for", r->what);
    }
    if (!t->from) return 0;
    if (r->first) return error_set(&t->error, ERR_RUNTIME, "%s: the server does not support ranges", r->what);
    t->from = 0;
    return r->sink->rewind(r->ctx, &t->error);
}

static size_t on_data(char *data, size_t size, size_t n, void *ctx) {
    struct hub_transfer *t = ctx;
    struct hub_request *r = t->request;
    long status = 0;
    t->heard = clock_now();
    curl.easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) {
        if (t->error_body.len < ERROR_BYTES) buf_add(&t->error_body, data, n);
        return n;
    }
    if (!t->has_begun && (t->rc = begin_answer(t, status))) return 0;
    size_t take = n;
    if (r->size && !r->is_file) {
        const uint64_t left = r->first + r->size - t->from - t->received;
        if (take >= left) take = (size_t)left, t->is_enough = true;
    }
    t->rc = r->sink->write(r->ctx, data, take, &t->error);
    t->received += take;
    return t->rc || take < n ? 0 : n;
}

static void begin_attempt(struct hub_transfer *t) {
    struct hub_request *r = t->request;
    bool is_secure, is_local;
    char range[64], *host = host_of(t->url, &is_secure, &is_local);
    const bool own = host && !strcmp(host, t->hub->host);
    mem_free(host);
    t->from = r->first + r->sink->begin(r->ctx);
    t->received = 0;
    t->has_begun = t->is_enough = false;
    t->error_body.len = 0;
    *t->curl_error = 0;
    curl.easy_setopt(t->easy, CURLOPT_URL, t->url);
    curl.easy_setopt(t->easy, CURLOPT_HTTPHEADER, own ? t->hub->headers : NULL);
    curl.easy_setopt(t->easy, CURLOPT_PROXY, own && t->hub->is_local ? "" : NULL);
    if (r->size && !r->is_file)
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)t->from,
                 (unsigned long long)(r->first + r->size - 1));
    else snprintf(range, sizeof range, "%llu-", (unsigned long long)t->from);
    curl.easy_setopt(t->easy, CURLOPT_RANGE, t->from || (r->size && !r->is_file) ? range : NULL);
    t->heard = clock_now();
    t->is_running = !curl.multi_add_handle(t->hub->multi, t->easy);
}

static int open_transfer(struct hub *h, struct hub_request *r, struct error *e) {
    struct hub_transfer *t = r->transfer = mem_calloc(1, sizeof *t);
    int rc = t && (t->easy = curl.easy_init()) ? 0 : error_set(e, ERR_MEMORY, "no memory");
    if (!rc && r->sink->open) rc = r->sink->open(r->ctx, e);
    if (rc) return rc;
    t->hub = h;
    t->request = r;
    snprintf(t->url, sizeof t->url, "%s", r->url);
    curl.easy_setopt(t->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(t->easy, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT, 20L);
    curl.easy_setopt(t->easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl.easy_setopt(t->easy, CURLOPT_USERAGENT, "hearth/" HEARTH_VERSION);
    curl.easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
    curl.easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_data);
    curl.easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl.easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->curl_error);
    if (r->is_file && r->size && r->sink->begin(r->ctx) == r->size) t->is_enough = true; /* nothing to ask for */
    else begin_attempt(t);
    if (!t->is_running && !t->is_enough) return error_set(e, ERR_MEMORY, "no memory");
    return 0;
}

static void close_transfer(struct hub_request *r) {
    struct hub_transfer *t = r->transfer;
    if (!t) return;
    if (t->is_running) curl.multi_remove_handle(t->hub->multi, t->easy);
    if (t->easy) curl.easy_cleanup(t->easy);
    buf_free(&t->error_body);
    mem_free(t);
    r->transfer = NULL;
}

/* --- the end of an attempt -------------------------------------------------------------------- */

/* Schedules another attempt, which asks the endpoint again: signed addresses expire. */
static int retry(struct hub_transfer *t, const char *why) {
    const double second = 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000);
    curl_off_t wait = 0;
    if (t->from + t->received >= t->best + PROGRESS_BYTES) {
        t->best = t->from + t->received;
        t->tries = 0;
    }
    if (++t->tries >= MAX_TRIES)
        return error_set(&t->request->error, ERR_RUNTIME,
                         "%s: %.300s; gave up after %d attempts, the same command continues the download",
                         t->request->what, why, MAX_TRIES);
    curl.easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &wait);
    if (wait > MAX_RETRY_AFTER_S) wait = MAX_RETRY_AFTER_S;
    t->not_before = clock_now() + second * (wait > 0 ? (double)wait : (double)(1 << (t->tries - 1)));
    t->hops = 0;
    snprintf(t->url, sizeof t->url, "%s", t->request->url);
    return HUB_SHORT;
}

static int follow(struct hub_transfer *t) {
    struct hub_request *r = t->request;
    char *to = NULL; /* of curl */
    curl.easy_getinfo(t->easy, CURLINFO_REDIRECT_URL, &to);
    if (!to || strlen(to) >= sizeof t->url || ++t->hops > MAX_HOPS)
        return error_set(&r->error, ERR_RUNTIME, "%s: the server redirects without an end or a valid address", r->what);
    if (t->hub->is_secure && strncasecmp(to, "https://", 8))
        return error_set(&r->error, ERR_RUNTIME, "%s: the server redirects to an unencrypted address", r->what);
    snprintf(t->url, sizeof t->url, "%s", to);
    begin_attempt(t);
    return t->is_running ? HUB_SHORT : error_set(&r->error, ERR_MEMORY, "no memory");
}

/* Reports a status that no other attempt changes. */
static int refuse(struct hub_transfer *t) {
    struct hub_request *r = t->request;
    const char *at = t->hub->endpoint;
    if (r->status == 401 && t->hub->has_token)
        return error_set(&r->error, ERR_RUNTIME, "%s: %.200s rejected the token (status 401); check HF_TOKEN",
                         t->hub->repo, at);
    if (r->status == 401)
        return error_set(&r->error, ERR_RUNTIME,
                         "%s: %.200s wants a token (status 401): there is no such repository, or it is private or "
                         "gated; check the name, or set HF_TOKEN",
                         t->hub->repo, at);
    if (r->status == 403)
        return error_set(&r->error, ERR_RUNTIME,
                         "%s: access is refused (status 403): accept the model's terms at %.200s/%s, %s", t->hub->repo,
                         at, t->hub->repo,
                         t->hub->has_token ? "with the account of the token" : "then set HF_TOKEN to a token");
    if (r->status == 404)
        return error_set(&r->error, ERR_RUNTIME, "%s: not found on %.200s (status 404); check the name", r->what, at);
    return error_set(&r->error, ERR_RUNTIME, "%s: %.200s answered with status %ld%s%s", r->what, at, r->status,
                     *r->code ? ", " : "", r->code);
}

/* Called when an attempt ends. Returns 0 if the request is complete, HUB_SHORT to try again, or an error. */
static int end_attempt(struct hub_transfer *t, CURLcode rc) {
    struct hub_request *r = t->request;
    char why[CURL_ERROR_SIZE + 64];
    curl.easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &r->status);
    if (t->rc) {
        r->error = t->error;
        return t->rc;
    }
    if (rc && !t->is_enough) {
        if (rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE ||
            rc == CURLE_UNSUPPORTED_PROTOCOL || rc == CURLE_URL_MALFORMAT || rc == CURLE_OUT_OF_MEMORY)
            return error_set(&r->error, ERR_RUNTIME, "%s: %s", r->what,
                             *t->curl_error ? t->curl_error : curl.easy_strerror(rc));
        return retry(t, *t->curl_error ? t->curl_error : curl.easy_strerror(rc));
    }
    const long s = r->status;
    if (s == 301 || s == 302 || s == 303 || s == 307 || s == 308) return follow(t);
    if (s == 416) {
        if (r->sink->rewind(r->ctx, &r->error)) return r->error.code;
        return retry(t, "the server has fewer bytes than were there already (status 416)");
    }
    if (s == 408 || s == 425 || s == 429 || s >= 500 || (t->hops && (s == 401 || s == 403 || s == 404 || s == 410))) {
        snprintf(why, sizeof why, "the server answers with status %ld", s);
        return retry(t, why);
    }
    if (s != 200 && s != 206) return refuse(t);
    const int ended = r->sink->end(r->ctx, &r->error);
    return ended == HUB_SHORT ? retry(t, "the connection was closed before the end of the file") : ended;
}

static void end_request(struct hub_request *r, int rc) {
    if (rc == HUB_SHORT) return;
    r->rc = rc;
    close_transfer(r);
}

/* Ends attempts that have stopped, and begins those that are due. */
static void look_after(struct hub_request *r) {
    struct hub_transfer *t = r->transfer;
    const double now = clock_now(), second = 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000);
    if (t->is_running && now - t->heard > STALL_S * second) {
        curl.multi_remove_handle(t->hub->multi, t->easy);
        t->is_running = false;
        end_request(r, retry(t, "the server sent nothing for 30 s"));
    } else if (!t->is_running && t->is_enough) {
        const int rc = r->sink->end(r->ctx, &r->error);
        t->is_enough = false;
        end_request(r, rc == HUB_SHORT ? (t->not_before = now, rc) : rc);
    } else if (!t->is_running && now >= t->not_before) {
        begin_attempt(t);
        if (!t->is_running) end_request(r, error_set(&r->error, ERR_MEMORY, "no memory"));
    }
}

int hub_client_run(struct hub *h, struct hub_request **v, size_t n, void (*tick)(void *ctx), void *ctx,
                   struct error *e) {
    size_t next = 0, open;
    int rc = 0, still;
    do {
        open = 0;
        for (size_t i = 0; i < next && !rc; i++) {
            if (v[i]->transfer) look_after(v[i]);
            open += v[i]->transfer != NULL;
            if ((rc = v[i]->rc)) *e = v[i]->error;
        }
        while (!rc && next < n && open < HUB_AT_ONCE) {
            v[next]->rc = 0;
            rc = open_transfer(h, v[next++], e);
            open++;
        }
        if (rc || !open) break;
        curl.multi_perform(h->multi, &still);
        for (CURLMsg *m; (m = curl.multi_info_read(h->multi, &still));) {
            struct hub_request *r = NULL;
            for (size_t i = 0; i < next; i++)
                if (v[i]->transfer && v[i]->transfer->easy == m->easy_handle) r = v[i];
            if (m->msg != CURLMSG_DONE || !r) continue;
            const CURLcode code = m->data.result;
            curl.multi_remove_handle(h->multi, r->transfer->easy);
            r->transfer->is_running = false;
            end_request(r, end_attempt(r->transfer, code));
        }
        if (tick) tick(ctx);
        curl.multi_poll(h->multi, NULL, 0, 50, NULL);
    } while (!rc);
    for (size_t i = 0; i < next; i++) close_transfer(v[i]);
    return rc;
}

/* --- into memory ------------------------------------------------------------------------------ */

static uint64_t memory_begin(void *ctx) {
    struct hub_memory *m = ctx;
    m->data.len = 0;
    return 0;
}
static int memory_rewind(void *ctx, struct error *e) { return 0; }
static int memory_write(void *ctx, const char *data, size_t n, struct error *e) {
    struct hub_memory *m = ctx;
    if (n > m->most - m->data.len)
        return error_set(e, ERR_RUNTIME, "%s: the answer is longer than %zu bytes", m->what, m->most);
    return buf_add(&m->data, data, n) ? error_set(e, ERR_MEMORY, "no memory") : 0;
}
static int memory_end(void *ctx, struct error *e) { return 0; }
const struct hub_sink hub_memory_sink = {
    .begin = memory_begin, .rewind = memory_rewind, .write = memory_write, .end = memory_end};

int hub_client_get(struct hub *h, struct hub_request *r, size_t most, struct buf *out, struct error *e) {
    struct hub_memory m = {.most = most, .what = r->what};
    r->sink = &hub_memory_sink;
    r->ctx = &m;
    int rc = hub_client_run(h, &r, 1, NULL, NULL, e);
    r->ctx = NULL;
    if (rc) buf_free(&m.data);
    *out = m.data;
    return rc;
}
