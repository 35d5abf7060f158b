/* project_avx2.c - project.inl at this width. */
#include "kernels/cpu/project.inl"
