#pragma once
// What decoding remembers between steps. Grows by doubling, so a step allocates nothing most of the time.

#include <ATen/core/Tensor.h>

#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

struct LayerCache {
  // [batch, heads, capacity, width] each; undefined where the layer makes it from another: a value from keys, a key
  // from values, or both from inputs (Attention::remembered).
  at::Tensor keys;    // as the scores read them, but as projected where values are made from them
  at::Tensor values;  // collapsed scores and values both read the input, which then stands under keys alone
  at::Tensor inputs;  // of the sublayer, one head wide, where both are made from them
};

struct Cache {
  // Whoever knows how many tokens there will be says so: nothing then moves or grows later.
  explicit Cache(int64_t initial_capacity = 256) : capacity(initial_capacity) {}

  int64_t length = 0;  // tokens remembered, padding included
  // Where defined, int64 [1] on the device: how many are remembered, which nobody then reads off `length`. Each further
  // token is the same work on the same memory, and can be recorded: all of the capacity is read, which must suffice,
  // and what is not there yet is masked. The step moves it on; `length` is moved by whoever asks for steps.
  at::Tensor place;
  int64_t capacity = 0;
  at::Tensor positions;   // int64 [batch, length]; undefined: 0, 1, ... in every row
  at::Tensor mask;        // bool [batch, length]; undefined: every token is real
  at::Tensor ids, types;  // [batch, length], kept only where a longer sequence changes what earlier tokens compute
  std::vector<LayerCache> layers;

  // From here on, steps that are all alike, up to so many tokens.
  void stand_still(int64_t tokens);
  // Room for so many tokens in what every layer remembers: twice what there was, where it is too small.
  void reserve(int64_t tokens);
};

// Whether a `place` will do: nothing that a step computes depends on the length of the text, or on padding.
bool steps_are_alike(const Architecture& architecture);

// [batch, tokens] after [batch, tokens], in either of which one row may stand for all; undefined: none so far.
at::Tensor joined(const at::Tensor& before, const at::Tensor& now);

// Appends [batch, heads, tokens, width] after `length` remembered ones and returns all of them.
at::Tensor append(at::Tensor& stored, const at::Tensor& fresh, int64_t length, int64_t capacity);

}  // namespace pare
