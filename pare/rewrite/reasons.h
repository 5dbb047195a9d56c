#pragma once
// A proposal in words and in JSON: what it saves, what it costs, why not.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pare/rewrite/pipeline.h"

namespace pare {

// The same thing said of many blocks, said once: "blocks.0-11.attention.norm".
struct Reason {
  std::string where, expected, found, remedy;
};

// Why the pass does less than it could: every precondition that fails, alike ones together.
std::vector<Reason> reasons_against(const Proposal& proposal);
// For people: what is the same of several places, said once of "blocks.0-11.attention.key,
// blocks.0-11.attention.value".
std::vector<Reason> told_together(const std::vector<Reason>& reasons);
std::string text_of(const Reason& reason);

// As a user would write the call, without defaults; quoted where a shell would take the braces for its own.
std::string pasteable(PassCall call);

// "3, 5-7, 9"
std::string ranges(const std::vector<int64_t>& numbers);

// The certificate's entry of one pass. Bytes and errors are those of weights stored as `dtype`.
nlohmann::ordered_json to_json(const PassStep& step, Dtype dtype);

}  // namespace pare
