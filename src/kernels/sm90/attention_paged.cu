/* attention_paged.cu - attention.cu once more, for rows of ROW_PAGED. */
#define ATTENTION_PAGED true
#include "kernels/sm90/attention.cu"
