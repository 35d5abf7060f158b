/* head.cu - the head of kernels/gpu/head.cu over Hopper's products. */
#include "kernels/sm90/linear.cuh"

#include "kernels/gpu/head.cu"
