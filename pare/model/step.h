#pragma once
// One forward pass as the layers see it: who may look at whom, which positions, which taps. Built once, used by all.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/cache.h"
#include "pare/model/dropout.h"
#include "pare/model/tables.h"
#include "pare/model/taps.h"

namespace pare {

struct Visibility {
  bool causal_only = false;  // exactly the plain triangle
  at::Tensor allowed;        // bool [batch or 1, 1, queries, keys]; undefined: everything, or the triangle
};

class Step {
 public:
  // `mask` bool [batch, tokens] or undefined. The tables outlive the step.
  Step(Positions positions, at::Tensor mask, const Tables& tables, Cache* cache, Taps* taps);

  const Positions& positions() const { return positions_; }  // of the tokens at hand
  Cache* cache() const { return cache_; }
  bool placed() const { return cache_ && cache_->place.defined(); }  // the same work as any other step
  // Puts [batch, heads, tokens, width] of the tokens at hand behind what is stored, and hands back all of it: with a
  // Cache::place, room that is not filled yet too.
  at::Tensor extended(at::Tensor& stored, const at::Tensor& fresh) const;
  // Of what all tokens have, [batch, heads, tokens, width], that of the tokens at hand.
  at::Tensor at_hand(const at::Tensor& all) const;
  const Tables& tables() const { return *tables_; }

  const Visibility& visibility(Mask mask, const std::optional<int64_t>& window);
  // Angles of the tokens at hand, or of all where keys are remembered unturned.
  const Turn& turn(const Rope& rope, bool all);
  const at::Tensor& gate_positions(int64_t width);  // sinusoidal, for PG-OP
  // How far each key stands after each query, for ALiBi: [batch or 1, 1, queries, keys].
  const at::Tensor& distances(at::ScalarType dtype);

  bool wants(const std::string& prefix, const char* name) const { return taps_ && taps_->wants(prefix + name); }
  at::Tensor tap(const std::string& prefix, const char* name, at::Tensor value) {
    return taps_ ? taps_->touch(prefix + name, std::move(value)) : std::move(value);
  }
  bool tapped() const { return taps_ != nullptr; }

  // While training: what is left out of the stream's parts.
  void drop_with(Dropout* dropout) { dropout_ = dropout; }
  const Dropout* dropout() const { return dropout_; }
  at::Tensor dropped(const at::Tensor& x, double DropoutRates::*rate) const {
    return dropout_ ? (*dropout_)(x, dropout_->rates().*rate) : x;
  }
  bool drops_attention() const { return dropout_ && dropout_->rates().attention > 0; }

  // After the last layer: the cache then holds the tokens at hand.
  void remember();

 private:
  struct Turned {
    Rope rope;
    bool all;
    Turn turn;
  };
  Positions positions_, all_positions_;  // all: of the remembered tokens too
  at::Tensor all_mask_;
  const Tables* tables_;
  Cache* cache_;
  Taps* taps_;
  Dropout* dropout_ = nullptr;
  int64_t past_ = 0, longest_ = 0;
  std::map<std::pair<Mask, int64_t>, Visibility> visibilities_;
  std::vector<Turned> turns_;
  at::Tensor gate_positions_, distances_;
};

}  // namespace pare
