#pragma once
// How one Architecture can be turned into another while it is trained (pare/model/blend.h): what differs, whether it
// can be mixed, and where that which no tensor is left for goes at the end.
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

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/arch/tensor_id.h"

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

// The Architecture with no norm left.
Architecture without_norms(const Architecture& architecture);

}  // namespace pare
