/* index_avx2.c - index.inl at this width. */
#include "kernels/cpu/index.inl"
