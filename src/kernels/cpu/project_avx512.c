/* project_avx512.c - project.inl at this width. */
#include "kernels/cpu/project.inl"
