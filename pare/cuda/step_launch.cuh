#pragma once
// Who launches what: shapes of the kernels of a step, from sizes alone.

#include "pare/cuda/step_attention.cuh"
#include "pare/cuda/step_products.cuh"

namespace pare::device_step {

struct Shape {
  int blocks_x, blocks_y, threads, shared_bytes;
};

// Rows for each warp: as many as leave all warps of the GPU about as much to do.
inline int rows_at_once(int rows, int blocks, bool gated) {
  int best = 1;
  double most = 0;
  for (int r = 1; r <= (gated ? 2 : 4); r *= 2) {
    const int tasks = (rows + r - 1) / r, warps = blocks * product_warps, rounds = (tasks + warps - 1) / warps;
    const double busy = static_cast<double>(rows) / (static_cast<double>(rounds) * warps * r);
    if (busy >= most * 0.98) {
      best = r;
      most = busy > most ? busy : most;
    }
  }
  return best;
}

inline Shape product_shape(const StepProduct& p, int multiprocessors) {
  const int blocks = p.rows < 2 * multiprocessors ? p.rows : 2 * multiprocessors;
  bool aside = false;
  for (const Added& added : p.input.added) {
    aside = aside || (added.y && added.before.kind != StepNormKind::none);
  }
  const int padded = (p.columns + 3) & ~3;
  return {blocks < most_blocks ? blocks : most_blocks, 1, product_threads, (aside ? 2 : 1) * padded * 4};
}

inline int heads_at_once(const Attend& a) {
  const int together = a.heads / a.kv_heads;
  return together >= 8 ? 8 : together > 2 ? (together > 4 ? 8 : 4) : together;
}

inline Shape attend_shape(const Attend& a, int numbers) {
  const int queries = heads_at_once(a), together = a.heads / a.kv_heads;
  return {a.splits, a.kv_heads * ((together + queries - 1) / queries), attend_threads,
          attend_memory(a.width, numbers, queries) * 4};
}

template <class T, class Launch>
void launch_product(const StepProduct& p, int multiprocessors, const Launch& launch) {
  const Shape shape = product_shape(p, multiprocessors);
  const bool gated = p.then == Then::gate;
  const int rows = rows_at_once(p.rows, shape.blocks_x, gated);
  if (gated) {
    return rows == 1 ? launch(multiply<T, 1, true>, shape, p) : launch(multiply<T, 2, true>, shape, p);
  }
  return rows == 1   ? launch(multiply<T, 1, false>, shape, p)
         : rows == 2 ? launch(multiply<T, 2, false>, shape, p)
                     : launch(multiply<T, 4, false>, shape, p);
}

template <class T, class Launch>
void launch_attend(const Attend& a, const Launch& launch) {
  const Shape shape = attend_shape(a, held<T>);
  switch (heads_at_once(a)) {
    case 1:
      return launch(attend<T, 1>, shape, a);
    case 2:
      return launch(attend<T, 2>, shape, a);
    case 4:
      return launch(attend<T, 4>, shape, a);
    default:
      return launch(attend<T, 8>, shape, a);
  }
}

template <class T, class Launch>
void launch_all(const StepList& plan, int multiprocessors, const Launch& launch) {
  for (int i = 0; i < plan.count; ++i) {
    const Piecework& work = plan.work[i];
    work.attends ? launch_attend<T>(work.attend, launch) : launch_product<T>(work.product, multiprocessors, launch);
  }
}

}  // namespace pare::device_step
