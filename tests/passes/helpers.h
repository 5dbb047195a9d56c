#pragma once
// What a pass did to a model, as its answers show it.

#include "pare/rewrite/pipeline.h"
#include "tests/model/helpers.h"

namespace pare::test {

inline at::Tensor answer(const Model& model, const Inputs& inputs) {
  return answer_of(Executor(model, at::kDouble).forward(inputs));
}

// Such blocks behind learned positions; the patch changes what it names.
inline Architecture small_architecture(int64_t width, const nlohmann::json& block, const std::string& patch) {
  nlohmann::json text = {{"width", width}, {"vocab", 19}, {"context", 12}, {"embedding", {{"position", "learned"}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(patch));
  return architecture_from_json(text, "test");
}

// What a pass says against it, "where: found".
inline std::vector<std::string> reasons_of(const PassStep& step) {
  std::vector<std::string> found;
  for (const Precondition& p : step.proposal.preconditions) {
    if (!p.holds) {
      found.push_back(p.where + ": " + p.found);
    }
  }
  return found;
}
inline bool has_reason(const PassStep& step, const std::string& reason) {
  const std::vector<std::string> found = reasons_of(step);
  return std::find(found.begin(), found.end(), reason) != found.end();
}

// The relative error on random inputs.
inline double difference(const Model& before, const Model& after) {
  const Inputs inputs = random_inputs(before.architecture, 2, 7);
  return relative_error(answer(after, inputs), answer(before, inputs));
}

// A pass that by default does only what saves, or what loses nothing, is asked for all that it can.
inline PassCall eager_call(const Pass& pass) {
  Options options;
  for (const PassOption& option : pass.options) {
    if (option.fallback == "saving") {
      options[std::string(option.name)] = "all";
    } else if (option.name == "keep") {
      options[std::string(option.name)] = "k";
    }
  }
  return call_of(pass, options);
}

}  // namespace pare::test
