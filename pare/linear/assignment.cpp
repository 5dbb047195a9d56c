#include "pare/linear/assignment.h"

#include <ATen/ATen.h>

#include <limits>

namespace pare {

std::vector<int64_t> assign(const at::Tensor& costs) {
  const at::Tensor table = costs.to(at::kCPU, at::kDouble).contiguous();
  const double* const cost = table.data_ptr<double>();
  const size_t n = static_cast<size_t>(table.size(0));
  constexpr double infinite = std::numeric_limits<double>::infinity();
  // Row and column 0 stand for nobody.
  std::vector<double> rows(n + 1, 0), columns(n + 1, 0);
  std::vector<size_t> owner(n + 1, 0), from(n + 1, 0);
  for (size_t row = 1; row <= n; ++row) {
    owner[0] = row;
    size_t column = 0;
    std::vector<double> slack(n + 1, infinite);
    std::vector<bool> seen(n + 1, false);
    while (owner[column] != 0) {
      seen[column] = true;
      const size_t at = owner[column];
      double least = infinite;
      size_t next = 0;
      for (size_t j = 1; j <= n; ++j) {
        if (seen[j]) {
          continue;
        }
        const double left = cost[(at - 1) * n + j - 1] - rows[at] - columns[j];
        if (left < slack[j]) {
          slack[j] = left;
          from[j] = column;
        }
        if (slack[j] < least) {
          least = slack[j];
          next = j;
        }
      }
      for (size_t j = 0; j <= n; ++j) {
        if (seen[j]) {
          rows[owner[j]] += least;
          columns[j] -= least;
        } else {
          slack[j] -= least;
        }
      }
      column = next;
    }
    while (column != 0) {
      owner[column] = owner[from[column]];
      column = from[column];
    }
  }
  std::vector<int64_t> found(n);
  for (size_t j = 1; j <= n; ++j) {
    found[owner[j] - 1] = static_cast<int64_t>(j) - 1;
  }
  return found;
}

std::vector<int64_t> assign_many(const at::Tensor& costs) {
  constexpr int64_t few = 256, most_left = 2048;
  const int64_t n = costs.size(0);
  if (n <= few) {
    return assign(costs);
  }
  const at::Tensor wanted = costs.argmin(1).to(at::kCPU), wanting = costs.argmin(0).to(at::kCPU);
  std::vector<int64_t> found(static_cast<size_t>(n), -1), rows, columns;
  std::vector<bool> taken(static_cast<size_t>(n), false);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t j = wanted.data_ptr<int64_t>()[i];
    if (wanting.data_ptr<int64_t>()[j] == i) {
      found[i] = j;
      taken[j] = true;
    } else {
      rows.push_back(i);
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    if (!taken[j]) {
      columns.push_back(j);
    }
  }
  if (rows.empty()) {
    return found;
  }
  std::vector<int64_t> order(rows.size());
  if (std::ssize(rows) <= most_left) {
    const at::Tensor left = costs.index_select(0, at::tensor(rows, at::kLong).to(costs.device()))
                                .index_select(1, at::tensor(columns, at::kLong).to(costs.device()));
    order = assign(left);
  } else {  // so many that find nobody are of another model, and any order of them is as good
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int64_t>(i);
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    found[rows[i]] = columns[order[i]];
  }
  return found;
}

}  // namespace pare
