/* linear_avx2.c - linear.inl at this width. */
#include "kernels/cpu/linear.inl"
