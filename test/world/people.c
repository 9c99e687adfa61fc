/* What users do with one process of hearth, and what they must see. The engine, its sessions and the saved
 * conversations are the program's own. */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cli/saved/saver.h"
#include "cli/saved/store.h"
#include "test/world/chats.h"
#include "test/world/disk.h"
#include "test/world/fibers.h"
#include "test/world/files.h"
#include "test/world/world.h"

enum { KEYS = 400 };
/* A user's connection with this process. */
static struct link {
    struct session *session;
    bool is_busy, may_fail, is_stopped;
    struct line answer;
    struct alone alone; /* what this turn's answer begins */
    int32_t prompt[CONTEXT];
    struct store store;
    bool is_open; /* store */
    uint32_t stop_after;
    uint64_t keys[KEYS]; /* of all prompts since the process began */
    int n_keys;
} link_of[USERS];
static struct engine *engine;
static struct app app;
static int n_sessions;
static bool had_fault;              /* a call may have failed since the last HEAL */
static long fault_nth[FAULT_KINDS]; /* 0: none */
static bool fault_lasts[FAULT_KINDS];

/* --- Faults ----------------------------------------------------------------------------------- */

static void pause_faults(void) {
    for (int k = 0; k < FAULT_KINDS; k++) {
        if (!fault_nth[k]) continue;
        const long left = fault_nth[k] - fault_count((enum fault_kind)k);
        fault_nth[k] = left > 0 ? left : fault_lasts[k];
        fault_set((enum fault_kind)k, 0, false, false);
    }
}
static void resume_faults(void) {
    for (int k = 0; k < FAULT_KINDS; k++)
        if (fault_nth[k]) fault_set((enum fault_kind)k, fault_nth[k], fault_lasts[k], false);
}
static void finish_saves(void);

static void heal(void) {
    finish_saves(); /* an error of a save until now is one of these faults */
    pause_faults();
    memset(fault_nth, 0, sizeof fault_nth);
    had_fault = false;
    for (int u = 0; u < USERS; u++) had_fault |= link_of[u].is_busy && link_of[u].may_fail;
}
static void inject(const struct action *a) {
    const enum fault_kind kind = (enum fault_kind)(a->a % FAULT_KINDS);
    fault_nth[kind] = a->b + 1, fault_lasts[kind] = !a->c;
    fault_set(kind, a->b + 1, !a->c, false);
    had_fault = true;
    for (int u = 0; u < USERS; u++) link_of[u].may_fail = true;
}
static void must_not_fail(const char *what, const struct error *e) {
    world->n_failed++;
    world_note("%s failed: %s", what, e->text);
    if (!had_fault) world_fail("%s failed though no call was made to: %s", what, e->text);
}

/* --- Turns ------------------------------------------------------------------------------------ */

static bool open_session(struct link *l) {
    struct error e = {0};
    if (l->session) return true;
    if (session_open(engine, &l->session, &e)) return must_not_fail("session_open", &e), false;
    n_sessions++;
    return true;
}
static void close_session(struct link *l) {
    if (!l->session) return;
    l->stop_after = 0;
    session_close(&l->session);
    n_sessions--;
}

/* Ends the turn that the user sees: the answer stays as far as it came, perhaps empty. */
static void end_answer(int u) {
    struct link *l = &link_of[u];
    struct chat *c = &world->user[u].chat;
    l->is_busy = false, l->stop_after = 0;
    c->line[c->n++] = l->answer;
}

/* Notes the keys of the prompt for the chat's next save. */
static void note_keys(struct link *l) {
    const uint64_t *keys;
    const size_t n = session_disk_keys(l->session, &keys);
    files_permit(keys, n); /* computed again */
    for (size_t i = 0; i < n && l->n_keys < KEYS; i++) l->keys[l->n_keys++] = keys[i];
}

