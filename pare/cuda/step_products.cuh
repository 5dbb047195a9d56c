#pragma once
// Products of a step of decoding: what each warp multiplies, and which token is the most likely.

#include "pare/cuda/step_vectors.cuh"

namespace pare::device_step {

struct Row {
  const void* numbers;  // null: there is none, or it is the vector's own
  const Piece* piece;   // null: there is no such row
  int index;            // in the piece
};

template <class T>
__device__ inline Row row_of(const StepProduct& p, int row) {
  Row found = {nullptr, nullptr, row};
  for (const Piece& piece : p.pieces) {
    if (found.index < piece.rows) {
      found.piece = &piece;
      found.numbers = piece.matrix
                          ? static_cast<const T*>(piece.matrix) + static_cast<long long>(found.index) * p.columns
                          : nullptr;
      return found;
    }
    found.index -= piece.rows;
  }
  return found;
}

// Is a the better one? What is no number wins, so that it is seen; of equals the first.
__device__ inline bool beats(float a, int a_id, float b, int b_id) {
  const bool none = a != a, other = b != b;
  if (none != other) {
    return none;
  }
  return a > b || ((none || a == b) && a_id < b_id);
}

struct Best {
  float logit;
  int id;
  __device__ void take(float other, int other_id) {
    if (beats(other, other_id, logit, id)) {
      logit = other;
      id = other_id;
    }
  }
};
__device__ inline Best warp_best(Best best) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const float logit = __shfl_xor_sync(everyone, best.logit, distance);
    const int id = __shfl_xor_sync(everyone, best.id, distance);
    best.take(logit, id);
  }
  return best;
}
__device__ inline Best block_best(Best best, Best* shared) {
  best = warp_best(best);
  __syncthreads();
  if (threadIdx.x % lanes == 0) {
    shared[threadIdx.x / lanes] = best;
  }
  __syncthreads();
  best = shared[0];
  for (int i = 1; i < product_warps; ++i) {
    best.take(shared[i].logit, shared[i].id);
  }
  return best;
}

constexpr int no_token = 0x7fffffff;

// The best of all blocks, by the last that is done. The next step reads it.
__device__ inline void choose(const StepProduct& p, Best best, Best* shared, int* last) {
  best = block_best(best, shared);
  if (threadIdx.x == 0) {
    p.best_logits[blockIdx.x] = best.logit;
    p.best_ids[blockIdx.x] = best.id;
    __threadfence();
    *last = atomicAdd(&p.state->tickets, 1) == static_cast<int>(gridDim.x) - 1;
  }
  __syncthreads();
  if (!*last) {
    return;
  }
  __threadfence();
  best = {-INFINITY, no_token};
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(gridDim.x); i += product_threads) {
    best.take(__ldcg(p.best_logits + i), __ldcg(p.best_ids + i));
  }
  best = block_best(best, shared);
  if (threadIdx.x == 0) {
    p.state->token = best.id;
    p.state->most = best.logit;
    p.state->length = __ldcg(&p.state->length) + 1;
    p.state->tickets = 0;
  }
}

