#pragma once
/* How many tokens to guess before a step: as many as give the most tokens a second, by what steps of so many rows took, how often
 * guesses were right, and what guessing costs; none where that loses. Paper E's governor (section 3.2): its amortisation roofline
 * with measured costs on both axes. Pure: the caller tells what happened and how long it took.
 *
 * Costs that nobody measured are found out by trying, and tried again now and then. What drafts lose against steps without them is
 * counted, and kept below a hundredth of the time: who has lost more than that does not guess until enough time has gone by. */
#include <stdbool.h>
#include <stdint.h>

enum { GOVERNOR_ROWS = 24, GOVERNOR_LENGTH = 16, GOVERNOR_LEVELS = 6, GOVERNOR_WAYS = 3 };

struct governor { /* zero-initialised: nothing is known */
    struct {
        double seconds; /* of a step of so many rows, that so many ran (of late) */
        int n;
        uint64_t at; /* the step that told */
    } cost[GOVERNOR_WAYS][GOVERNOR_ROWS + 1];
    struct {
        float share; /* of guesses at this place of a draft that were right, where all before it were */
        int n;
    } right[GOVERNOR_LEVELS][GOVERNOR_LENGTH];
    double guess_s;      /* what one guessed token costs before the step */
    double spent, saved; /* seconds of late: of all steps; by which drafts shortened (< 0: lengthened) them */
    uint64_t steps;
};

struct governor_in {
    int way;                  /* how the step will run: [0, GOVERNOR_WAYS) */
    int n, rows;              /* sessions, and rows that they have without guesses */
    int level[GOVERNOR_ROWS]; /* how far a session's draft is to be trusted, [0, GOVERNOR_LEVELS): each learns its own shares */
    int most[GOVERNOR_ROWS];  /* tokens that can be guessed for it; 0: none */
    bool dear[GOVERNOR_ROWS]; /* guessing them costs time; else they are there */
};
/* How many tokens to guess for each session, into k [n]; rows and guesses together are at most GOVERNOR_ROWS. Returns how many
 * times as many tokens a second are expected; 1 without guesses. */
double governor_choose(const struct governor *g, const struct governor_in *in, int *k);
/* A step ran: rows as above, guesses and how many of them were right; its seconds. `dear` of the guesses took guess_s together before it.
 * Returns by how much it was shorter than steps without guesses would have been; 0 where that is not known. */
double governor_ran(struct governor *g, int way, int n, int rows, int guesses, int right, double seconds, int dear, double guess_s);
/* Whether the token at that place of a draft was right; all before it were. */
void governor_saw(struct governor *g, int level, int place, int right);
/* Seconds of a step of so many rows; a step of which nothing is known takes as long as its rows apart. 0: nothing is known at all. */
double governor_cost(const struct governor *g, int way, int rows);
