#pragma once
// The probe: runs a model over sequences and keeps what docs/probes.md defines, as means with spread. Memory depends on
// the model and on the longest sequence, not on how many there are; what was measured can be had at any time.

#include <functional>
#include <memory>
#include <string>

#include "pare/checkpoint/model.h"
#include "pare/model/device.h"
#include "pare/model/inputs.h"
#include "pare/probes/interventions.h"
#include "pare/probes/probe_results.h"
#include "pare/ranks/communicator.h"

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

  // Sequences of one length, without padding. Interrupted, none of them counts. `done` is told the share of them that
  // is behind, layer by layer.
  void measure(const Inputs& sequences, const std::function<void(double)>& done = {});

  // Of several ranks: what one measured, counted nowhere yet, and what each of them counts, in one order. At the end
  // `share` adds up what is not handed over with it.
  std::string measured(const Inputs& sequences, const std::function<void(double)>& done = {});
  void count(const std::string& measured);
  void share(const Communicator& ranks);
  ProbeResults results() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
