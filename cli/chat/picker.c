#include "cli/chat/picker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/saved/store.h"
#include "cli/terminal/ask.h"
#include "cli/terminal/out.h"
#include "cli/terminal/term.h"

static int print_choices(const struct store_entry *v, size_t n, struct error *e) {
    struct buf b = {0};
    int rows, cols;
    term_size(&rows, &cols);
    for (size_t i = 0; i < n; i++) {
        buf_fmt(&b, "%2zu  ", i + 1);
        store_list_entry_text(&v[i], store_list_name_width(v, n, cols - 5), cols - 5, &b);
        buf_char(&b, '\n');
    }
    int rc = b.failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
    if (!rc) out_write(b.data, b.len);
    buf_free(&b);
    return rc;
}

int picker_choose_chat(char *name, size_t cap, struct error *e) {
    enum { SHOWN = 15 };
    static const char ask[] = "Number or name (Enter: 1): ";
    struct store_entry *v;
    size_t n;
    char answer[160], *end;
    int rc = store_list_entries(&v, &n, e);
    if (!rc && !n) rc = error_set(e, ERR_USAGE, "no conversation has been saved yet");
    size_t shown = n < SHOWN ? n : SHOWN;
    if (!rc) rc = print_choices(v, shown, e);
    if (!rc) {
        out_write(ask, sizeof ask - 1);
        bool answered = ask_line(answer, sizeof answer);
        unsigned long number = answered && *answer ? strtoul(answer, &end, 10) : 1;
        if (!answered) rc = error_set(e, ERR_USAGE, "no conversation was chosen");
        else if (*answer && (*end || number < 1)) snprintf(name, cap, "%s", answer);
        else if (number > shown) rc = error_set(e, ERR_USAGE, "there is no number %lu in the list", number);
        else snprintf(name, cap, "%s", v[number - 1].name);
    }
    mem_free(v);
    return rc;
}
