#pragma once
/* Opens sessions for tests of the engine; fails the test if that fails. */
#include "test/unit/unit.h"

#include "engine/engine.h"

static inline struct session *new_session(struct engine *e) {
    struct session *s;
    struct error err = {0};
    if (session_open(e, &s, &err)) fail_msg("%s", err.text);
    return s;
}
