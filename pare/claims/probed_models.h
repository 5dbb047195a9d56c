#pragma once
// The models that a claim about activations is measured on: a random one of BERT's shape, and those that were named.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/claims/claim.h"
#include "pare/model/inputs.h"
#include "pare/probes/interventions.h"
#include "pare/probes/probe_results.h"

namespace pare {

struct ProbedModel {
  std::string name;
  Model model;
  std::vector<Inputs> inputs;
  bool trained = false;
};

// `tokens` in each of `sequences`, of the text that was named where there is one and the model has a tokenizer, else
// drawn. At smoke scale one small random encoder, unless models are named.
std::vector<ProbedModel> probed_models(const Trial& trial, int64_t tokens, int64_t sequences);
ProbeResults probed(const ProbedModel& model, const Interventions& interventions = {});
// One after the other. Ctrl-C leaves those that are finished, which `found` then says; none: Interrupted.
void measure_each(const std::vector<ProbedModel>& models, Outcome& found,
                  const std::function<void(const ProbedModel&)>& one);

// The stream before each layer and after the last, in order.
std::vector<const PointMeasures*> stream_of(const ProbeResults& results);

// The effective rank of what attention writes, by layer.
std::map<int64_t, double> written_ranks(const ProbeResults& results);
double average_of(const Spread& spread);  // no number of nothing

struct Correlation {
  double r = 0, p = 1;  // two-sided, by Fisher's transformation
  int64_t count = 0;
  bool is_defined = false;  // not of fewer than four, nor where one side does not vary
};
Correlation correlation(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace pare
