#pragma once
// CUDA's words on a CPU, as many as the kernels of pare/cuda/step_*.cuh use: a thread of a block is a fiber that goes
// on until it waits for others. Blocks run one after another, and fibers in an order that each run draws anew: who
// reads what nobody waited for is found out sooner or later. What a GPU does to memory in between is not imitated.

#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/decode/fibers.h"

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __noinline__
#define __launch_bounds__(...)
#define PARE_SHARED_MEMORY(type, name) type* name = static_cast<type*>(block.shared())

namespace pare::device_step {

struct Index {
  unsigned x = 0, y = 0;
};
inline Index threadIdx, blockIdx, gridDim;

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};

inline pare::test::FiberBlock block([](int thread) { threadIdx.x = static_cast<unsigned>(thread); });

inline void __syncthreads() {
  block.wait_for_block();
}
inline void __syncwarp() {
  block.wait_for_warp();
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline float __shfl_xor_sync(unsigned, float x, int distance) {
  return std::bit_cast<float>(block.exchange(std::bit_cast<uint32_t>(x), distance));
}
inline int __shfl_xor_sync(unsigned, int x, int distance) {
  return std::bit_cast<int>(block.exchange(std::bit_cast<uint32_t>(x), distance));
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline uint4 read_once(const uint4* from) {
  return *from;
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int atomicAdd(int* to, int more) {
  const int before = *to;
  *to += more;
  return before;
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a < b ? b : a;
}
inline void prefetch(const void*) {}
inline void after_the_one_before() {}
inline void let_the_next_begin() {}

}  // namespace pare::device_step
