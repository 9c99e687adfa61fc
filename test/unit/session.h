#pragma once
/* Opens sessions for tests of the engine; fails the test if that fails. */
#include "test/unit/unit.h"

#include "engine/engine.h"

static inline struct session *new_session(struct engine *eng) {
    struct session *s;
    struct error e = {0};
    if (session_open(eng, &s, &e)) fail_msg("%s", e.text);
    return s;
}