static void submit(int u, uint32_t number, int choice) {
    struct link *l = &link_of[u];
    struct chat *c = &world->user[u].chat;
    struct error e = {0};
    struct request r = {.tokens = l->prompt,
                        .n = chats_tokens(c, l->prompt),
                        .max_tokens = 1 + choice % ANSWER,
                        .client = (uint64_t)u,
                        .n_shared = choice & 1 ? chats_start(c) : 0,
                        .flags = choice / 16 % 8 ? 0 : REQ_EXACT_PREFIX_ONLY,
                        .sampling = {.temperature = choice & 4 ? 0.9f : 0, .top_p = 0.95f, .seed = number % 7}};
    pause_faults();
    l->alone = *alone_answer(u, &r);
    resume_faults();
    l->answer = (struct line){.role = AS_MODEL, .is_partial = true};
    l->is_stopped = false, l->may_fail = had_fault;
    if (!open_session(l) || session_submit(l->session, &r, &e)) {
        if (e.code) must_not_fail("session_submit", &e);
        c->n--;
        return;
    }
    l->is_busy = true;
    note_keys(l);
}

static int user_of(const struct session *s) {
    for (int u = 0; u < USERS; u++)
        if (link_of[u].session == s && link_of[u].is_busy) return u;
    world_fail("an event of a session without a turn");
}

static void take(const struct event *ev) {
    const int u = user_of(ev->session);
    struct link *l = &link_of[u];
    struct line *a = &l->answer;
    world->n_events++;
    world_note("event %d of user %d: token %d, reason %d", ev->kind, u, ev->token, ev->reason);
    if (ev->kind == EVENT_TOKEN) {
        if (a->n >= l->alone.n) world_fail("user %d: token %d of an answer that ends there alone", u, a->n + 1);
        if (l->alone.token[a->n] != ev->token)
            world_fail("user %d: token %d is %d, alone %d (%d cached; %s)", u, a->n + 1, ev->token,
                       l->alone.token[a->n], ev->stats.cached_tokens, "another answer in company");
        a->text[a->n++] = chats_byte(ev->token);
    }
    if (ev->kind == EVENT_ERROR) {
        world->n_failed++;
        if (!l->may_fail) world_fail("user %d: a turn failed though no call was made to: %s", u, ev->error.text);
        end_answer(u);
    }
    if (ev->kind != EVENT_DONE) return;
    if (session_busy(ev->session)) world_fail("user %d: the turn is over, but its session is busy", u);
    if (ev->reason == DONE_CANCELLED) {
        if (!l->is_stopped) world_fail("user %d: a turn was cancelled by nobody", u);
        world->n_cut++;
    } else {
        if (a->n != l->alone.n || (int)ev->reason != l->alone.reason)
            world_fail("user %d: the answer ended after %d tokens (%d), alone after %d (%d)", u, a->n, ev->reason,
                       l->alone.n, l->alone.reason);
        a->is_partial = false;
        world->n_answers++;
    }
    world->n_reused += ev->stats.cached_tokens > 0;
    end_answer(u);
}

static bool any_busy(void) {
    for (int u = 0; u < USERS; u++)
        if (link_of[u].is_busy) return true;
    return false;
}
static void take_events(int most) {
    struct event ev;
    while (most-- > 0 && any_busy()) {
        if (!engine_poll(engine, &ev, -1)) world_fail("engine_poll returned without an event");
        take(&ev);
        check_engine(engine, n_sessions);
    }
}
static void drain(void) {
    const int most = 100000;
    take_events(most);
    if (any_busy()) world_fail("a request does not end");
}

/* The cancel comes as from a signal handler: in any thread, at any point. */
static void on_point(void) {
    disk_count_point();
    for (int u = 0; u < USERS; u++)
        if (link_of[u].stop_after && !--link_of[u].stop_after && link_of[u].is_busy) session_cancel(link_of[u].session);
}

/* --- Saved conversations ---------------------------------------------------------------------- */

static void close_store(struct link *l) {
    if (l->is_open) store_close(&l->store);
    l->is_open = false;
}
static bool open_store(int u, enum store_mode mode) {
    struct link *l = &link_of[u];
    struct error e = {0};
    char name[8];
    if (l->is_open) return true;
    snprintf(name, sizeof name, "user%d", u);
    if (store_open(&l->store, &app, name, mode, NULL, &e)) return must_not_fail("store_open", &e), false;
    l->is_open = !l->store.disabled;
    if (!l->is_open) store_close(&l->store);
    return l->is_open;
}

