#pragma once
// The probe: runs a model over sequences and keeps what docs/probes.md defines, as means with spread. Memory depends on
// the model and on the longest sequence, not on how many there are; what was measured can be had at any time.

#include <memory>
#include <span>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/model/arithmetic.h"
#include "pare/model/inputs.h"
#include "pare/probes/interventions.h"
#include "pare/probes/probe_results.h"

namespace pare {

struct ProbeOptions {
  double threshold = 1e-3;  // of numerical rank, relative to the largest singular value
  Arithmetic arithmetic;    // of the model; what is measured is measured in float64
  Interventions interventions;
};

class Probe {
 public:
  // InputError where an intervention finds nothing to change.
  Probe(const Model& model, const ProbeOptions& options);
  ~Probe();

  // Sequences of one length, without padding. Interrupted, none of them counts.
  void measure(const Inputs& sequences);
  ProbeResults results() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Sequences as `measure` wants them: without their padding, those of one length together, few enough at once that the
// activations of one layer stay near 200 MB. They keep their order but for `most_waiting`, which wait for others of
// their length: what is measured until an interrupt is the beginning of what was given, not its shortest.
constexpr int64_t most_waiting = 64;
std::vector<Inputs> probe_batches(std::span<const Inputs> inputs, const Architecture& architecture);

}  // namespace pare
