/* attention_avx2.c - attention.inl at this width. */
#include "kernels/cpu/attention.inl"
