#pragma once
/* Requests to a hub that speaks Hugging Face's API: several at a time, with redirects, ranges, retries and the token,
 * which only the endpoint's own host gets. */
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum {
    HUB_AT_ONCE = 4,   /* transfers at a time */
    HUB_URL_MAX = 8192 /* bytes of a URL, also of a signed one */
};

struct hub {
    char endpoint[512];       /* "https://hub.example", without a slash at its end */
    char repo[200];           /* ORG/NAME that is asked for, for errors; set by the caller */
    char *host;               /* "https host port" of the endpoint, in lower case */
    bool is_secure, is_local; /* https; an address of this machine */
    bool has_token;           /* in headers */
    void *multi;              /* CURLM */
    void *headers;            /* curl_slist: for the endpoint's host */
};
/* Reads HF_ENDPOINT, HF_TOKEN and the file in which Hugging Face's own programs keep a token, and loads libcurl.
 * ERR_RUNTIME: HF_HUB_OFFLINE is set, or a library is missing; ERR_USAGE: HF_ENDPOINT is no http URL. Close also after
 * an error. */
int hub_client_open(struct hub *h, struct error *e);
void hub_client_close(struct hub *h);
/* Writes ENDPOINT, prefix and path; the bytes of the path are escaped. ERR_USAGE when they are too long. */
int hub_client_url(const struct hub *h, char out[HUB_URL_MAX], const char *prefix, const char *path, struct error *e);

/* Where the bytes of an answer go. A function that returns an error code with *e set ends the request. */
struct hub_sink {
    /* called once, before the first attempt; NULL: nothing to do */
    int (*open)(void *ctx, struct error *e);
    /* returns how many bytes are there already; called before each attempt */
    uint64_t (*begin)(void *ctx);
    int (*rewind)(void *ctx, struct error *e); /* the answer starts from the first byte again */
    int (*write)(void *ctx, const char *data, size_t n, struct error *e);
    /* called when the answer has ended. HUB_SHORT: bytes are missing or wrong, try again */
    int (*end)(void *ctx, struct error *e);
};
enum { HUB_SHORT = 1 };

struct hub_request {
    char url[HUB_URL_MAX]; /* begins with the endpoint */
    const char *what;      /* the file or the repository, for errors */
    uint64_t first, size;  /* the range; size 0: from `first` to the end */
    bool is_file;          /* the answer is a file of `size` bytes */
    const struct hub_sink *sink;
    void *ctx;
    /* the result */
    long status;
    char code[64];          /* X-Error-Code, as in "GatedRepo" */
    char next[HUB_URL_MAX]; /* the next page, of the header Link; "": none */
    int rc;
    struct error error;
    struct hub_transfer *transfer; /* own by hub_client.c; zero */
};
/* Runs requests, at most HUB_AT_ONCE at a time, until all have ended or one has failed; the others are stopped then.
 * Calls tick(ctx) several times a second; NULL: none. Returns the first error. */
int hub_client_run(struct hub *h, struct hub_request **v, size_t n, void (*tick)(void *ctx), void *ctx,
                   struct error *e);
/* Runs one request into memory. A whole answer may have `most` bytes. */
int hub_client_get(struct hub *h, struct hub_request *r, size_t most, struct buf *out, struct error *e);
/* A request for a range of bytes into memory, for hub_client_run(). */
struct hub_memory {
    struct buf data;
    size_t most;
    const char *what;
};
extern const struct hub_sink hub_memory_sink; /* ctx: struct hub_memory */
