/* project.cu - the projections of kernels/gpu/project.cu over Hopper's products. */
#include "kernels/sm90/linear.cuh"

#include "kernels/gpu/project.cu"
