#pragma once
/* Reads the members of a request by a table: values with their bounds, members without effect, and members that are
 * refused. */
#include <stddef.h>

#include "cli/server/api.h"

enum api_member_kind {
    MEMBER_NUMBER,   /* float, from lo to hi */
    MEMBER_INTEGER,  /* int, from lo to hi */
    MEMBER_SEED,     /* int64_t: -1, or folded into 0 to 9.2e18 */
    MEMBER_LIMIT,    /* int: a number of tokens from 0, or -1 for no limit; lo: another such number below */
    MEMBER_FLAG,     /* bool */
    MEMBER_NO_FLAG,  /* bool, with the opposite meaning */
    MEMBER_TEXT,     /* const struct json *: a string */
    MEMBER_STOP,     /* api_request.stop: a string or a list of strings */
    MEMBER_BIAS,     /* api_request.bias: an object of ids and numbers */
    MEMBER_BREAKERS, /* api_request.dry_breakers: a list of texts, or that as a string */
    MEMBER_OTHER,    /* read elsewhere */
    MEMBER_NOTHING,  /* changes nothing */
    MEMBER_REFUSED   /* harmless only if empty, false, or the number lo; lo NAN: only if absent or null */
};
struct api_member {
    const char *name;
    enum api_member_kind kind;
    size_t offset; /* in struct api_request */
    double lo, hi;
    const char *why; /* REFUSED: the reason, or what to use instead */
    int forms;       /* in a protocol with several forms: bits of the forms that have the member; 0: all */
};
/* Rows of a table. */
#define API_VALUE(text, what, field, ...) \
    { text, what, offsetof(struct api_request, field), __VA_ARGS__ }
#define API_OTHER(text, ...) \
    { .name = text, .kind = MEMBER_OTHER, __VA_ARGS__ }
#define API_NOTHING(text) \
    { .name = text, .kind = MEMBER_NOTHING }
#define API_REFUSED(text, harmless, says) \
    { .name = text, .kind = MEMBER_REFUSED, .lo = harmless, .why = says }
/* Rows of sampling options, whose names protocols share. */
#define API_TEMPERATURE \
    API_VALUE("temperature", MEMBER_NUMBER, temperature, 0, 100), API_VALUE("top_p", MEMBER_NUMBER, top_p, 0, 1)
#define API_TOP_K API_VALUE("top_k", MEMBER_INTEGER, top_k, -1, 1 << 24)
#define API_SAMPLING \
    API_TEMPERATURE, API_TOP_K, API_VALUE("min_p", MEMBER_NUMBER, min_p, 0, 1), \
        API_VALUE("repeat_penalty", MEMBER_NUMBER, repeat_penalty, 0.01, 100), \
        API_VALUE("presence_penalty", MEMBER_NUMBER, presence_penalty, -2, 2), \
        API_VALUE("frequency_penalty", MEMBER_NUMBER, frequency_penalty, -2, 2), \
        API_VALUE("dry_multiplier", MEMBER_NUMBER, dry_multiplier, 0, 100), \
        API_VALUE("dry_base", MEMBER_NUMBER, dry_base, 1, 100), \
        API_VALUE("dry_allowed_length", MEMBER_INTEGER, dry_allowed_length, 0, 1 << 24), \
        API_VALUE("dry_penalty_last_n", MEMBER_INTEGER, dry_penalty_last_n, -1, 1 << 24), \
        {.name = "dry_sequence_breakers", .kind = MEMBER_BREAKERS}, \
        API_VALUE("top_n_sigma", MEMBER_NUMBER, top_n_sigma, -1, 100), API_VALUE("seed", MEMBER_SEED, seed)
struct api_member_table {
    const struct api_member *rows;
    size_t n;
    const char *prefix; /* of names in messages: "" or "options." */
    int form;           /* the bit of this request's form */
    const char *other;  /* where members of another form belong; NULL: they are unknown */
};
/* Reads all members of root. Absent ones leave the request as it is. ERR_USAGE names the member. strict: a member that
 * is not in the table is refused. */
int api_members_read(struct api_request *r, const struct json *root, const struct api_member_table *t, bool strict,
                     struct error *e);

bool api_members_present(const struct json *j); /* neither absent nor null */
bool api_members_empty(const struct json *j);   /* absent, null, false or without contents */
/* Reads a member that is true or false, if it is present. */
int api_members_flag(const struct json *root, const char *name, bool *out, struct error *e);
