#pragma once
// Constants of a model on its device, made once and not in every step: angles, slopes, the causal triangle, counting
// itself. What is asked for past the end of a table makes a longer one.
//
// One may serve several threads: a mutex guards what grows, and what was handed out stays as it is.

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/device.h"
#include "pare/model/rope.h"

namespace pare {

struct Cache;   // cache.h
struct Inputs;  // inputs.h

// Where the tokens of a batch stand.
struct Positions {
  at::Tensor at;  // int64 [batch or 1, tokens]
  // Where every row stands at first, first + 1, ...: so much is known without asking the device. Else absent.
  std::optional<int64_t> first;
};

// One past the last position. Asks the device where the positions are not plainly counted, and waits for its answer.
int64_t end_of(const Positions& positions);

class Tables {
 public:
  explicit Tables(const Arithmetic& arithmetic) : arithmetic_(arithmetic) {}
  const Arithmetic& arithmetic() const { return arithmetic_; }

  Positions counted(int64_t first, int64_t count) const;  // first, first + 1, ...
  at::Tensor triangle(int64_t size) const;                // bool [size, size]: whether row i may look at column j
  // [1, heads, 1, 1], no narrower than float32
  at::Tensor alibi_slopes(int64_t heads, double steepest) const;
  // `length`: one past the longest position, for the scalings that look at it.
  Turn turn(const Rope& rope, const Positions& positions, int64_t length) const;
  // [batch or 1, tokens, width]
  at::Tensor sinusoidal(const Positions& positions, int64_t width, Position kind = Position::sinusoidal) const;

 private:
  struct Angles {
    Rope rope;
    std::vector<double> frequencies;
    at::Tensor on_device;  // the frequencies
    Turn table;            // of the positions from 0 on
  };
  struct Waves {
    at::Tensor frequencies, table;
  };
  Angles& angles_of(const Rope& rope, int64_t length) const;

  Arithmetic arithmetic_;
  mutable std::mutex growing_;
  mutable at::Tensor counted_, triangle_;
  mutable std::vector<Angles> angles_;
  mutable std::map<std::pair<int64_t, double>, at::Tensor> slopes_;  // by heads, and the steepest
  mutable std::map<std::pair<int64_t, Position>, Waves> waves_;      // by width
};

// Real tokens counted from 0, after those remembered: padding changes no answer. Tokens that are `pad` stand at -1.
// InputError where learned positions end before the tokens do.
Positions positions_for(const Architecture& architecture, const Inputs& inputs, const Tables& tables,
                        const Cache* cache);

}  // namespace pare
