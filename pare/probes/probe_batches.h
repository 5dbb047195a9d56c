#pragma once
// The sequences that are given to a probe, in batches.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/inputs.h"
#include "pare/probes/probe.h"

namespace pare {

int64_t tokens_of(const Inputs& inputs, const Architecture& architecture);  // of each sequence

// Sequences as `measure` wants them: without their padding, those of one length together, few enough at once that the
// activations of one layer stay near 200 MB, and that two cores have them behind them in some ten seconds: an interrupt
// loses no more. They keep their order but for `most_waiting`, which wait for others of
// their length: what is measured until an interrupt is the beginning of what was given, not its shortest.
constexpr int64_t most_waiting = 64;
std::vector<Inputs> probe_batches(std::span<const Inputs> inputs, const Architecture& architecture);

// One batch after the other, with progress. Interrupted leaves those in `probe` that were finished. Several ranks take
// turns and count each other's, so that all of them have the same means; one that is interrupted stops all.
void measure_all(Probe& probe, std::span<const Inputs> batches, const std::string& label,
                 const Communicator& ranks = {});

}  // namespace pare
