#pragma once
// One forward pass as the layers see it: who may look at whom, which positions, which taps. Built once, used by all.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/cache.h"
#include "pare/model/rope.h"
#include "pare/model/taps.h"

namespace pare {

struct Visibility {
  bool causal_only = false;  // exactly the plain triangle
  at::Tensor allowed;        // bool [batch or 1, 1, queries, keys]; undefined: everything, or the triangle
};

class Step {
 public:
  // `positions` int64 [batch or 1, tokens]; `mask` bool [batch, tokens] or undefined.
  Step(at::Tensor positions, at::Tensor mask, at::ScalarType dtype, Cache* cache, Taps* taps);

  const at::Tensor& positions() const { return positions_; }          // of the tokens at hand
  const at::Tensor& all_positions() const { return all_positions_; }  // of the remembered ones too
  int64_t past() const { return past_; }
  Cache* cache() const { return cache_; }

  const Visibility& visibility(Mask mask, const std::optional<int64_t>& window);
  // Angles of the tokens at hand, or of all where keys are remembered unturned.
  const Turn& turn(const Rope& rope, bool all);
  const at::Tensor& gate_positions(int64_t width);  // sinusoidal, for PG-OP

  bool wants(const std::string& prefix, const char* name) const { return taps_ && taps_->wants(prefix + name); }
  at::Tensor tap(const std::string& prefix, const char* name, at::Tensor value) {
    return taps_ ? taps_->touch(prefix + name, std::move(value)) : std::move(value);
  }
  bool tapped() const { return taps_ != nullptr; }

  // After the last layer: the cache then holds the tokens at hand.
  void remember();

 private:
  struct Turned {
    Rope rope;
    bool all;
    Turn turn;
  };
  at::Tensor positions_, all_positions_, all_mask_;
  at::ScalarType dtype_;
  Cache* cache_;
  Taps* taps_;
  int64_t past_ = 0, longest_ = 0;
  std::map<std::pair<Mask, int64_t>, Visibility> visibilities_;
  std::vector<Turned> turns_;
  at::Tensor gate_positions_;
};

}  // namespace pare
