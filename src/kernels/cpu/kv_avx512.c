/* kv_avx512.c - kv.inl at this width. */
#include "kernels/cpu/kv.inl"
