#pragma once
// One Architecture turned into another while it is trained: what differs is mixed, (1 - t) old + t new, with t from 0
// to 1 over some steps (pare/model/blend.h says what each mixture is), and then only the new is left.
//
// At t = 1 the mixture is a model of the new Architecture, exactly. A norm is then y = f x + b, f its gain times its
// constant, and f goes where a matrix can take it:
//   readers  W (f x + b) = (W f) x + W b: into every matrix that reads the norm. Its bias goes along where they all
//            have biases, and fades where they have not
//   writers  f (W h) = (f W) h: into the matrices that write what the norm reads, if nothing else reads it
//   rows     the same for a norm of each head's queries or keys
//   table    of a head that is tied to the token table E: E f x = (E Θ) (Θ x), Θ² = f, where the stream, which has no
//            norm any more, takes the basis Θ; if the table writes another stream, E f x = E (f x) does
// A projection a I gives its a to the matrix that it is multiplied with: (a x)(W y) = x (a W y).

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/model/blend.h"

namespace pare {

enum class NormExit { readers, writers, rows, table };

struct LeavingNorm {
  ModuleId module;
  NormExit exit = NormExit::readers;
  bool bias_fades = false;
  double offset = 0;  // added to the stored gain
};

struct LeavingProjection {
  ModuleId module;
  std::optional<ModuleId> partner;  // which takes the multiple; none: it is `multiple`
  double multiple = 1;
  double rescale = 1;  // what the partner takes besides, where the scores get another scale
};

struct MorphPlan {
  Architecture from;    // the source, and what the target has besides: biases of zero, a head's own matrix
  Architecture middle;  // the target, with the norms that leave still there
  Architecture to;
  std::vector<LeavingNorm> norms;
  std::vector<LeavingProjection> projections;
  std::vector<TensorId> biases;
  std::vector<std::pair<int64_t, Sublayer>> skips;
  std::map<int64_t, int64_t> neurons;  // of each block that gets fewer: how many stay
};

// InputError "SUBJECT: ..." with everything that cannot be mixed, and why.
MorphPlan plan_morph(const Architecture& source, const Architecture& to, const std::string& subject);

class Morph {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  // `start`: a model of plan.from.
  Morph(MorphPlan plan, int64_t steps, const Model& start, at::Device device);

  const MorphPlan& plan() const { return plan_; }
  const Blend& blend() const { return blend_; }
  int64_t steps() const { return steps_; }
  double t(int64_t step) const;

  // Between two steps: t of the next, and the constants of what was seen in the last, a running mean.
  void go_to(int64_t step) const;
  void remeasure(const Tensors& weights) const;

  // The constants, "morph.NAME.constant", to be stored and put back.
  Tensors state() const;
  void restore(const Tensors& state) const;

  // The new model, of the weights at t = 1, in that type; and what an optimiser remembers of them ("NAME.mean",
  // "NAME.square"), as it would remember it of the new ones: with p' = s p a gradient is 1/s of what it was.
  Model finished(const Weights& weights, at::ScalarType type) const;
  Tensors finished_moments(const Weights& weights, const Tensors& moments) const;

 private:
  struct Factors;
  Factors factors(const Weights& weights) const;
  Weights finished_weights(Weights weights, const Factors& factors, double power) const;

  MorphPlan plan_;
  int64_t steps_;
  Blend blend_;
  at::Tensor pace_;  // how much of a new measurement the constants take on
};

// The same function as a model of plan.from: zero biases, an untied head, and the neurons that stay in front.
Model morph_start(const MorphPlan& plan, const Model& source);

}  // namespace pare
