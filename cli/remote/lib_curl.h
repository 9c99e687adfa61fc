#pragma once
/* libcurl, loaded on first use by a remote or attached engine: loading it takes 4.5 ms, the rest of a start 1.5 ms (Zen
 * 5). curl.easy_init() is curl_easy_init(), and so on. */
#include <curl/curl.h>

#include "base/error.h"

// clang-format off
#define CURL_CALLS(F) \
    F(global_init) F(easy_init) F(easy_cleanup) F(easy_getinfo) F(easy_perform) F(easy_setopt) F(easy_strerror) F(free) F(multi_add_handle) \
    F(multi_cleanup) F(multi_info_read) F(multi_init) F(multi_perform) F(multi_poll) F(multi_remove_handle) F(slist_append) F(slist_free_all) F(url) \
    F(url_cleanup) F(url_get) F(url_set)
// clang-format on
#define CURL_CALL(f) __typeof__(curl_##f) *f;
extern struct curl_calls { CURL_CALLS(CURL_CALL) } curl;
#undef CURL_CALL

/* Loads libcurl; call before any curl function. ERR_RUNTIME: it is not installed, or fails to initialize. */
int lib_curl(struct error *e);
