#pragma once
// Architectures drawn from the whole schema, with weights that are generic and sometimes ill conditioned.

#include <ATen/ATen.h>

#include <random>

#include "pare/arch/architecture.h"
#include "tests/model/helpers.h"

namespace pare::test {

class ArchitectureDraw {
 public:
  explicit ArchitectureDraw(uint64_t seed) : random_(seed) {}

  Architecture draw();
  // The same with another end: a classifier of sequences or tokens, question answering, a second head, a layer for each
  // token. A draw of its own, so that seeds keep their architectures.
  Architecture with_other_end(const Architecture& architecture);

  bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return *(list.begin() + between(0, static_cast<int64_t>(list.size()) - 1));
  }

 private:
  Architecture attempt();
  Norm norm(bool may_be_post);
  Block block(const Architecture& a);

  std::mt19937_64 random_;
  bool bare_ = false;
  int skips_ = 0;
};

// Generic weights; some matrices get rows of very different sizes, or almost lose their rank.
// Every norm with an epsilon that float64 sees no variance beside, and gains that make up for it.
void make_norms_constant(Architecture& architecture, Tensors& tensors);

Tensors drawn_tensors(const Architecture& architecture, ArchitectureDraw& draw, uint64_t seed);

}  // namespace pare::test
