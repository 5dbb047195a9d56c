#pragma once
// Attention of a step of decoding: norms, angles and memory of one token, and all that was read, in splits.

#include "pare/cuda/step_vectors.cuh"

namespace pare::device_step {

// One head by one warp: its norm and its angle. `to`: shared.
__device__ inline void ready(const float* from, float* to, const Attend& a, const StepNorm& norm, int position,
                             float scale) {
  const int lane = threadIdx.x % lanes, n = a.width;
  float sum = 0;
  for (int i = lane; i < n; i += lanes) {
    to[i] = __ldcg(from + i);
    sum += to[i];
  }
  if (norm.kind != StepNormKind::none) {
    const float mean = norm.kind == StepNormKind::layer ? warp_sum(sum) / static_cast<float>(n) : 0;
    float squares = 0;
    for (int i = lane; i < n; i += lanes) {
      squares += (to[i] - mean) * (to[i] - mean);
    }
    const float root = 1 / sqrtf(warp_sum(squares) / static_cast<float>(n) + norm.epsilon);
    for (int i = lane; i < n; i += lanes) {
      const float y = norm.kind == StepNormKind::dyt ? tanhf(norm.alpha * to[i]) : (to[i] - mean) * root;
      to[i] = y * (norm.gain ? norm.gain[i] : 1) + (norm.bias ? norm.bias[i] : 0);
    }
  }
  __syncwarp();
  if (a.cosine) {
    const long long at = static_cast<long long>(position) * a.planes;
    for (int i = lane; i < a.planes; i += lanes) {
      const float c = a.cosine[at + i], s = a.sine[at + i];
      float& first = to[a.halves ? i : 2 * i];
      float& second = to[a.halves ? a.planes + i : 2 * i + 1];
      const float turned = first * c - second * s;
      second = second * c + first * s;
      first = turned;
    }
    __syncwarp();
  }
  for (int i = lane; i < n; i += lanes) {
    to[i] *= scale;
  }
}

// Numbers [at, at + held) of a head that was remembered. Not by the cache that is never renewed: this block may have
// written them.
template <class T>
__device__ inline uint4 remembered(const T* row, int at, int width, bool vectored) {
  if (vectored) {
    return at < width ? __ldcg(reinterpret_cast<const uint4*>(row + at)) : uint4{0, 0, 0, 0};
  }
  union {
    uint4 all;
    T each[held<T>];
  } both = {uint4{0, 0, 0, 0}};
  for (int i = 0; i < held<T>; ++i) {
    if (at + i < width) {
      both.each[i] = fetch(row + at + i);
    }
  }
  return both.all;
}

// The numbers of a block's shared memory: queries, probabilities, what groups of lanes have summed, and shares of
// splits.
__host__ __device__ inline int padded_width(int width, int numbers) {  // a power of two times what a lane holds
  int padded = numbers;
  while (padded < width) {
    padded *= 2;
  }
  return padded;
}
__host__ __device__ inline int attend_memory(int width, int numbers, int queries) {
  const int padded = padded_width(width, numbers), groups = attend_threads / (padded / numbers);
  return queries * padded + queries * tile + groups * queries * padded + padded + queries * most_splits;
}

// What all splits have found, by the last block of these heads.
__device__ inline void combine(const Attend& a, int first_head, int count, int splits, float* weights) {
  const int lane = threadIdx.x % lanes;
  for (int g = static_cast<int>(threadIdx.x) / lanes; g < count; g += attend_warps) {
    float most = -INFINITY, sum = 0;
    for (int s = lane; s < splits; s += lanes) {
      most = fmaxf(most, __ldcg(a.shares + (s * a.heads + first_head + g) * 2));
    }
    most = warp_max(most);
    for (int s = lane; s < splits; s += lanes) {
      const float* share = a.shares + (s * a.heads + first_head + g) * 2;
      const float weight = expf(__ldcg(share) - most);
      weights[g * most_splits + s] = weight;
      sum += weight * __ldcg(share + 1);
    }
    sum = warp_sum(sum);
    __syncwarp();
    for (int s = lane; s < splits; s += lanes) {
      weights[g * most_splits + s] /= sum;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * a.width; i += attend_threads) {
    float sum = 0;
#pragma unroll 4
    for (int s = 0; s < splits; ++s) {
      const float* part = a.parts + static_cast<long long>(s * a.heads + first_head) * a.width;
      sum = fmaf(weights[i / a.width * most_splits + s], __ldcg(part + i), sum);
    }
    a.mixed[first_head * a.width + i] = sum;
  }
}

// A block: up to G heads of queries that share a head of keys, over one split of the text.
template <class T, int G>
__global__ void __launch_bounds__(attend_threads) attend(const __grid_constant__ Attend a) {
  constexpr int numbers = held<T>, at_once = 4;
  PARE_SHARED_MEMORY(float, memory);
  __shared__ float most_of[G], sum_of[G], factor_of[G];
  __shared__ int last;
  after_the_one_before();
  let_the_next_begin();

  const int length = __ldcg(&a.state->length);
  const int first = a.window > 0 ? max(0, length + 1 - a.window) : 0, keys = length + 1 - first;
  const int of_each = max(fewest_of_a_split, (keys + a.splits - 1) / a.splits);
  const int splits = (keys + of_each - 1) / of_each, split = static_cast<int>(blockIdx.x);
  if (split >= splits) {
    return;
  }
  const int together = a.heads / a.kv_heads, turns = (together + G - 1) / G;
  const int kv_head = static_cast<int>(blockIdx.y) / turns, turn = static_cast<int>(blockIdx.y) % turns;
  const int first_head = kv_head * together + turn * G, count = min(G, together - turn * G);

  const int padded = padded_width(a.width, numbers), lanes_of_key = padded / numbers;
  const int groups = attend_threads / lanes_of_key, group = static_cast<int>(threadIdx.x) / lanes_of_key;
  const int mine = static_cast<int>(threadIdx.x) % lanes_of_key * numbers;  // the dimensions of this lane
  const int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
  float* queries = memory;                      // [G, padded]
  float* probabilities = queries + G * padded;  // [G, tile]
  float* sums = probabilities + G * tile;       // [groups, G, padded]
  float* new_key = sums + groups * G * padded;  // [padded]
  float* weights = new_key + padded;            // [G, most_splits]

  const long long head_at = static_cast<long long>(kv_head) * a.capacity * a.width;
  const T* cached_keys = static_cast<const T*>(a.keys) + head_at;
  const T* cached_values = static_cast<const T*>(a.values) + head_at;
  for (int g = warp; g < G; g += attend_warps) {
    if (g < count) {
      ready(a.query + (first_head + g) * a.width, queries + g * padded, a, a.query_norm, length, a.scale);
    }
    for (int i = lane + (g < count ? a.width : 0); i < padded; i += lanes) {
      queries[g * padded + i] = 0;
    }
    if (lane == 0) {
      most_of[g] = -INFINITY;
      sum_of[g] = 0;
    }
  }
  if (split == splits - 1 && warp == attend_warps - 1) {  // which has this token
    ready(a.key + kv_head * a.width, new_key, a, a.key_norm, length, 1);
    T* key = static_cast<T*>(a.keys) + head_at + static_cast<long long>(length) * a.width;
    T* value = static_cast<T*>(a.values) + head_at + static_cast<long long>(length) * a.width;
    for (int i = lane; i < a.width; i += lanes) {
      narrow(new_key[i], key[i]);
      narrow(__ldcg(a.value + kv_head * a.width + i), value[i]);
    }
    __threadfence_block();
  }
  __syncthreads();

  float mixed[G][numbers];
#pragma unroll
  for (int g = 0; g < G; ++g) {
#pragma unroll
    for (int i = 0; i < numbers; ++i) {
      mixed[g][i] = 0;
    }
  }
  const int end = min(keys, (split + 1) * of_each);
  for (int begin = split * of_each; begin < end; begin += tile) {
    const int now = min(tile, end - begin);
    for (int base = 0; base < now; base += groups * at_once) {
      uint4 w[at_once];
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        const int k = base + j * groups + group;
        const T* row = cached_keys + static_cast<long long>(first + begin + k) * a.width;
        w[j] = k < now ? remembered(row, mine, a.width, a.vectored) : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int g = 0; g < G; ++g) {
        if (g >= count) {
          break;
        }
        float part[numbers];
#pragma unroll
        for (int q = 0; q < numbers / 4; ++q) {
          const float4 f = *reinterpret_cast<const float4*>(queries + g * padded + mine + 4 * q);
          part[4 * q] = f.x, part[4 * q + 1] = f.y, part[4 * q + 2] = f.z, part[4 * q + 3] = f.w;
        }
#pragma unroll
        for (int j = 0; j < at_once; ++j) {
          float wide[numbers], score = 0;
          unpack(w[j], wide);
#pragma unroll
          for (int i = 0; i < numbers; ++i) {
            score = fmaf(wide[i], part[i], score);
          }
          for (int distance = lanes_of_key / 2; distance > 0; distance /= 2) {
            score += __shfl_xor_sync(everyone, score, distance);
          }
          const int k = base + j * groups + group;
          if (mine == 0 && k < now) {
            score += a.slopes ? a.slopes[first_head + g] * static_cast<float>(first + begin + k - length) : 0;
            probabilities[g * tile + k] = a.softcap != 0 ? a.softcap * tanhf(score / a.softcap) : score;
          }
        }
      }
    }
    __syncthreads();
    for (int g = warp; g < count; g += attend_warps) {
      float most = -INFINITY, sum = 0;
      for (int k = lane; k < now; k += lanes) {
        most = fmaxf(most, probabilities[g * tile + k]);
      }
      most = fmaxf(warp_max(most), most_of[g]);
      for (int k = lane; k < now; k += lanes) {
        const float p = expf(probabilities[g * tile + k] - most);
        probabilities[g * tile + k] = p;
        sum += p;
      }
      sum = warp_sum(sum);
      if (lane == 0) {
        const float factor = expf(most_of[g] - most);
        factor_of[g] = factor;
        sum_of[g] = sum_of[g] * factor + sum;
        most_of[g] = most;
      }
      __syncwarp();
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (g < count) {
        const float factor = factor_of[g];
#pragma unroll
        for (int i = 0; i < numbers; ++i) {
          mixed[g][i] *= factor;
        }
      }
    }
    for (int base = 0; base < now; base += groups * at_once) {
      uint4 w[at_once];
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        const int k = base + j * groups + group;
        const T* row = cached_values + static_cast<long long>(first + begin + k) * a.width;
        w[j] = k < now ? remembered(row, mine, a.width, a.vectored) : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        const int k = base + j * groups + group;
        float wide[numbers];
        unpack(w[j], wide);
#pragma unroll
        for (int g = 0; g < G; ++g) {
          if (g < count && k < now) {
            const float p = probabilities[g * tile + k];
#pragma unroll
            for (int i = 0; i < numbers; ++i) {
              mixed[g][i] = fmaf(p, wide[i], mixed[g][i]);
            }
          }
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int g = 0; g < G; ++g) {
#pragma unroll
    for (int i = 0; i < numbers; ++i) {
      sums[(group * G + g) * padded + mine + i] = mixed[g][i];
    }
  }
  __syncthreads();
  float* parts = a.parts + static_cast<long long>(split * a.heads + first_head) * a.width;
  for (int i = static_cast<int>(threadIdx.x); i < count * a.width; i += attend_threads) {
    const int g = i / a.width, d = i % a.width;
    float sum = 0;
    for (int one = 0; one < groups; ++one) {
      sum += sums[(one * G + g) * padded + d];
    }
    if (splits == 1) {
      a.mixed[first_head * a.width + i] = sum / sum_of[g];
    } else {
      parts[i] = sum;
    }
  }
  if (splits == 1) {
    return;
  }
  if (static_cast<int>(threadIdx.x) < count) {
    float* share = a.shares + (split * a.heads + first_head + static_cast<int>(threadIdx.x)) * 2;
    share[0] = most_of[threadIdx.x];
    share[1] = sum_of[threadIdx.x];
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(a.tickets + blockIdx.y, 1) == splits - 1;
    if (last) {
      a.tickets[blockIdx.y] = 0;
    }
  }
  __syncthreads();
  if (last) {
    __threadfence();
    combine(a, first_head, count, splits, weights);
  }
}

}  // namespace pare::device_step
