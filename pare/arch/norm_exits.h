#pragma once
// Where a norm that is an affine map, x -> x M + c, can leave to: into every matrix that reads what it writes, or into
// all that writes what it alone reads. Structure alone: whether it is such a map, its numbers say.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/streams.h"

namespace pare {

// A norm that runs: those inside a first-layer table do not.
struct NormBetween {
  ModuleId module;
  Norm norm;
  size_t reads = 0, writes = 0;  // indices into Streams::all
};

std::vector<NormBetween> norms_between(const Architecture& architecture, const Streams& streams);
std::optional<NormBetween> norm_between(const Architecture& architecture, const Streams& streams,
                                        const ModuleId& module);

struct AffineExit {
  enum class Way { readers, writers, none } way = Way::none;
  // writers: what takes c, the bias of the one matrix that writes, or a table of which every token gets one row.
  std::optional<TensorId> place;
  // none: what the norm would need after it, what is there, and what would help; tied: a head of its own would.
  std::string expected, found, remedy;
  bool tied = false;
};

AffineExit exit_of(const Architecture& architecture, const Streams& streams, const NormBetween& norm);

// The Architecture without the norm, and with every bias that its own goes into.
void take_out(Architecture& architecture, const Streams& streams, const NormBetween& norm, const AffineExit& exit);

// Whether norms of queries and keys can leave into their two matrices; empty: they can.
std::string obstacle_of_head_norms(const Architecture& architecture, int64_t block);
void take_out_head_norms(Architecture& architecture, int64_t block);

// Whether a matrix has a bias, of those that may have one; null: this one cannot.
bool* bias_flag(Architecture& architecture, const ModuleId& matrix);

}  // namespace pare
