#pragma once
/* A step: some tokens of some sessions through all layers, each piece of a layer where it is done soonest. The attention half
 * of a layer (norms, attention, router) and its shared expert run where its weights and the rows' caches lie, a device or the
 * processor; the routed experts run on the processor, and what they add goes back. Rows are cut into micro-batches: with two,
 * a device has the attention half of one while the processor has the experts of the other (paper A, section 3.3).
 *
 * Order is by data alone: a device writes a number when rows have arrived in host memory, and waits for the number that says
 * their experts are added. On one place a row has the same bits in any company and any cut; a device and the processor differ by a
 * rounding (5e-6 of the logits), since the parts of a sum are joined in another order. */
#include "engine/step/mode.h"
#include "engine/step/where.h"

enum { STEP_ROWS = OP_FEW, STEP_MICROS = 2 }; /* rows of a step: as many as have the same bits in any company; parts it may be cut into */
enum step_cut { STEP_CPU, STEP_HYBRID, STEP_DUAL };

struct step_span { /* n tokens of one session at positions pos .. pos + n - 1; the cache holds all before them */
    struct kv *kv;
    const int32_t *tokens;
    int pos, n;
    float *logits;       /* set: [n, vocab], the caller's to change, valid until the next step */
    const int32_t *top;  /* set: [n] the largest of each */
    const float *hidden; /* set: [n, hidden] what the last layer left, until the next step; NULL where step_hidden did not ask for it */
};

struct step;
/* m must outlive it; of its devices those take part that can hold a layer beside caches and a prefill's ring. Weights go there
 * when a step first needs them. ERR_MEMORY. All but step_forget are for one thread. */
int step_open(struct step **s, struct machine *m, enum dtype kv, struct error *e);
void step_close(struct step **s);
/* At most STEP_ROWS tokens. On success the caches in host memory hold the new positions too. A device that fails is left out
 * from then on, with a warning, and the step is done again on the processor. ERR_CANCELLED, ERR_MODEL, ERR_MEMORY. */
int step_run(struct step *s, enum step_cut cut, struct step_span *spans, int n_spans, const _Atomic int *cancel, struct error *e);
/* A prefill found a device lost, and has said so: steps go on without devices, and without another word. */
void step_lost(struct step *s, const char *why);
void step_hidden(struct step *s, bool wanted); /* from here on */
/* From here on steps are a draft's: they compute with these routed experts, on the processor or on a device that has room for them, and what a
 * draft's routers choose goes to `seen`. NULL: the model's own again. All views of one step are of the same experts. */
struct step_view {
    struct expert *const *experts; /* [n_layers] of [n_experts]; NULL for a layer without. A layer's lie one behind the other, each from its gate on */
    uint64_t expert_bytes;
    struct lookahead *seen; /* NULL, or with a token for each row of the next step, from token `first` on */
    int first;
};
void step_view(struct step *s, const struct step_view *v);
/* A draft goes on: what it has foreseen so far of the next step that is not one of its own, which begins in so many seconds. Experts that are on a device stay
 * there; of the others the link brings what it can in time, in three phases (paper E, section 3.3.2): none at first, then those that are likely, at
 * last all. The code of a device that failed, which the next step finds out, too. */
enum step_phase { STEP_PRIME, STEP_LIKELY, STEP_ALL };
struct lookahead;
int step_expect(struct step *s, const struct lookahead *a, enum step_phase phase, double before);
void step_cut_at(struct step *s, int spans);  /* from here on, of STEP_DUAL: what share of the rows is the first micro-batch's; 0: half */
enum step_cut step_ran(const struct step *s); /* how the last one did run: STEP_DUAL needs two rows on devices, and so on */
/* Tokens of a cache from pos on are about to change; a cache is about to be closed (no step is running with it). */
void step_rewind(struct step *s, struct kv *kv, int pos);
void step_forget(struct step *s, const struct kv *kv);
/* A prefill needs the devices' memory: resident weights and caches go, and steps run on the processor until step_back. False when
 * there was nothing to give. */
bool step_yield(struct step *s);
void step_back(struct step *s);
bool step_away(const struct step *s);
/* A prefill is about to begin: routed experts leave a device that would not keep so many bytes free without that, until step_back. */
void step_lend(struct step *s, size_t free);
struct step_counts {         /* of routed experts, since opening */
    uint64_t chosen, here;   /* chosen in a layer by rows of devices, and of these computed there */
    uint64_t moved, in_vain; /* brought to a device; gone again without a use */
    uint64_t moved_bytes;
    uint64_t ahead, ahead_in_vain; /* of these two: because a router had said so */
    uint64_t said[3], right[3];    /* by layers ahead, 1 first: experts that routers said would be chosen, and of these chosen */
    double processor_s, device_s;  /* that each took for its part */
    double deciding_s;             /* of the engine's thread: whose part is what, what scores and predictions say, what to bring */
    uint64_t decided;              /* layers of micro-batches that this was for */
    uint64_t replayed;             /* parts of layers that devices ran as they were recorded */
    uint64_t drafted;              /* layers of a draft's steps whose routed experts devices computed */
    uint64_t taken;                /* positions of caches that one copy had from another, on the device, and not by the link */
};
struct step_counts step_counts(const struct step *s);
/* used [n_layers, n_experts]: rows that chose each, since opening; where, the same: the rank of the device that has it, -1: none. */
void step_experts_map(const struct step *s, uint32_t *used, int8_t *where);
/* Of a device of the set: bytes that step_yield would free there; whether layers lie there, loaded or to be. */
size_t step_held(const struct step *s, int device);
bool step_holds(const struct step *s, int device);
bool step_ready(const struct step *s); /* devices take part in the next step, as far as is known */
/* Layers [0, n) whose attention halves run on devices, and why so many, in one sentence. */
int step_resident_layers(const struct step *s);
const char *step_resident(const struct step *s);
void step_where(const struct step *s, struct where *out); /* what lies where by now, every part of the model; the reasons are those above */
size_t step_weights(const struct step *s, int device);    /* of a device of the set: bytes of what lies there, loaded or to be */
bool step_blends(const struct step *s);                   /* devices hold all layers, each its own: mode_blend can run */
int step_ranks(const struct step *s);                     /* devices that share each layer; 1: none does, each has layers of its own */
