/* Order of the accesses of different streams, by vector clocks: a command is after those of its stream, after what the host had waited for
 * when it enqueued the command, and after what the events and timelines that its stream has waited for include. An access to bytes that
 * another command wrote, or a write of bytes that it read, without such an order is a missing wait, however the threads ran.
 * Each host thread has a clock of its own, which it passes on with mutexes (threads.cpp). The host's own accesses are not seen; but what an upload has read of pinned memory must still be there when the host has waited for the upload.
 * What a stream does after it was released by an aborted timeline is not checked: the caller drops it. */
#include <stdio.h>

#include <algorithm>
#include <deque>
#include <map>

#include "internal.h"

enum { CLOCK_BITS = 22, ACTORS = 1 << (32 - CLOCK_BITS), HISTORY = 256 };
static const uint32_t CLOCK_MASK = (1u << CLOCK_BITS) - 1;

struct upload { /* that has run, from pinned memory */
    const char *from;
    size_t size;
    uint64_t sum;
    uint32_t time;
};
struct actor { /* a stream; one that is destroyed lends its clock to a new one */
    bool in_use = false;
    order_clock now, ended; /* of the running command; of the last that has ended */
    uint32_t aborted = 0; /* its time when an aborted timeline last released it */
    std::vector<const char *> names;
    std::deque<upload> uploads; /* that the host has not waited for */
};
static std::mutex lock; /* guards all below; a stream's own thread reads its clock without it */
static actor actors[ACTORS];
static thread_local order_clock host;
struct signal { /* of a timeline. value: known once its kernel has ended */
    bool is_known;
    uint32_t value;
    order_clock at;
};
static std::map<const uint32_t *, std::deque<signal>> words;
static thread_local actor *mine;
static thread_local uint32_t epoch; /* actor and time of the running command; 0: outside of one, or not checked */
static thread_local std::vector<const uint32_t *> unknown; /* words that the running command signals */

static bool is_on() {
    static const bool on = host_setting("ORDER", 1);
    return on;
}
static void join(order_clock *to, const order_clock &from) {
    if (to->at.size() < from.at.size()) to->at.resize(from.at.size());
    for (size_t i = 0; i < from.at.size(); i++) to->at[i] = std::max(to->at[i], from.at[i]);
    to->aborted |= from.aborted;
}

static uint64_t sum_of(const char *p, size_t size) {
    uint64_t sum = size;
    for (size_t i = 0, n; i < size; i += n) {
        uint64_t word = 0;
        n = std::min(sizeof word, size - i);
        memcpy(&word, p + i, n);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
        sum ^= sum >> 29;
    }
    return sum;
}
/* Under the lock: the host has waited for what `from` includes. NULL, or an upload of memory that the host has changed too early. */
static const char *host_waited(const order_clock &from) {
    static char text[200];
    const char *wrong = NULL;
    join(&host, from);
    host.aborted = false;
    for (size_t i = 1; i < host.at.size(); i++)
        for (std::deque<upload> &all = actors[i].uploads; !all.empty() && all.front().time <= host.at[i]; all.pop_front()) {
            const upload &u = all.front();
            if (sum_of(u.from, u.size) == u.sum) continue;
            snprintf(text, sizeof text, "a missing wait: the host wrote to %p, %zu bytes, after an upload of stream %zu that it had not waited for, or that did not wait for it",
                     (const void *)u.from, u.size, i);
            wrong = text;
        }
    return wrong;
}
static void report(const char *wrong) {
    if (wrong) host_fault(wrong);
}
void order_uploaded(const void *from, size_t size) {
    if (!epoch) return;
    std::lock_guard<std::mutex> hold(lock);
    mine->uploads.push_back({(const char *)from, size, sum_of((const char *)from, size), epoch & CLOCK_MASK});
}

int order_open() {
    std::lock_guard<std::mutex> hold(lock);
    for (int i = 1; i < ACTORS; i++) {
        if (actors[i].in_use) continue;
        actors[i].in_use = true;
        return i;
    }
    fprintf(stderr, "cuda_emulate: too many streams\n");
    abort();
}
void order_close(int stream) {
    order_host_sync(stream);
    std::lock_guard<std::mutex> hold(lock);
    actors[stream].in_use = false;
}
const order_clock &order_host() { return host; }
void order_host_pass(const order_clock &from) { join(&host, from); }
void order_merge(order_clock *to, const order_clock &from) { join(to, from); }
void order_host_join(const order_clock &from) {
    std::unique_lock<std::mutex> hold(lock);
    const char *wrong = host_waited(from);
    hold.unlock();
    report(wrong);
}
void order_host_sync(int stream) {
    std::unique_lock<std::mutex> hold(lock);
    const char *wrong = host_waited(order_clock(actors[stream].ended));
    hold.unlock();
    report(wrong);
}

