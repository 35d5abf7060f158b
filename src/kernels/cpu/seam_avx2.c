/* seam_avx2.c - seam.inl at this width. */
#include "kernels/cpu/seam.inl"
