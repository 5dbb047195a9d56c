#pragma once
// One sequence, token by token: what comes next after those read so far. Engines compute it, of a CPU or of a GPU; what
// they do not run, the Executor, whose steps are recorded on a GPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/dtype.h"
#include "pare/checkpoint/model.h"
#include "pare/model/device.h"

namespace pare {

// InputError, with the reason, where a model continues no text: an encoder, a classifier, one that reads images, or
// attention that looks ahead.
void check_continues_text(const Architecture& architecture, const std::string& subject);

// What weights are decoded in where nobody says otherwise. Of 16 bits they stay so on a CPU, where they are read twice
// as fast and multiplied in float32. A GPU would compute everything in them.
Dtype usual_dtype(Dtype stored, at::Device device);

class Decoder {
 public:
  // Of a model that continues text. On a CPU a type of 16 bits is that of the matrices, and the arithmetic is float32;
  // a model that the engine does not run is float32 altogether.
  explicit Decoder(const Model& model, const Arithmetic& arithmetic = {.dtype = at::kFloat});
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Reads these after what was read before, and hands back the logits behind the last of them, one for each token of
  // the vocabulary; they stay until the next call. There is at least one, each is in the vocabulary, and all that was
  // read fits the context.
  std::span<const float> prefill(std::span<const int64_t> ids);
  std::span<const float> step(int64_t id) { return prefill({&id, 1}); }
  // Reads a token after others, and hands back the most likely one to follow it, the first of those: on a GPU without a
  // word from the others. InputError where the logits are not numbers.
  int64_t likeliest(int64_t id);
  // Forgets what was read: another sequence begins.
  void reset();

  int64_t length() const;   // tokens read
  int64_t context() const;  // tokens that it can read
  int64_t vocab() const;
  at::ScalarType dtype() const;  // of its weights
  // The matrices that a step reads, each as often as it does: what takes its time. Of a model that the engine runs,
  // else none. They stay as long as the decoder.
  std::vector<std::span<const std::byte>> matrices() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
