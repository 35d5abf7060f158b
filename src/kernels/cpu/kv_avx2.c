/* kv_avx2.c - kv.inl at this width. */
#include "kernels/cpu/kv.inl"
