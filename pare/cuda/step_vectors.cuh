#pragma once
// The kernels of a step of decoding: a vector times matrices, at the speed at which these can be read, with the norm
// before and the activation behind; and attention, split over the text.
//
// Each kernel begins while the one before ends (programmatic dependent launch): until `after_the_one_before` it may
// touch only weights. What other kernels write is read past the first cache (`fetch`).
//
// tests/decode/cuda_on_cpu.h runs the same text on a CPU, so nothing here is named by more than the few words of CUDA
// that it defines.

#include "pare/cuda/device_step.h"

namespace pare::device_step {

constexpr int lanes = 32;
constexpr int product_warps = 8, product_threads = product_warps * lanes;
constexpr int attend_warps = 4, attend_threads = attend_warps * lanes;
constexpr int tile = 128;  // keys of one round
constexpr int most_splits = 64;
constexpr unsigned everyone = 0xffffffffu;

struct Brain {  // bfloat16
  unsigned short bits;
};

__device__ inline float widened(float x) {
  return x;
}
__device__ inline float widened(Brain x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ inline void narrow(float x, float& to) {
  to = x;
}
__device__ inline void narrow(float x, Brain& to) {  // to the nearest, of two the even one
  const unsigned bits = __float_as_uint(x);
  const bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
  to.bits = static_cast<unsigned short>(number ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u);
}

// What another kernel, or this block, has written.
__device__ inline float fetch(const float* from) {
  return __ldcg(from);
}
__device__ inline Brain fetch(const Brain* from) {
  return {__ldcg(&from->bits)};
}

// 16 bytes as numbers.
template <class T>
constexpr int held = 16 / static_cast<int>(sizeof(T));
__device__ inline void unpack(const uint4& w, float (&to)[4]) {
  to[0] = __uint_as_float(w.x), to[1] = __uint_as_float(w.y);
  to[2] = __uint_as_float(w.z), to[3] = __uint_as_float(w.w);
}
__device__ inline void unpack(const uint4& w, float (&to)[8]) {
  const unsigned words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(everyone, x, distance);
  }
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(everyone, x, distance));
  }
  return x;
}

// Sums over a block of products; one after another, each with memory of its own.
struct BlockSums {
  float* partial;  // [2][product_warps], shared
  int turn = 0;
  __device__ float operator()(float x) {
    float* mine = partial + turn * product_warps;
    turn ^= 1;
    x = warp_sum(x);
    if (threadIdx.x % lanes == 0) {
      mine[threadIdx.x / lanes] = x;
    }
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < product_warps; ++i) {
      sum += mine[i];
    }
    return sum;
  }
};

// ---- the vector

// Where number i of the vector lies in shared memory. Of 16 bits, 16 bytes of a matrix are two quads, and a quarter of
// a warp reads the first ones together: `half` numbers are first quads. 0: all in order.
__device__ inline int place(int i, int half) {
  return half == 0 ? i : ((i >> 2) & 1) * half + ((i >> 3) << 2) + (i & 3);
}

struct Quad {
  float v[4];
};
__device__ inline Quad fetch_quad(const float* from, int i) {
  const float4 f = __ldcg(reinterpret_cast<const float4*>(from + i));
  return {{f.x, f.y, f.z, f.w}};
}
// What nobody writes: it may be read ahead.
__device__ inline Quad constant_quad(const float* from, int i) {
  const float4 f = __ldg(reinterpret_cast<const float4*>(from + i));
  return {{f.x, f.y, f.z, f.w}};
}
__device__ inline void store_quad(float* to, const Quad& q) {
  *reinterpret_cast<float4*>(to) = float4{q.v[0], q.v[1], q.v[2], q.v[3]};
}

// For each of this thread's quads of a vector in shared memory: always the same ones, so nobody waits in between. The
// last has numbers behind the vector's end, which mean nothing.
template <bool writes, class F>
__device__ inline void each_quad(float* x, int n, int half, const F& f) {
#pragma unroll 4
  for (int i = 4 * static_cast<int>(threadIdx.x); i < n; i += 4 * product_threads) {
    float* at = x + place(i, half);
    const float4 now = *reinterpret_cast<const float4*>(at);
    Quad q = {{now.x, now.y, now.z, now.w}};
    f(i, q);
    if (writes) {
      store_quad(at, q);
    }
  }
}

static __device__ __noinline__ void normalise(const StepNorm& norm, float* x, int n, int half, BlockSums& sums) {
  if (norm.kind == StepNormKind::none) {
    return;
  }
  const bool dyt = norm.kind == StepNormKind::dyt;
  float mean = 0, root = 1;
  if (norm.kind == StepNormKind::layer) {
    float sum = 0;
    each_quad<false>(x, n, half, [&](int i, Quad& q) {
      for (int j = 0; j < 4; ++j) {
        sum += i + j < n ? q.v[j] : 0;
      }
    });
    mean = sums(sum) / static_cast<float>(n);
  }
  if (!dyt) {
    float squares = 0;
    each_quad<false>(x, n, half, [&](int i, Quad& q) {
      for (int j = 0; j < 4; ++j) {
        squares += i + j < n ? (q.v[j] - mean) * (q.v[j] - mean) : 0;
      }
    });
    root = 1 / sqrtf(sums(squares) / static_cast<float>(n) + norm.epsilon);
  }
  each_quad<true>(x, n, half, [&](int i, Quad& q) {
    Quad gain = {{1, 1, 1, 1}}, bias = {{0, 0, 0, 0}};
    if (norm.gain) {
      gain = constant_quad(norm.gain, i);
    }
    if (norm.bias) {
      bias = constant_quad(norm.bias, i);
    }
    for (int j = 0; j < 4; ++j) {
      q.v[j] = (dyt ? tanhf(norm.alpha * q.v[j]) : (q.v[j] - mean) * root) * gain.v[j] + bias.v[j];
    }
  });
}

