/* vocab.h - rows of a model's vocabulary that its tokenizer has no name for.
 *
 * Published checkpoints pad the vocabulary (129,280 rows for 128,815 names): such a row must never be
 * drawn, since it has no text.  Any thread. */
#ifndef FST_SERVER_VOCAB_H
#define FST_SERVER_VOCAB_H

#include "tokenizer/tokenizer.h"

/* Append the ids below config.json's vocab_size without a name.  A folder without a readable
 * config.json gives none: opening the engine says what is wrong with it. */
enum fst_status vocab_unnamed(struct tokenizer_ids *out, const struct tokenizer *t,
                              const char *model_dir);

#endif