/* Waits for the saver; what it wrote without an error is acknowledged. */
static void finish_saves(void) {
    struct error e = {0};
    saver_wait();
    const bool failed = saver_take_error(&e);
    if (failed) must_not_fail("the saver", &e);
    for (int u = 0; u < USERS; u++) {
        if (world->user[u].is_queued && !failed) chats_acknowledge(&world->user[u]);
        world->user[u].is_queued = false;
    }
}

static void add_keys(struct link *l) {
    struct disk_keys *k = &l->store.disk_keys;
    for (int i = 0; i < l->n_keys; i++) {
        size_t at = 0;
        while (at < k->n && k->keys[at] != l->keys[i]) at++;
        if (at < k->n) continue;
        if (mem_grow(&k->keys, &k->cap, k->n + 1, sizeof *k->keys)) world_fail("no memory");
        k->keys[k->n++] = l->keys[i];
    }
    l->n_keys = 0;
}

static void save(int u, bool later) {
    struct link *l = &link_of[u];
    struct user *p = &world->user[u];
    struct conversation conv = {0};
    struct error e = {0};
    if (l->is_busy || !p->chat.n || !open_store(u, STORE_REPLACE)) return;
    if (!later) finish_saves(); /* an older version must not follow */
    pause_faults();
    chats_to_conversation(&p->chat, &conv);
    add_keys(l);
    resume_faults();
    chats_try(p);
    const int rc = later ? store_save_later(&l->store, &app, &conv, &e) : store_save(&l->store, &app, &conv, &e);
    if (rc) must_not_fail("store_save", &e), p->n_saved--; /* the old file stays */
    else if (later) p->is_queued = true;
    else chats_acknowledge(p);
    conversation_free(&conv);
}

static void load(int u) {
    struct link *l = &link_of[u];
    struct user *p = &world->user[u];
    struct conversation conv = {0};
    struct error e = {0};
    char name[8];
    if (l->is_busy) return;
    close_store(l); /* what was queued is on disk now */
    snprintf(name, sizeof name, "user%d", u);
    const int rc = store_open(&l->store, &app, name, STORE_LOAD, &conv, &e);
    finish_saves();
    world->n_loads++;
    pause_faults();
    if (!rc && !chats_may_hold(p, &conv)) world_fail("%s holds a version that nobody saved, or an older one", name);
    if (rc && had_fault) world_note("%s was not loaded: %s", name, e.text);
    else if (rc && p->is_acknowledged) world_fail("a saved conversation is lost: %s", e.text);
    else if (rc && p->is_rotten) world->n_refused++;
    else if (rc && store_exists(name)) world_fail("a saved conversation cannot be loaded: %s", e.text);
    if (!rc) chats_from_conversation(&conv, p);
    else if (!had_fault) chats_forget(p), p->chat.n = 0;
    p->is_rotten = p->is_rotten && store_exists(name);
    l->is_open = !rc && !l->store.disabled;
    if (!rc && l->store.disabled) store_close(&l->store);
    conversation_free(&conv);
    resume_faults();
}

static void permit_keys(struct link *l) {
    const uint64_t *keys;
    const size_t n = session_disk_keys(l->session, &keys);
    files_permit(keys, n);
}

static void delete_chat(int u) {
    struct link *l = &link_of[u];
    struct user *p = &world->user[u];
    struct disk_keys own = {0};
    struct error e = {0};
    char name[8];
    finish_saves();
    close_store(l);
    snprintf(name, sizeof name, "user%d", u);
    if (!store_exists(name)) return;
    p->is_acknowledged = false;
    pause_faults();
    files_own_keys(u, &own);
    resume_faults();
    if (store_delete(name, &e)) must_not_fail("store_delete", &e);
    else if (store_exists(name)) world_fail("a deleted conversation is still there");
    else {
        chats_forget(p), p->is_rotten = false, p->is_deleted = true;
        files_forbid(own.keys, own.n);
        for (int v = 0; v < USERS; v++) /* what these still compute is not of before the deletion */
            if (link_of[v].is_busy) permit_keys(&link_of[v]);
    }
    mem_free(own.keys);
}

