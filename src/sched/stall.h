/* stall.h - how many rows of prompts may join a step in which somebody waits for his next token.
 *
 * A step that also reads prompts takes longer, and every stream in it waits so long.  What a row of a prompt
 * costs depends on the machine, the model and the depth of the prompt, so it is learned from the steps that
 * are run: rising costs are believed sooner than falling ones.  Pure: times are arguments. */
#ifndef FST_SCHED_STALL_H
#define FST_SCHED_STALL_H

#include "base/base.h"

struct sched_stall {
    double max_s;   /* longest step that is wanted; 0: any */
    double plain_s; /* of a step without rows of prompts, drafting included; 0: not known */
    double row_s;   /* of a row of a prompt; 0: not known */
};

/* 1 .. most; a quarter of it while nothing is known. */
int sched_stall_rows(const struct sched_stall *s, int most);
/* A step took so long: prompt_rows of prompts, and others: 0 when it had none. */
void sched_stall_saw(struct sched_stall *s, int prompt_rows, int others, double seconds);

#endif
