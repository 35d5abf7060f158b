/* seam_avx512.c - seam.inl at this width. */
#include "kernels/cpu/seam.inl"
