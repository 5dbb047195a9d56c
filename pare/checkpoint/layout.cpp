#include <ATen/ATen.h>

#include <numeric>

#include "pare/checkpoint/family.h"
#include "pare/support/mapped.h"

namespace pare {

Layout plain() {
  return {[](const at::Tensor& stored) { return std::vector{stored}; },
          [](const std::vector<at::Tensor>& canonical) { return canonical.at(0); }, true};
}

Layout transposed(Layout of) {
  // t() leaves a vector alone, so a bias passes through.
  return {[of](const at::Tensor& stored) { return of.split(stored.t()); },
          [of](const std::vector<at::Tensor>& canonical) { return of.join(canonical).t(); }};
}

Layout stacked(std::vector<int64_t> rows, int64_t groups) {
  const int64_t group_rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  return {[=](const at::Tensor& stored) {
            const at::Tensor grouped = stored.unflatten(0, {groups, group_rows});
            return mapped(grouped.split_with_sizes(rows, 1), [](const at::Tensor& part) { return part.flatten(0, 1); });
          },
          [=](const std::vector<at::Tensor>& canonical) {
            std::vector<at::Tensor> parts;
            for (size_t i = 0; i < rows.size(); ++i) {
              parts.push_back(canonical.at(i).unflatten(0, {groups, rows[i]}));
            }
            return at::cat(parts, 1).flatten(0, 1);
          }};
}

Layout leading_ones(int64_t count) {
  return {[=](const at::Tensor& stored) {
            at::Tensor canonical = stored;
            for (int64_t i = 0; i < count; ++i) {
              canonical = canonical.squeeze(0);
            }
            return std::vector{canonical};
          },
          [=](const std::vector<at::Tensor>& canonical) {
            at::Tensor stored = canonical.at(0);
            for (int64_t i = 0; i < count; ++i) {
              stored = stored.unsqueeze(0);
            }
            return stored;
          }};
}

Layout number() {
  return {[](const at::Tensor& stored) { return std::vector{stored.unsqueeze(0)}; },
          [](const std::vector<at::Tensor>& canonical) { return canonical.at(0).squeeze(0); }};
}

Layout exchanged_halves(int64_t heads) {
  const auto exchange = [heads](const at::Tensor& rows) {
    const at::Tensor halves = rows.unflatten(0, {heads, 2, -1});
    return at::stack({halves.select(1, 1), halves.select(1, 0)}, 1).flatten(0, 2);
  };
  return {[=](const at::Tensor& stored) { return std::vector{exchange(stored)}; },
          [=](const std::vector<at::Tensor>& canonical) { return exchange(canonical.at(0)); }};
}

}  // namespace pare