// Each warp multiplies R rows at a time, and reads them together: that much more is on its way.
template <class T, int R, bool gated>
__global__ void __launch_bounds__(product_threads, 4) multiply(const __grid_constant__ StepProduct p) {
  constexpr int numbers = held<T>, rows_at_once = R * (gated ? 2 : 1), unrolled = 8 / rows_at_once;
  PARE_SHARED_MEMORY(float, x);
  __shared__ float partial[2 * product_warps];
  __shared__ Best bests[product_warps];
  __shared__ int last;
  const int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
  const int tasks = (p.rows + R - 1) / R, blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const auto numbers_of = [&p](int r, int row) -> const T* {
    if (gated) {
      const Row found = {p.pieces[0].matrix, nullptr, row};
      return row < p.rows ? static_cast<const T*>(found.numbers) +
                                static_cast<long long>(row + (r >= R ? p.rows : 0)) * p.columns
                          : nullptr;
    }
    return static_cast<const T*>(row_of<T>(p, row).numbers);
  };
  for (int r = 0; r < rows_at_once; ++r) {  // into the second cache, while the kernel before ends
    const char* row = reinterpret_cast<const char*>(numbers_of(r, (warp * blocks + block) * R + r % R));
    const int bytes = p.columns * static_cast<int>(sizeof(T));
    for (int at = lane * 128; row && at < min(bytes, 8192 / rows_at_once); at += lanes * 128) {
      prefetch(row + at);
    }
  }
  for (const float* each : {p.input.norm.gain, p.input.norm.bias}) {
    for (int i = static_cast<int>(threadIdx.x) * 32; each && i < p.input.width; i += product_threads * 32) {
      prefetch(each + i);
    }
  }
  after_the_one_before();
  let_the_next_begin();

  const int half = numbers == 8 && p.vectored ? p.columns / 2 : 0;
  BlockSums sums = {partial};
  make_input<T>(p.input, p.state, x, x + ((p.columns + 3) & ~3), half, sums);

  Best best = {-INFINITY, no_token};
  for (int task = warp * blocks + block; task < tasks; task += blocks * product_warps) {
    const T* rows[rows_at_once];
    float sum[rows_at_once];
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      rows[r] = numbers_of(r, task * R + r % R);
      sum[r] = 0;
    }
    if (p.vectored) {
      const int loads = p.columns / numbers;
      for (int begin = lane; begin < loads; begin += lanes * unrolled) {
        uint4 w[unrolled][rows_at_once];
#pragma unroll
        for (int u = 0; u < unrolled; ++u) {
#pragma unroll
          for (int r = 0; r < rows_at_once; ++r) {
            const int c = begin + u * lanes;
            w[u][r] = c < loads && rows[r] ? read_once(reinterpret_cast<const uint4*>(rows[r]) + c) : uint4{0, 0, 0, 0};
          }
        }
#pragma unroll
        for (int u = 0; u < unrolled; ++u) {
          const int c = begin + u * lanes;
          if (c >= loads) {
            break;
          }
          float part[numbers];
#pragma unroll
          for (int q = 0; q < numbers / 4; ++q) {
            const float4 f = *reinterpret_cast<const float4*>(x + q * half + 4 * c);
            part[4 * q] = f.x, part[4 * q + 1] = f.y, part[4 * q + 2] = f.z, part[4 * q + 3] = f.w;
          }
#pragma unroll
          for (int r = 0; r < rows_at_once; ++r) {
            float wide[numbers];
            unpack(w[u][r], wide);
#pragma unroll
            for (int i = 0; i < numbers; ++i) {
              sum[r] = fmaf(wide[i], part[i], sum[r]);
            }
          }
        }
      }
    } else {
      for (int c = lane; c < p.columns; c += lanes) {
#pragma unroll
        for (int r = 0; r < rows_at_once; ++r) {
          sum[r] = rows[r] ? fmaf(widened(rows[r][c]), x[c], sum[r]) : 0;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      sum[r] = warp_sum(sum[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = task * R + r;
      if (lane != r || row >= p.rows) {
        continue;
      }
      if (gated) {
        const Piece& piece = p.pieces[0];
        const float gate = sum[r] + (piece.bias ? piece.bias[row] : 0);
        const float up = sum[r + rows_at_once - R] + (piece.bias ? piece.bias[p.rows + row] : 0);
        piece.out[row] = bent(p.curve, gate) * up;
        continue;
      }
      const Row found = row_of<T>(p, row);
      const Piece& piece = *found.piece;
      float y = (found.numbers ? sum[r] : x[place(found.index, half)]) + (piece.bias ? piece.bias[found.index] : 0);
      y = p.then == Then::curve ? bent(p.curve, y) : y;
      y = p.softcap != 0 ? p.softcap * tanhf(y / p.softcap) : y;
      piece.out[found.index] = y;
      best.take(y, found.index);
    }
  }
  if (p.then == Then::logits) {
    choose(p, best, bests, &last);
  }
}

}  // namespace pare::device_step
