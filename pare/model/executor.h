#pragma once
// How a transformer RUNS: one executor for any Architecture, any dtype, CPU and CUDA.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "pare/checkpoint/model.h"
#include "pare/model/inputs.h"
#include "pare/model/taps.h"

namespace pare {

struct Outputs {
  at::Tensor hidden;  // [batch, tokens, width], after the final norm and what an encoder does to each token there
  at::Tensor logits;  // [batch, tokens, vocab or classes], or [batch, classes]; undefined for an encoder
  at::Tensor pooled;  // [batch, width], where an encoder has a pooler
  at::Tensor sequence_logits;  // [batch, classes], where there is a second head
};

struct Cache;     // cache.h
class Dropout;    // dropout.h
struct Features;  // ends.h
struct Blend;     // blend.h

// Of which tokens there shall be logits, where a model gives them for each. `last`: each sequence's last real token,
// as [batch, 1, vocab or classes]. `none`: hidden states alone. An encoder's answer is the same for all.
enum class Logits { none, last, all };

enum class Use { inference, training };

// What a forward pass that records gradients keeps for the way back: all that they are computed from, or only what each
// layer is given, which is then run a second time.
enum class Kept { activations, layer_inputs };

// Who keeps the weights of a training elsewhere, block by block, and so has to know when they are used.
struct BlockWatch {
  // Block n's leaves, by canonical name, as soon as they are there: before the next block is loaded.
  std::function<void(int64_t n, const std::map<std::string, at::Tensor>& leaves)> loaded;
  std::function<void(int64_t n)> wanted;  // block n runs now: until another is wanted, its leaves are used
};

class Executor {
 public:
  // Loads every tensor once, converted to `dtype` on `device`; one tensor at a time.
  // With a blend, of Use::training, it computes what lies between this model and another.
  Executor(const Model& model, at::ScalarType dtype, at::Device device = at::kCPU, Use use = Use::inference,
           const Blend* blend = nullptr, Kept kept = Kept::activations, BlockWatch watch = {});
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  const Architecture& architecture() const;
  // With a cache, the tokens given continue those seen before. Gradients are recorded only for Use::training, and
  // there only in grad mode.
  // Several threads may do this at once, each with its own cache.
  Outputs forward(const Inputs& inputs, Cache* cache = nullptr, Taps* taps = nullptr,
                  Logits logits = Logits::all) const;

  // What the head's matrix reads: [batch, tokens, width], or [batch, width] of a classifier. For who multiplies with
  // the matrix piece by piece, so that the logits of all tokens never exist at once. Not of an encoder.
  at::Tensor head_input(const Inputs& inputs, Dropout* dropout = nullptr) const;

  // Use::training: the leaves that collect gradients, by canonical name. Empty otherwise.
  const std::map<std::string, at::Tensor>& parameters() const;

 private:
  Outputs forward_once(const Inputs& inputs, Cache* cache, Taps* taps, Logits logits) const;
  Features features_of(const Inputs& inputs, Cache* cache, Taps* taps, Logits logits, Dropout* dropout = nullptr) const;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
