/* edit.h - lines from a terminal, with editing and history; hides libedit. */
#ifndef FST_TOOLS_EDIT_H
#define FST_TOOLS_EDIT_H

#include "base/base.h"

struct edit;

/* history: file to load and save, "" for none.  NULL when the terminal cannot be used. */
struct edit *edit_open(const char *history);
/* The next line with its newline, asked for with `prompt`; borrowed until the next call.  NULL at the end of input;
 * *interrupted when it was Ctrl-C that ended the line. */
const char *edit_line(struct edit *e, const char *prompt, bool (*was_interrupted)(bool reset),
                      bool *interrupted);
void edit_close(struct edit *e); /* saves the history; NULL is fine */

#endif
