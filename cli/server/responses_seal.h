#pragma once
/* Thinking as `encrypted_content`: the only form in which some clients send it back when a server stores nothing. The
 * text is encoded, not encrypted: the answer has it in the open, too. */
#include "cli/server/api.h"

/* Whether a request asks for that form: it stores nothing, or includes the member by name. */
bool responses_seal_wanted(const struct api_request *r, const struct json *include);
/* Appends the string of JSON that stands for n bytes of thinking. */
void responses_seal_put(struct buf *b, const char *s, size_t n);
/* Reads such a string. Returns 0 or ERR_MEMORY. out: unchanged where the string is absent or of another server. */
int responses_seal_read(struct api_request *r, const struct json *sealed, struct json *out, struct error *e);
