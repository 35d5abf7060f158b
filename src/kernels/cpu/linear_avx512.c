/* linear_avx512.c - linear.inl at this width. */
#include "kernels/cpu/linear.inl"