// The stream, or any vector, into shared memory, and what is added at once. All that a thread reads is on its way
// before the first of it is used.
template <int at_once, bool both>
__device__ inline void load_stream(const Input& in, float* x, int half) {
  const int n = in.width;
  const Added& added = in.added[0];
#pragma unroll 1
  for (int begin = 4 * static_cast<int>(threadIdx.x); begin < n; begin += 4 * product_threads * at_once) {
    Quad q[at_once], y[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const int i = begin + k * 4 * product_threads;
      q[k] = i < n ? fetch_quad(in.stream, i) : Quad{};
      if (both) {
        y[k] = i < n ? fetch_quad(added.y, i) : Quad{};
      }
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const int i = begin + k * 4 * product_threads;
      for (int j = 0; j < 4 && both; ++j) {
        q[k].v[j] = added.skip ? q[k].v[j] + y[k].v[j] : y[k].v[j];
      }
      if (i < n) {
        store_quad(x + place(i, half), q[k]);
      }
    }
  }
}

// `aside`: as much memory again, where something is normed before it is added.
template <class T>
__device__ inline void make_input(const Input& in, const State* state, float* x, float* aside, int half,
                                  BlockSums& sums) {
  const int n = in.width;
  const bool both = in.stream && in.added[0].y && in.added[0].before.kind == StepNormKind::none;
  if (both) {
    load_stream<4, true>(in, x, half);
  } else if (in.stream) {
    load_stream<8, false>(in, x, half);
  } else {
    const T* token = static_cast<const T*>(in.tokens) + static_cast<long long>(__ldcg(&state->token)) * n;
    const T* position = static_cast<const T*>(in.positions);
    position += position ? static_cast<long long>(__ldcg(&state->length) + in.position_offset) * n : 0;
    each_quad<true>(x, n, half, [&](int i, Quad& q) {
      for (int j = 0; j < 4; ++j) {
        q.v[j] = i + j < n ? in.token_scale * widened(token[i + j]) + (position ? widened(position[i + j]) : 0) : 0;
      }
    });
    normalise(in.embedding_norm, x, n, half, sums);
  }
#pragma unroll 1
  for (int a = 0; a < 2; ++a) {
    const Added& added = in.added[a];
    if (!added.y) {
      continue;
    }
    if (a > 0 || !both) {
      const bool normed = added.before.kind != StepNormKind::none;
      if (normed) {
        each_quad<true>(aside, n, 0, [&](int i, Quad& q) { q = fetch_quad(added.y, i); });
        normalise(added.before, aside, n, 0, sums);
      }
      each_quad<true>(x, n, half, [&](int i, Quad& q) {
        Quad y;
        if (!normed) {
          y = fetch_quad(added.y, i);
        }
        for (int j = 0; j < 4; ++j) {
          const float one = normed ? aside[i + j] : y.v[j];
          q.v[j] = added.skip ? q.v[j] + one : one;
        }
      });
    }
    normalise(added.after, x, n, half, sums);
  }
  if (in.stream_out && blockIdx.x == 0) {
    each_quad<false>(x, n, half, [&](int i, Quad& q) {
      for (int j = 0; j < 4; ++j) {
        if (i + j < n) {
          in.stream_out[i + j] = q.v[j];
        }
      }
    });
  }
  normalise(in.norm, x, n, half, sums);
  __syncthreads();
}

__device__ inline float bent(StepCurve curve, float x) {
  const auto swish = [x](float a, float b) { return x / (1 + expf(-x * (a + b * x * x))); };
  constexpr float two_c = 1.5957691216057308f;
  switch (curve) {
    case StepCurve::gelu:
      return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    case StepCurve::gelu_tanh:
      return swish(two_c, two_c * 0.044715f);
    case StepCurve::gelu_bloom:
      return swish(2 * 0.79788456f, 2 * 0.79788456f * 0.044715f);
    case StepCurve::quick_gelu:
      return swish(1.702f, 0);
    case StepCurve::relu:
      return x < 0 ? 0 : x;
    case StepCurve::relu_squared:
      return x < 0 ? 0 : x * x;
    case StepCurve::silu:
      return swish(1, 0);
    case StepCurve::sigmoid:
      return 1 / (1 + expf(-x));
    case StepCurve::tanh:
      return tanhf(x);
    case StepCurve::none:
      return x;
  }
  return x;
}

}  // namespace pare::device_step
