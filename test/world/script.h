#pragma once
/* The script of a world: what its users, disks and clocks do, in order. Made from a seed, or read from a file: a line
 * `seed N`, and devices if there are any, then a line for each action with its number, name and arguments. The number
 * also selects the choices that fibers make during the action, so that a script with fewer lines is similar. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* name, weight, largest arguments */
#define ACTIONS(X) \
    X(ASK, 60, USERS, 16, 0)        /* user, question */ \
    X(AGAIN, 12, USERS, 0, 0)       /* user: another answer to the last question */ \
    X(UNDO, 10, USERS, 0, 0)        /* user: takes back the last question */ \
    X(FORK, 10, USERS, USERS, 0)    /* from, to */ \
    X(STOP, 16, USERS, 300, 0)      /* user, points: cancels the answer after these */ \
    X(LEAVE, 8, USERS, 0, 0)        /* user: disconnects */ \
    X(RESTART_CHAT, 6, USERS, 0, 0) /* user */ \
    X(TOOL, 8, USERS, 8, 0)         /* user, result: of a call of the last answer */ \
    X(BATCH, 3, 16, 0, 0)           /* question: of all users at once */ \
    X(EVENTS, 60, 30, 0, 0)         /* most events to wait for */ \
    X(DRAIN, 8, 0, 0, 0)            /* all answers end */ \
    X(SAVE, 14, USERS, 0, 0)        /* user */ \
    X(SAVE_LATER, 14, USERS, 0, 0)  /* user: in the saver's thread */ \
    X(LOAD, 8, USERS, 0, 0)         /* user: closes the conversation and opens it again */ \
    X(DELETE, 4, USERS, 0, 0)       /* user: deletes the saved conversation */ \
    X(ROT, 4, USERS, 40, 0)         /* user: a bit of the saved conversation flips; odd: of that KV file */ \
    X(FAULT, 4, 6, 60, 4)           /* kind, first call, of 4: 0 for all later calls, too */ \
    X(HEAL, 4, 0, 0, 0)             /* no call fails any longer */ \
    X(JUMP, 3, 100, 200, 0)         /* seconds of the monotonic clock, of the other one less 100 */ \
    X(STALL, 4, 8, 200, 0)          /* thread, points */ \
    X(KILL, 2, 1500, 0, 0)          /* points until the process is killed */ \
    X(POWER, 2, 1500, 0, 0)         /* points until the machine loses power */ \
    X(RESTART, 1, 400, 6, 0)        /* ends in good order and opens again, first with a fault: nth call, kind */

enum { USERS = 6 };
#define ACTION_NAME(name, ...) ACT_##name,
enum action_kind { ACTIONS(ACTION_NAME) ACTION_KINDS };
struct action {
    uint32_t number;
    enum action_kind kind;
    int a, b, c;
};
enum { MOST_ACTIONS = 4000 };
struct script {
    uint64_t seed;
    char gpus[100]; /* devices, as in --gpus; "": none */
    int n;
    struct action v[MOST_ACTIONS];
};
/* Makes n actions. Some kinds are left out of each script and some are frequent, so that few kinds meet often. */
void script_make(struct script *s, uint64_t seed, const char *gpus, int n);
int script_read(struct script *s, const char *path); /* 0, or the number of the line that is wrong */
void script_write(const struct script *s, FILE *f);
void script_write_action(const struct action *a, FILE *f);
