#pragma once
/* libmicrohttpd, loaded by --serve. mhd.start_daemon() is MHD_start_daemon(), and so on. */
#include <microhttpd.h>

#include "base/error.h"

// clang-format off
#define MHD_CALLS(F) \
    F(add_connection) F(add_response_header) F(create_response_from_buffer) F(create_response_from_callback) F(destroy_response) F(get_connection_info) F(get_connection_values) \
    F(get_fdset) F(get_timeout) F(lookup_connection_value) F(queue_response) F(resume_connection) F(run_from_select) F(start_daemon) F(stop_daemon) \
    F(suspend_connection)
// clang-format on
#define MHD_CALL(f) __typeof__(MHD_##f) *f;
extern struct mhd_calls { MHD_CALLS(MHD_CALL) } mhd;
#undef MHD_CALL

/* Loads libmicrohttpd; call before any mhd function. ERR_RUNTIME: it is not installed. */
int lib_mhd(struct error *e);
