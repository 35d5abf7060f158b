/* attention_avx512.c - attention.inl at this width. */
#include "kernels/cpu/attention.inl"
