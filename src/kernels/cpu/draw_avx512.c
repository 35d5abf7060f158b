/* draw_avx512.c - draw.inl at this width. */
#include "kernels/cpu/draw.inl"
