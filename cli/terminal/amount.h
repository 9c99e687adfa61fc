#pragma once
/* Formats amounts for people. All return buf. */
#include <stddef.h>
#include <stdint.h>

const char *amount_bytes(uint64_t n, char *buf, size_t cap);                   /* "32.1 GB" */
const char *amount_weights(uint64_t n, char *buf, size_t cap);                 /* "671B", "1.2M", "320" */
const char *amount_count(long long n, const char *one, char *buf, size_t cap); /* "1 token", "2 tokens" */
const char *amount_seconds(double s, char *buf, size_t cap);                   /* three digits: "1.23 s", "45.6 ms" */
const char *amount_rate(double v, char *buf, size_t cap);     /* a speed: "1234", "12.3", "0.052"; without the unit */
const char *amount_duration(double s, char *buf, size_t cap); /* rounded: "45 s", "12 min", "1.5 h" */
