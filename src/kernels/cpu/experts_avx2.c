/* experts_avx2.c - experts.inl at this width. */
#include "kernels/cpu/experts.inl"