/* A saved chat must be refused then, and a KV file read again: no answer changes. */
static void rot(int u, int which) {
    struct user *p = &world->user[u];
    if (which % 2) {
        world->n_rotten += files_rot_kv(which / 2);
        return;
    }
    finish_saves(); /* a save that is queued would replace the file at some time */
    if (!files_rot_chat(u)) return;
    world->n_rotten++;
    chats_forget(p), p->is_rotten = true;
}

/* --- Actions ---------------------------------------------------------------------------------- */

static void ask(int u, int question, uint32_t number) {
    struct chat *c = &world->user[u].chat;
    if (link_of[u].is_busy) return;
    if (chats_is_long(c)) c->n = 0;
    if (c->n && c->line[c->n - 1].has_call) chats_add(c, AS_TOOL, 0); /* as a chat that gives up waiting */
    chats_add(c, AS_USER, question);
    submit(u, number, question + (int)(number * 2654435761u >> 20));
}
static void ask_again(int u, uint32_t number) {
    struct chat *c = &world->user[u].chat;
    if (link_of[u].is_busy || c->n < 2) return;
    if (c->line[c->n - 1].role == AS_MODEL) c->n--;
    submit(u, number, (int)(number * 2654435761u >> 20));
}
static void undo(int u) {
    struct chat *c = &world->user[u].chat;
    if (link_of[u].is_busy) return;
    while (c->n && c->line[c->n - 1].role != AS_USER) c->n--;
    if (c->n) c->n--;
}
static void fork_session(int u, int v) {
    struct link *from = &link_of[u], *to = &link_of[v];
    struct error e = {0};
    if (u == v || from->is_busy || to->is_busy || !from->session) return;
    close_session(to);
    if (!open_session(to)) return;
    if (session_fork(from->session, to->session, &e)) {
        must_not_fail("session_fork", &e);
        close_session(to);
    }
    world->n_forks++;
    world->user[v].chat = world->user[u].chat;
}
static void leave(int u) {
    struct link *l = &link_of[u];
    close_session(l);
    if (l->is_busy) end_answer(u);
}
/* The last answer calls a tool. The result comes at once, or with a later action: a process may die in between. */
static void use_tool(int u, int result, uint32_t number) {
    struct chat *c = &world->user[u].chat;
    if (link_of[u].is_busy || !c->n || c->line[c->n - 1].role != AS_MODEL || c->line[c->n - 1].is_partial) return;
    if (chats_is_long(c)) return;
    const bool is_first = !c->line[c->n - 1].has_call;
    c->line[c->n - 1].has_call = true;
    if (is_first && result % 2) return;
    chats_add(c, AS_TOOL, result);
    submit(u, number, (int)(number * 2654435761u >> 20));
}

static void batch(int question, uint32_t number) {
    const struct announced_load load = {.n_prompts = USERS, .prompt_tokens = 60, .answer_tokens = ANSWER / 2.0};
    const int at_once = engine_announce(engine, &load), most = at_once ? at_once : USERS;
    for (int u = 0; u < USERS && u < most; u++) ask(u, question + u, number);
    if (at_once) engine_announce(engine, NULL);
}

static bool act(const struct action *a) { /* true: the process ends in good order */
    const int u = a->a % USERS;
    switch (a->kind) {
    case ACT_ASK: ask(u, a->b, a->number); break;
    case ACT_AGAIN: ask_again(u, a->number); break;
    case ACT_UNDO: undo(u); break;
    case ACT_FORK: fork_session(u, a->b); break;
    case ACT_STOP:
        if (link_of[u].is_busy) link_of[u].is_stopped = true, link_of[u].stop_after = (uint32_t)a->b + 1;
        break;
    case ACT_LEAVE: leave(u); break;
    case ACT_RESTART_CHAT:
        if (!link_of[u].is_busy) world->user[u].chat.n = 0;
        break;
    case ACT_TOOL: use_tool(u, a->b, a->number); break;
    case ACT_BATCH: batch(a->a, a->number); break;
    case ACT_EVENTS: take_events(a->a + 1); break;
    case ACT_DRAIN: drain(); break;
    case ACT_SAVE: save(u, false); break;
    case ACT_SAVE_LATER: save(u, true); break;
    case ACT_LOAD: load(u); break;
    case ACT_DELETE: delete_chat(u); break;
    case ACT_ROT: rot(u, a->b); break;
    case ACT_FAULT: inject(a); break;
    case ACT_HEAL: heal(); break;
    case ACT_JUMP: fibers_jump(a->a, a->b - 100); break;
    case ACT_STALL: fibers_stall((uint32_t)a->a, (uint32_t)a->b); break;
    case ACT_KILL:
    case ACT_POWER: disk_kill_after((uint32_t)a->a, a->kind == ACT_POWER); break;
    case ACT_RESTART: world->open_fault = a->a, world->open_kind = a->b; return true;
    default: break;
    }
    return false;
}

