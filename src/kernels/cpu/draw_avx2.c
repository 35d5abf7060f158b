/* draw_avx2.c - draw.inl at this width. */
#include "kernels/cpu/draw.inl"
