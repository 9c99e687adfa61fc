#pragma once
/* A world: users who chat with one hearth on one machine. What outlives the process stands in memory that the processes
 * of a world share; the first one, which simulates nothing, starts another after each death. */
#include "engine/engine.h"
#include "test/world/script.h"

enum { FORGOTTEN = 64, MESSAGES = 32, TEXT = 64, ANSWER = 12, CONTEXT = 256, VERSIONS = 8, MEMO = 1 << 14 };
enum { AS_USER = 64, AS_MODEL, AS_TOOL, END_ID = 70, VOCAB = 72 }; /* tokens that texts do not have, but answers */

/* What a user sees. A text has a byte for each token. */
struct line {
    uint8_t role, n; /* role: AS_ ... */
    bool is_partial, has_call;
    char text[TEXT];
};
struct chat {
    int n, start; /* start: which text all its prompts begin with */
    struct line line[MESSAGES];
};
struct user {
    struct chat chat;
    /* What the disk may hold: the version that was acknowledged, or none, then those that were tried since. */
    struct chat saved[VERSIONS];
    int n_saved;
    bool is_acknowledged; /* there is one in saved[0] */
    bool is_queued;       /* the last one was given to the saver */
    bool is_any;          /* more versions were tried than are noted */
    bool is_deleted;      /* and not saved again since */
    bool is_rotten;       /* a bit of the file has flipped, and no save has replaced it for certain */
};
struct alone { /* what a session alone answers */
    uint64_t key;
    int8_t n, reason;
    uint8_t token[ANSWER];
};
struct world {
    struct script script;
    int next;                  /* action */
    int open_fault, open_kind; /* the nth call of the kind fails when the next process opens; 0: none */
    struct user user[USERS];
    uint64_t forgotten[FORGOTTEN], n_forgotten; /* keys of deleted chats; 0: none. Their number, with those let go */
    uint64_t n_rotten, n_refused;               /* bits that have flipped; chats that were refused for that */
    uint64_t n_events, n_points, n_answers, n_cut, n_forks, n_reused, n_loads, n_failed, n_deaths, n_disk, n_alone;
    uint64_t trace; /* hash of all that happened */
    bool is_traced; /* prints every action and event */
    char dir[300], failure[600];
    struct alone memo[MEMO];
};
extern struct world *world;
extern const char *world_model;

/* Ends the process: an invariant does not hold. */
_Noreturn void world_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void world_note(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* enters the trace */

/* alone.c: the answers that a user's session gives alone, by an engine that no other user shares. */
void alone_open(void);
int alone_level(void); /* of the CPU: enum cpu_level */
const struct alone *alone_answer(int user, const struct request *r);

/* people.c: the life of one process, from the script's next action. Returns true when the script is over, false for a
 * restart in good order. */
bool people_live(void);

/* check.c */
void check_engine(struct engine *eng, int n_sessions); /* what holds whenever no thread has the lock */
void check_idle(struct engine *eng);                   /* what also holds when nothing is left to do */
void check_files(const char *what);                    /* of saved chats: whole ones, without locks */
struct levels {
    long allocations;
    int descriptors;
};
struct levels check_levels(void);
void check_equal(const struct levels *before, const char *what); /* fails if the levels are not those again */
void check_pause(void);                                          /* allocations until check_resume() do not count */
void check_resume(void);
