/* Operations on few numbers as the steps of one launch. */
#include "gpu/cuda.h"
#include "gpu/fuse.h"

int cuda_chain_op(struct cuda_stream *s, const struct op_chain *a) {
    struct op_chain c = *a;
    for (int i = 0, first = 0; i < c.n; i++) {
        cuda_fill_defaults(c.step[i].code, (union op_args *)&c.step[i].args);
        if (fuse_steps_are_apart(a, first, i)) continue;
        c.step[i].waits = true;
        first = i;
    }
    return cuda_check(s->g, cuda_chain(s->stream, &c), "chain");
}
