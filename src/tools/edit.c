#include "tools/edit.h"

#include <histedit.h>

struct edit {
    EditLine *el;
    History *h;
    char history[4096];
    char prompt[64];
};

static char *prompt_text(EditLine *el)
{
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return ((struct edit *)e)->prompt;
}

struct edit *edit_open(const char *history_path)
{
    HistEvent ev;
    struct edit *e = mem_calloc(1, sizeof *e);
    if (!e)
        return NULL;
    snprintf(e->history, sizeof e->history, "%s", history_path);
    e->h = history_init();
    e->el = el_init("firesteel", stdin, stdout, stderr);
    if (!e->h || !e->el) {
        edit_close(e);
        return NULL;
    }
    history(e->h, &ev, H_SETSIZE, 1000);
    if (e->history[0])
        history(e->h, &ev, H_LOAD, e->history);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, prompt_text);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->h);
    el_set(e->el, EL_SIGNAL, 0);
    return e;
}

const char *edit_line(struct edit *e, const char *prompt, bool (*was_interrupted)(bool reset),
                      bool *interrupted)
{
    HistEvent ev;
    int n;
    snprintf(e->prompt, sizeof e->prompt, "%s", prompt);
    *interrupted = false;
    const char *line = el_gets(e->el, &n);
    if (!line || n <= 0) {
        *interrupted = was_interrupted(true);
        if (*interrupted)
            el_reset(e->el);
        return NULL;
    }
    history(e->h, &ev, H_ENTER, line);
    return line;
}

void edit_close(struct edit *e)
{
    HistEvent ev;
    if (!e)
        return;
    if (e->h && e->history[0])
        history(e->h, &ev, H_SAVE, e->history);
    if (e->el)
        el_end(e->el);
    if (e->h)
        history_end(e->h);
    mem_free(e);
}
