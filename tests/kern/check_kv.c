#include "checkkern.h"
void check_kv(struct ck *c)
{
    (void)c;
}
