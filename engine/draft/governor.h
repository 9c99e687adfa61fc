#pragma once
/* Decides how many tokens to draft before a decode batch: the number with the highest expected tokens per second, from
 * measured times of batches by row count, acceptance rates and drafting cost; none where drafting loses. Paper E's
 * governor (section 3.2): its amortisation roofline with measured costs on both axes. Pure: the caller reports results
 * and times.
 *
 * The loss from drafts is bounded by construction, with an account in seconds. Income: 1/200 of all time, and time that
 * drafts saved compared with batches without them. Expense: time that they lost. A batch gets only drafts that the
 * account could pay for if all were rejected. So from any point on the loss is below 1/200 of the time plus the
 * account's balance (at most eight batches) plus two batches of credit, plus only the excess of a batch over the
 * predicted time. If no gain is expected, trials become increasingly rare.
 *
 * Everything depends on the estimated time of a batch without drafts: if too high, credit is too large and losses look
 * like gains. So it is a trimmed mean, cold batches (that read weights for the first time, several times slower) are
 * ignored, and no draft is made before a few samples. */
#include <stdbool.h>
#include <stdint.h>

enum { GOVERNOR_ROWS = 24, GOVERNOR_LENGTH = 16, GOVERNOR_LEVELS = 6, GOVERNOR_MODES = 3, GOVERNOR_LAST = 16 };

struct governor_cost {         /* cost of a batch with a given number of rows */
    double seconds;            /* trimmed mean of `last` without the fastest and slowest quarter */
    float last[GOVERNOR_LAST]; /* ring buffer */
    int n_samples;             /* samples; 0: unknown */
    uint64_t batch_no;         /* batch number of the last sample */
};
struct governor { /* zero-initialized: nothing is known */
    struct governor_cost cost[GOVERNOR_MODES][GOVERNOR_ROWS + 1];
    struct {
        float share; /* acceptance rate at this position of a draft, if all earlier positions were accepted */
        int n;
    } accepted[GOVERNOR_LEVELS][GOVERNOR_LENGTH];
    /* cost of one drafted token; of one row that a draft must catch up with. 0: unknown */
    double draft_token_s, catch_up_row_s;
    bool has_drafted; /* with a model */
    double account_s;
    int n_since_draft;                          /* batches without drafts since the last one with drafts */
    uint64_t n_batches, last_trial, trial_wait; /* batches so far; last trial; batches to wait before the next trial */
};

struct governor_in {
    int mode;    /* execution mode of the batch: [0, GOVERNOR_MODES) */
    int n, rows; /* sessions; their rows without drafts */
    /* bound on a batch and its drafting, for sessions whose drafts are rejected (paper E, section 3.2.3); 0: none */
    double max_batch_s;
    /* confidence level of a session's draft, [0, GOVERNOR_LEVELS), each with its own acceptance rates */
    int confidence[GOVERNOR_ROWS];
    int max_drafted[GOVERNOR_ROWS];     /* most tokens that can be drafted; 0: none */
    int catch_up_rows[GOVERNOR_ROWS];   /* rows that its draft must process first */
    bool is_model_draft[GOVERNOR_ROWS]; /* drafting costs time; otherwise the tokens are already available */
};
/* Sets k [n] to the number of tokens to draft per session; rows and drafts together are at most GOVERNOR_ROWS. Returns
 * the expected factor in tokens per second; 1 without drafts. */
double governor_choose(struct governor *g, const struct governor_in *in, int *k);
/* Figures of a batch that ran. */
struct governor_sample {
    int mode, n, rows;                /* as in governor_in */
    int n_drafted, n_accepted;        /* drafted rows; accepted ones */
    int n_model_drafted, n_caught_up; /* model-drafted tokens; rows caught up with */
    bool is_cold;                     /* it read weights for the first time */
    double seconds;                   /* time of the batch */
    double draft_s, catch_up_s;       /* total time of drafting and of catching up, before the batch */
};
/* Records a batch. Returns the seconds saved compared with batches without drafts; 0 if unknown. */
double governor_record(struct governor *g, const struct governor_sample *s);
/* Records whether the token at position `place` of a draft was right, given that all earlier ones were. */
void governor_judge(struct governor *g, int level, int place, int right);
/* Predicted seconds of a batch with `rows` rows. With no larger sample, extrapolates. 0: no samples. */
double governor_cost(const struct governor *g, int way, int rows);
