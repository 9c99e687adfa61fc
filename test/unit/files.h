#pragma once
/* A directory for a test's files: a checkpoint with a template, for example. */
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "test/unit/unit.h"

static char dir[64];

static void put(const char *name, const char *text) {
    char path[256];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_write(path, text, strlen(text), &e), 0);
}
static void drop(const char *name) {
    char path[sizeof dir + sizeof((struct dirent *)0)->d_name];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}
static void drop_all(void) {
    DIR *d = opendir(dir);
    for (struct dirent *it; d && (it = readdir(d));) drop(it->d_name);
    if (d) closedir(d);
}
static int make_dir(void) {
    snprintf(dir, sizeof dir, "/tmp/hearth-unit-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
/* Fails if a directory is in it. */
static int remove_dir(void) {
    drop_all();
    return rmdir(dir);
}
