/* index_avx512.c - index.inl at this width. */
#include "kernels/cpu/index.inl"
