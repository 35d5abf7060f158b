/* fence.c - see fence.h. */
#include "chat/fence.h"

enum { LINE_START, LINE_RUN, LINE_INFO, LINE_TAIL, LINE_OTHER };

static void end_line(struct fence *f)
{
    bool is_run = f->where == LINE_RUN && f->run >= 3;

    if (!f->open && (is_run || f->where == LINE_INFO)) {
        f->open = f->run_char;
        f->open_len = f->run;
    } else if (f->open && ((is_run && f->run_char == f->open && f->run >= f->open_len) ||
                           f->where == LINE_TAIL))
        f->open = 0;
    f->where = LINE_START;
    f->indent = f->run = 0;
}

static void after_run(struct fence *f, char c)
{
    bool blank = c == ' ' || c == '\t';

    if (f->run < 3)
        f->where = LINE_OTHER;
    else if (!f->open)
        f->where = LINE_INFO;
    else
        f->where =
            blank && f->run_char == f->open && f->run >= f->open_len ? LINE_TAIL : LINE_OTHER;
}

void fence_feed(struct fence *f, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (c == '\n' || c == '\r')
            end_line(f);
        else if (f->where == LINE_START && c == ' ' && f->indent < 3)
            f->indent++;
        else if (f->where == LINE_START && (c == '`' || c == '~')) {
            f->where = LINE_RUN;
            f->run_char = c;
            f->run = 1;
        } else if (f->where == LINE_START)
            f->where = LINE_OTHER;
        else if (f->where == LINE_RUN && c == f->run_char)
            f->run += f->run < 1 << 20;
        else if (f->where == LINE_RUN)
            after_run(f, c);
        else if (f->where == LINE_INFO && f->run_char == '`' && c == '`')
            f->where = LINE_OTHER;
        else if (f->where == LINE_TAIL && c != ' ' && c != '\t')
            f->where = LINE_OTHER;
    }
}