void order_begin(int stream, const order_clock &enqueued, const char *name) {
    if (!is_on()) return;
    const size_t i = (size_t)stream;
    std::lock_guard<std::mutex> hold(lock);
    mine = &actors[i];
    join(&mine->now, enqueued);
    if (mine->now.at.size() <= i) mine->now.at.resize(i + 1);
    if (i < enqueued.at.size() && enqueued.at[i] >= mine->aborted) mine->now.aborted = false; /* the host has seen it since */
    const uint32_t time = ++mine->now.at[i];
    mine->names.push_back(name);
    epoch = mine->now.aborted || time > CLOCK_MASK ? 0 : (uint32_t)i << CLOCK_BITS | time;
}
void order_end() {
    if (!mine) return;
    std::lock_guard<std::mutex> hold(lock);
    for (const uint32_t *word : unknown) {
        signal &last = words[word].back();
        last.value = *(const volatile uint32_t *)word;
        last.is_known = true;
    }
    unknown.clear();
    mine->ended = mine->now;
    epoch = 0;
    mine = NULL;
}
order_clock order_now() { return mine ? mine->now : order_clock(); }
void order_join(const order_clock &from) {
    if (!mine) return;
    std::lock_guard<std::mutex> hold(lock);
    join(&mine->now, from);
    if (mine->now.aborted) mine->aborted = mine->now.at[(size_t)(mine - actors)], epoch = 0;
}

/* The first of the latest growing signals that reach the value, NULL: none. */
static const signal *signal_of(const uint32_t *word, uint32_t value) {
    const signal *found = NULL;
    auto w = words.find(word);
    if (w == words.end()) return NULL;
    for (auto s = w->second.rbegin(); s != w->second.rend(); s++) {
        if (s->is_known && (int32_t)(s->value - value) < 0) break;
        if (found && found->is_known && (int32_t)(found->value - s->value) <= 0) break;
        found = &*s;
    }
    return found;
}
void order_signal_kernel(const uint32_t *word) {
    if (!mine) return;
    std::lock_guard<std::mutex> hold(lock);
    if (std::find(unknown.begin(), unknown.end(), word) != unknown.end()) return;
    std::deque<signal> &all = words[word];
    all.push_back({false, 0, mine->now});
    if (all.size() > HISTORY) all.pop_front();
    unknown.push_back(word);
}
void order_wait(const uint32_t *word, uint32_t value) {
    if (!mine) return;
    order_clock at;
    {
        std::lock_guard<std::mutex> hold(lock);
        const signal *s = signal_of(word, value);
        if (s) at = s->at;
        at.aborted |= word[1] != 0;
    }
    order_join(at);
}
void order_poll_kernel(const uint32_t *word) {
    if (!mine) return;
    order_clock at;
    {
        std::lock_guard<std::mutex> hold(lock);
        auto w = words.find(word);
        if (w == words.end()) return;
        at = w->second.back().at;
        at.aborted |= word[1] != 0;
    }
    order_join(at);
}
/* gpu/timeline.c: the host signals a value, or has seen one. */
extern "C" void cuda_emulate_timeline(const void *at, uint32_t value, int signals) {
    const uint32_t *word = (const uint32_t *)at;
    const char *wrong = NULL;
    std::unique_lock<std::mutex> hold(lock);
    if (signals) {
        std::deque<signal> &all = words[word];
        all.push_back({true, value, host});
        if (all.size() > HISTORY) all.pop_front();
    } else if (const signal *s = signal_of(word, value)) {
        wrong = host_waited(s->at);
    }
    hold.unlock();
    report(wrong);
    if (!signals) host_delay();
}
static void forget_uploads(const void *p, size_t size) { /* under the lock */
    for (actor &a : actors)
        a.uploads.erase(std::remove_if(a.uploads.begin(), a.uploads.end(),
                                       [=](const upload &u) { return u.from < (const char *)p + size && u.from + u.size > (const char *)p; }),
                        a.uploads.end());
}
void order_downloaded(const void *to, size_t size) {
    std::lock_guard<std::mutex> hold(lock);
    forget_uploads(to, size);
}
void order_forget(const void *p, size_t size) {
    std::lock_guard<std::mutex> hold(lock);
    forget_uploads(p, size);
    words.erase(words.lower_bound((const uint32_t *)p), words.lower_bound((const uint32_t *)((const char *)p + size)));
}

static bool is_before(uint32_t other) {
    const size_t i = other >> CLOCK_BITS;
    return !other || (i < mine->now.at.size() && mine->now.at[i] >= (other & CLOCK_MASK));
}
static thread_local char text[320];
static const char *conflict(const char *what, uint32_t other, const void *p) {
    const uint32_t i = other >> CLOCK_BITS, time = other & CLOCK_MASK;
    std::lock_guard<std::mutex> hold(lock);
    const std::vector<const char *> &names = actors[i].names;
    snprintf(text, sizeof text, "a missing wait: %s of stream %d %s %p after %s of stream %d, which it does not wait for", mine->names.back(),
             (int)(mine - actors), what, p, time <= names.size() ? names[time - 1] : "a command", (int)i);
    epoch = 0; /* one report for a command */
    return text;
}
const char *order_touch(order_shade *s, const void *p, size_t size, bool write) {
    if (!epoch) return NULL;
    const size_t words_touched = ((uintptr_t)p % ORDER_GRAIN + size + ORDER_GRAIN - 1) / ORDER_GRAIN;
    for (size_t k = 0; k < words_touched; k++, s++) {
        if (s->write == epoch || (!write && s->read[0] == epoch)) continue;
        if (!is_before(s->write)) return conflict(write ? "writes" : "reads", s->write, p);
        if (!write) {
            size_t at = 0;
            while (at < ORDER_READERS - 1 && !is_before(s->read[at])) at++; /* replaces one that is before this, else the last */
            s->read[at] = s->read[0];
            s->read[0] = epoch;
            continue;
        }
        for (uint32_t &r : s->read) {
            if (!is_before(r)) return conflict("overwrites", r, p);
            r = 0;
        }
        s->write = epoch;
    }
    return NULL;
}
