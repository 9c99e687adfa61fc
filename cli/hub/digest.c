#include "cli/hub/digest.h"

#include <stdio.h>

#include "base/dynlib.h"
#include "base/mem.h"

/* Prototypes of OpenSSL 1.1 and 3, evp.h, and of GnuTLS 3, crypto.h. */
static struct {
    void *(*begin)(void);
    int (*init)(void *ctx, const void *kind, void *engine);
    int (*add)(void *ctx, const void *data, size_t n);
    int (*end)(void *ctx, unsigned char *out, unsigned *n);
    void (*free)(void *ctx);
    const void *(*sha256)(void), *(*sha1)(void);
} openssl;
static struct {
    int (*init)(void **ctx, int kind);
    int (*add)(void *ctx, const void *data, size_t n);
    void (*end)(void *ctx, void *out);
} gnutls;
enum { GNUTLS_SHA1 = 3, GNUTLS_SHA256 = 6, SHA1_BYTES = 20, SHA256_BYTES = 32, MAX_BYTES = 64 };
static enum { NOT_LOADED, OPENSSL, GNUTLS } library;

struct digest {
    void *ctx;
    unsigned n;
};

int digest_load(struct error *e) {
    static const char *const openssl_names[] = {"libcrypto.so.3", "libcrypto.so.1.1", NULL}, *const gnutls_names[] = {
                                                                                                 "libgnutls.so.30",
                                                                                                 NULL};
    const struct dynlib_symbol of_openssl[] = {{"EVP_MD_CTX_new", &openssl.begin}, {"EVP_DigestInit_ex", &openssl.init},
                                               {"EVP_DigestUpdate", &openssl.add}, {"EVP_DigestFinal_ex", &openssl.end},
                                               {"EVP_MD_CTX_free", &openssl.free}, {"EVP_sha256", &openssl.sha256},
                                               {"EVP_sha1", &openssl.sha1}},
                               of_gnutls[] = {{"gnutls_hash_init", &gnutls.init},
                                              {"gnutls_hash", &gnutls.add},
                                              {"gnutls_hash_deinit", &gnutls.end}};
    if (library != NOT_LOADED) return 0;
    if (dynlib_load(openssl_names, of_openssl, sizeof of_openssl / sizeof *of_openssl)) library = OPENSSL;
    else if (dynlib_load(gnutls_names, of_gnutls, sizeof of_gnutls / sizeof *of_gnutls)) library = GNUTLS;
    else
        return error_set(e, ERR_RUNTIME,
                         "downloads are verified with %s, which was not found; install libssl3 (apt-get install "
                         "libssl3)",
                         openssl_names[0]);
    return 0;
}

void *digest_begin(int64_t git_size) {
    struct digest *d = mem_calloc(1, sizeof *d);
    const bool git = git_size >= 0;
    if (!d) return NULL;
    d->n = git ? SHA1_BYTES : SHA256_BYTES;
    bool begun;
    if (library == OPENSSL)
        begun = (d->ctx = openssl.begin()) && openssl.init(d->ctx, git ? openssl.sha1() : openssl.sha256(), NULL) == 1;
    else begun = !gnutls.init(&d->ctx, git ? GNUTLS_SHA1 : GNUTLS_SHA256);
    if (begun && git) {
        char head[32]; /* what git puts before the contents: the NUL belongs to it */
        int n = snprintf(head, sizeof head, "blob %lld", (long long)git_size);
        begun = !digest_add(d, head, (size_t)n + 1);
    }
    if (begun) return d;
    digest_end(d, NULL);
    return NULL;
}

int digest_add(void *digest, const void *data, size_t n) {
    struct digest *d = digest;
    bool ok = library == OPENSSL ? openssl.add(d->ctx, data, n) == 1 : !gnutls.add(d->ctx, data, n);
    return ok ? 0 : ERR_RUNTIME;
}

int digest_end(void *digest, char out[DIGEST_HEX]) {
    struct digest *d = digest;
    unsigned char bytes[MAX_BYTES];
    unsigned n = 0;
    bool ok = d && d->ctx;
    if (ok && library == OPENSSL) {
        if (out) ok = openssl.end(d->ctx, bytes, &n) == 1 && n == d->n;
        openssl.free(d->ctx);
    } else if (ok) gnutls.end(d->ctx, bytes);
    for (unsigned i = 0; out && ok && i < d->n; i++) snprintf(out + 2 * (size_t)i, 3, "%02x", bytes[i]);
    mem_free(d);
    return ok ? 0 : ERR_RUNTIME;
}
