/* reject.h - verification by rejection sampling in the engine (--speculative-accept rejection).
 *
 * It needs the distribution that drafts were drawn from, so the drafter keeps its corrected logits: (requests,
 * gamma, vocab) floats in the host's memory.  A card's drafter keeps none, where it is refused.  Requests at temperature
 * 0 are verified as ever, and drafts that the debug hooks change are of no distribution: refused too. */
#ifndef FST_ENGINE_REJECT_H
#define FST_ENGINE_REJECT_H

#include "base/base.h"
#include "firesteel/engine.h"

struct fst_engine;
struct fst_request;

/* After the options of drafting and debug hooks are known.  FST_EUNSUPPORTED, FST_EINVAL name the flags. */
enum fst_status reject_open(struct fst_engine *e, const struct fst_engine_opts *o);
/* After the arrays of steps are there. */
enum fst_status reject_arrays(struct fst_engine *e);
/* The token of row i of r's block, whose draft is the id behind those it knows: the draft, or what is drawn
 * instead.  target: (vocab) the row's logits, -inf outside of what may be drawn. */
int32_t reject_row(struct fst_engine *e, const struct fst_request *r, const float *target, int i);
/* Whose drafts are accepted so: of temperatures above 0, without a grammar. */
bool reject_applies(const struct fst_engine *e, const struct fst_request *r);

#endif
