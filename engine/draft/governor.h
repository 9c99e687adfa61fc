#pragma once
/* How many tokens to guess before a step: as many as give the most tokens a second, by what steps of so many rows took, how often
 * guesses were right, and what guessing costs; none where that loses. Paper E's governor (section 3.2): its amortisation roofline
 * with measured costs on both axes. Pure: the caller tells what happened and how long it took.
 *
 * What guesses lose is bounded by construction. There is an account of seconds: a two hundredth of all time is paid in, what guesses
 * saved against steps without them is paid in, too, what they lost is taken out; and no step has guesses that it could not pay for if all of
 * them were wrong. So from any time on the loss is below a two hundredth of the time, what lay on the account (at most eight steps) and
 * two steps of credit; beyond that only as far as a step took longer than a step of so many rows should. Who has no hope to gain tries
 * seldom, and ever more so.
 *
 * All of it hangs on what a step without guesses is thought to take: too much, and the credit is too large and losses pass for gains. So that is the
 * mean of the usual ones, steps that read weights for the first time (several times as long) tell nothing, and nothing is guessed before a few were seen. */
#include <stdbool.h>
#include <stdint.h>

enum { GOVERNOR_ROWS = 24, GOVERNOR_LENGTH = 16, GOVERNOR_LEVELS = 6, GOVERNOR_WAYS = 3, GOVERNOR_LAST = 16 };

struct governor_cost {         /* of a step of so many rows */
    double seconds;            /* the mean of the last without the quarters that took longest and shortest */
    float last[GOVERNOR_LAST]; /* a ring */
    int n;                     /* that ran; 0: nothing is known */
    uint64_t at;               /* the step that told */
};
struct governor { /* zero-initialised: nothing is known */
    struct governor_cost cost[GOVERNOR_WAYS][GOVERNOR_ROWS + 1];
    struct {
        float share; /* of guesses at this place of a draft that were right, where all before it were */
        int n;
    } right[GOVERNOR_LEVELS][GOVERNOR_LENGTH];
    double guess_s, row_s; /* what one guessed token costs before the step; what one row does that a draft has to catch up with. 0: not known */
    double account;
    int rested;                  /* steps without guesses since the last one with them */
    uint64_t steps, tried, wait; /* so far; when guesses were last tried without hope; how long that is not done again */
};

struct governor_in {
    int way;                   /* how the step will run: [0, GOVERNOR_WAYS) */
    int n, rows;               /* sessions, and rows that they have without guesses */
    int level[GOVERNOR_ROWS];  /* how far a session's draft is to be trusted, [0, GOVERNOR_LEVELS): each learns its own shares */
    int most[GOVERNOR_ROWS];   /* tokens that can be guessed for it; 0: none */
    int behind[GOVERNOR_ROWS]; /* rows that its draft has to go through first */
    bool dear[GOVERNOR_ROWS];  /* guessing them costs time; else they are there */
};
/* How many tokens to guess for each session, into k [n]; rows and guesses together are at most GOVERNOR_ROWS. Returns how many
 * times as many tokens a second are expected; 1 without guesses. */
double governor_choose(struct governor *g, const struct governor_in *in, int *k);
/* A step ran. */
struct governor_step {
    int way, n, rows;      /* as above */
    int guesses, right;    /* rows more, and of them right */
    int dear, behind;      /* of the guesses, those that took time; rows that were caught up with */
    bool cold;             /* it read weights for the first time */
    double seconds;        /* of the step */
    double guess_s, row_s; /* of all of these before it */
};
/* Returns by how much it was shorter than steps without guesses would have been; 0 where that is not known. */
double governor_ran(struct governor *g, const struct governor_step *s);
/* Whether the token at that place of a draft was right; all before it were. */
void governor_saw(struct governor *g, int level, int place, int right);
/* Seconds of a step of so many rows; a step of which nothing is known takes as long as its rows apart. 0: nothing is known at all. */
double governor_cost(const struct governor *g, int way, int rows);
