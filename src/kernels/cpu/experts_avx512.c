/* experts_avx512.c - experts.inl at this width. */
#include "kernels/cpu/experts.inl"
