#pragma once
// Recipes: new tensors as small functions of old ones, in float64, evaluated when somebody writes or runs them.

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "pare/arch/streams.h"
#include "pare/checkpoint/weights.h"

namespace pare {

at::Tensor load_double(const Weight& weight);

// A new tensor. Recipes are float64; what they make is rounded once, when it is written.
Weight computed(Shape shape, std::function<at::Tensor()> make);

// A function of rows: [n, width] in, [n, another width] out, each row by itself.
using RowMap = std::function<at::Tensor(const at::Tensor& rows)>;

// The weight with `map` applied along one axis, to `width` entries from `begin` on. Along the last axis of a matrix
// rows stay what they are, so a table can still be had a few rows at a time.
Weight mapped_along(const Weight& weight, int64_t axis, int64_t begin, int64_t width, const RowMap& map);

Weight rounded(const Weight& weight, Dtype dtype);

// What several recipes need (a factorisation, a gauge), made once and kept while it is among the last few asked for.
template <class Value>
class Kept {
 public:
  std::shared_ptr<const Value> get(const std::string& key, const std::function<Value()>& make) {
    for (const auto& [name, value] : entries_) {
      if (name == key) {
        return value;
      }
    }
    if (entries_.size() == 2) {  // a block reads one stream and writes the next
      entries_.pop_front();
    }
    entries_.emplace_back(key, std::make_shared<const Value>(make()));
    return entries_.back().second;
  }

 private:
  std::deque<std::pair<std::string, std::shared_ptr<const Value>>> entries_;
};

}  // namespace pare
