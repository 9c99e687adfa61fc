#pragma once
/* What cmocka wants included, in its order, and how a test is left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* cmocka counts a skipped test as passed; .ci/run counts these lines. */
#define SKIP(...) (printf("SKIPPED: " __VA_ARGS__), putchar('\n'), skip())
