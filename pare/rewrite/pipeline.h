#pragma once
// Passes one after another: parsed from the command line, proposed in order, counted.

#include <string>
#include <vector>

#include "pare/passes/pass.h"

namespace pare {

struct PassCall {
  const Pass* pass = nullptr;
  Options options;  // what is not in it has its default
};

const Pass& find_pass(const std::string& id);  // InputError names the nearest, and all that there are
PassCall call_of(const Pass& pass, Options options = {});
// "a,b{option=value,option=value}". InputError names what is unknown, and the nearest that is known.
std::vector<PassCall> parse_passes(const std::string& text);
std::string text_of(const PassCall& call);

struct PassStep {
  PassCall call;
  Proposal proposal;             // its `after` is what the next one got
  int64_t saved_parameters = 0;  // net; negative where the model grows
  int64_t more_indices = 0;      // pivots: int32 numbers that are stored and are no parameters
};

int64_t saved_bytes(const PassStep& step, Dtype dtype);  // of a file whose weights are stored so

struct Pipeline {
  Model after;
  std::vector<PassStep> steps;
  std::vector<std::string> warnings;
  std::vector<std::string> left_out;        // what would save, and `auto` does not take, each with the reason
  std::vector<std::string> saving_nothing;  // passes that apply and save no parameter, which `auto` does not take
  double roundings = 0;
};

// Some pass of it says itself that what it makes is another function, however near.
bool is_approximate(const Pipeline& pipeline);

// Every pass in the order given, each on what the one before proposed. One that refuses leaves the model as it is.
Pipeline run_passes(const Model& model, const std::vector<PassCall>& asked);
// Of all passes, with any target, those that together save most, as far as the budget goes.
Pipeline choose_passes(const Model& model, const Budget& budget = {});

}  // namespace pare
