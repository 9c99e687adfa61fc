#pragma once
/* The pushdown automaton of a grammar, by bytes. A state is a set of stacks; stacks share their lower parts, and equal
 * states are one. Transitions are computed once. Bounded in stacks, depth and memory. Used by one thread at a time. */
#include "tokenizer/grammar/grammar.h"

struct automaton;
typedef uint32_t state_id; /* valid until automaton_compact() */
enum { STATE_DEAD };

/* The grammar must outlive the automaton. */
int automaton_open(struct automaton **a, const struct grammar *g, struct error *e);
void automaton_close(struct automaton **a);

state_id automaton_start(struct automaton *a); /* STATE_DEAD after a failure */
/* The state after a byte, or STATE_DEAD. */
state_id automaton_step(struct automaton *a, state_id s, uint8_t byte);
/* The states after each class of bytes (automaton_classes()), for loops over many bytes: AUTOMATON_UNKNOWN is a step
 * that automaton_step() has not computed yet. Valid until automaton_compact(). NULL: no memory. */
enum { AUTOMATON_UNKNOWN = -1 };
const state_id *automaton_row(struct automaton *a, state_id s);
const uint8_t *automaton_classes(const struct automaton *a); /* [256] */
state_id automaton_run(struct automaton *a, state_id s, const void *data, size_t n);
bool automaton_is_complete(const struct automaton *a, state_id s); /* the text so far matches */
bool automaton_is_final(const struct automaton *a, state_id s);    /* it matches, and nothing may follow */
/* bytes that are needed at least to complete the text */
uint32_t automaton_missing(const struct automaton *a, state_id s);
/* a byte of a shortest text to complete it; false: there is none */
bool automaton_shortest(const struct automaton *a, state_id s, uint8_t *byte);
/* Whether any number of plain characters other than '<' may follow as they are (grammar_tagged_text). */
bool automaton_tagged_text(const struct automaton *a, state_id s);
/* Returns the number of characters up to which all plain tokens (grammar_text()) may follow: 0 or up to
 * GRAMMAR_UNBOUNDED. *is_limit: longer plain tokens are not allowed. */
uint32_t automaton_text_room(const struct automaton *a, state_id s, bool *is_limit);
/* the only byte that may follow; false: several, or the text may end */
bool automaton_forced(const struct automaton *a, state_id s, uint8_t *byte);
/* Limits the stacks that may be computed: n more than now, with a maximum. Without a call there is no limit. Past the
 * limit the automaton fails. */
void automaton_allow(struct automaton *a, uint64_t n);
/* Whether memory or a limit was exceeded; transitions since then may be missing. *e says which. */
int automaton_failure(const struct automaton *a, struct error *e);
size_t automaton_bytes(const struct automaton *a);    /* memory in use */
bool automaton_is_crowded(const struct automaton *a); /* half of the states or stacks that it may have are in use */
/* Drops all states but s, and returns its new number. */
state_id automaton_compact(struct automaton *a, state_id s);

/* Parts of a state for token masks. Stacks whose top is within a lexeme are grouped by the stack below the lexeme. A
 * part's state has the stacks of one group without their lower part, so that equal parts of different states are one;
 * it is complete where the lexeme ends. */
struct state_part {
    state_id upper; /* the group alone */
    state_id lower; /* the state after the lexeme; STATE_DEAD: the text ends with the lexeme */
};
enum { AUTOMATON_MAX_PARTS = 64 };
/* Returns the number of parts; or -1 when s has too many: the caller then walks s itself. *rest: the stacks outside of
 * lexemes, or STATE_DEAD. Counters of repeats are cut to max_count, which no token can exceed, so that more parts are
 * equal. */
int automaton_parts(struct automaton *a, state_id s, uint32_t max_count, struct state_part *out, state_id *rest);
