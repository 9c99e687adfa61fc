/* Opens an engine and, as a second engine, the draft model that it may have. */
#include "engine/draft_model_engine.h"
#include "engine/engine_core.h"
#include "engine/session/engine_state.h"

int engine_open(struct engine **out, const struct engine_params *p, struct error *e) {
    int rc = engine_core_open(out, p, e);
    if (!rc && p->draft == DRAFT_MODEL &&
        (rc = draft_model_engine_open(&(*out)->draft_model, p->draft_model, &(*out)->params, e)))
        engine_close(out);
    return rc;
}
