#pragma once
/* Includes what cmocka needs, in the required order, and defines how to skip a test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "test/env.h"

/* cmocka counts a skipped test as passed; .ci/run counts these lines. */
#define SKIP(...) (printf("SKIPPED: " __VA_ARGS__), putchar('\n'), skip())