static int open_engine(struct error *e) {
    static char kv_dir[320];
    static const enum exec_mode prefill[] = {PREFILL_CPU, PREFILL_SLP, PREFILL_BLEND, MODE_AUTO},
                                decode[] = {DECODE_HYBRID, DECODE_DUAL, DECODE_CPU, MODE_AUTO, DECODE_PAGED};
    const uint64_t how = world->script.seed;
    const bool has_gpus = *world->script.gpus, is_paged = has_gpus && decode[how / 4 % 5] == DECODE_PAGED;
    snprintf(kv_dir, sizeof kv_dir, "%s/.cache/hearth/kv", world->dir); /* where store_delete() looks */
    return engine_open(&engine,
                       &(struct engine_params){.dir = world_model,
                                               .threads = 1,
                                               .cpu_level = alone_level() + 1,
                                               .gpus = has_gpus ? world->script.gpus : NULL,
                                               .prefill = has_gpus ? prefill[how % 4] : MODE_AUTO,
                                               .decode = has_gpus ? decode[how / 4 % 5] : MODE_AUTO,
                                               .kv = DT_F32,
                                               .context = CONTEXT,
                                               .kv_dir = how % 4 ? kv_dir : NULL,
                                               .kv_limit = how % 8 < 2 ? 300000 : 8000000,
                                               .draft = how % 3 || is_paged ? DRAFT_NONE : DRAFT_LOOKUP},
                       e);
}

/* Opens the engine, perhaps first with a fault, which must leave nothing open. */
static void begin(void) {
    struct error e = {0};
    char name[8];
    if (world->open_fault) {
        const struct levels before = check_levels();
        fault_set((enum fault_kind)world->open_kind, world->open_fault, false, false);
        if (!open_engine(&e)) engine_close(&engine);
        fault_set((enum fault_kind)world->open_kind, 0, false, false);
        world->open_fault = 0;
        check_equal(&before, "an engine that could not be opened");
        e = (struct error){0};
    }
    if (open_engine(&e)) world_fail("engine_open: %s", e.text);
    app = (struct app){.info = engine_info(engine)};
    store_sweep();
    check_files("the sweep after a start");
    for (int u = 0; u < USERS; u++) world->user[u].is_queued = false; /* that saver has died */
    for (int u = 0; u < USERS; u++) {
        link_of[u] = (struct link){0};
        world->user[u].chat.n = 0;
        world->user[u].chat.start = u;
        snprintf(name, sizeof name, "user%d", u);
        if (world->user[u].is_deleted && store_exists(name)) world_fail("a deleted conversation is there again");
        if (world->user[u].n_saved || world->user[u].is_any || world->user[u].is_rotten) load(u);
    }
}
static void end(void) {
    heal();
    drain();
    check_idle(engine);
    finish_saves();
    for (int u = 0; u < USERS; u++) {
        close_session(&link_of[u]);
        close_store(&link_of[u]);
    }
    check_idle(engine);
    saver_close();
    engine_close(&engine);
}

bool people_live(void) {
    const struct levels before = check_levels();
    bool is_over = false;
    begin();
    fibers_on_point = on_point;
    while (!is_over && world->next < world->script.n) {
        const struct action *a = &world->script.v[world->next++];
        fibers_reseed(world->script.seed * 1000003 + a->number);
        world->n_events++;
        if (world->is_traced) script_write_action(a, stdout);
        world_note("action %u", a->number);
        is_over = act(a);
        check_engine(engine, n_sessions);
        files_check();
    }
    disk_kill_after(0, false);
    fibers_on_point = NULL;
    end();
    disk_forget();
    check_equal(&before, "a process that has ended");
    files_check();
    check_files("a process that has ended");
    return !is_over;
}
