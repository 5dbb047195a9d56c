#include "pare/checkpoint/gguf_rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

// Takes keys out of those that are left to be said.
class LeftKeys {
 public:
  explicit LeftKeys(std::map<std::string, json>& left) : left_(left) {}

  json take(const char* key, json without) {
    const auto found = left_.find(key);
    if (found == left_.end()) {
      return without;
    }
    json value = found->second;
    left_.erase(found);
    return value;
  }

 private:
  std::map<std::string, json>& left_;
};

void add_scaling(LeftKeys& left, json& rope) {
  const json older = left.take("rope.scale_linear", nullptr);
  const json factor = left.take("rope.scaling.factor", older);
  const json type = left.take("rope.scaling.type", factor.is_null() ? "none" : "linear");  // as llama.cpp has it
  if (type == "none" || (type == "linear" && factor == 1.0)) {
    return;
  }
  rope["rope_type"] = type;  // another is refused by whoever reads it
  if (!factor.is_null()) {
    rope["factor"] = factor;
  }
  if (const json original = left.take("rope.scaling.original_context_length", nullptr); !original.is_null()) {
    rope["original_max_position_embeddings"] = original;
  }
  for (const auto& [theirs, ours] :
       {std::pair("rope.scaling.yarn_beta_fast", "beta_fast"), std::pair("rope.scaling.yarn_beta_slow", "beta_slow")}) {
    if (const json value = left.take(theirs, nullptr); type == "yarn" && !value.is_null()) {
      rope[ours] = value;
    }
  }
}

// Llama 3's way of scaling. The file holds the factors that follow; these are the bounds that all of its models have.
constexpr double llama3_context = 8192, llama3_low = 1, llama3_high = 4;

double llama3_factor(double theta, double plane, double planes, double factor) {
  const double wavelength = 2 * std::numbers::pi * std::pow(theta, plane / planes);
  const double smooth = (llama3_context / wavelength - llama3_low) / (llama3_high - llama3_low);
  return wavelength < llama3_context / llama3_high  ? 1
         : wavelength > llama3_context / llama3_low ? factor
                                                    : 1 / ((1 - smooth) / factor + smooth);
}

}  // namespace

json rope_of_gguf(std::map<std::string, json>& left_keys, int64_t head_width) {
  LeftKeys left(left_keys);
  json rope = {{"rope_type", "default"}, {"rope_theta", left.take("rope.freq_base", 10000.0)}};
  const json width = left.take("rope.dimension_count", nullptr);
  if (width.is_number_integer() && head_width > 0 && width.get<int64_t>() != head_width) {
    // Readers multiply and cut: the quotient must not fall short of the width by a rounding.
    double part = width.get<double>() / static_cast<double>(head_width);
    if (static_cast<int64_t>(static_cast<double>(head_width) * part) < width.get<int64_t>()) {
      part = std::nextafter(part, 1.0);
    }
    rope["partial_rotary_factor"] = part;
  }
  add_scaling(left, rope);
  return rope;
}

// The converter writes them for Llama 3's way of scaling; any others are taken as they are.
void add_rope_factors(json& config, const at::Tensor& stored, const std::string& subject) {
  json& rope = config["rope_parameters"];
  const at::Tensor factors = stored.to(at::kDouble).contiguous();
  const std::span<const double> all(factors.const_data_ptr<double>(), static_cast<size_t>(factors.numel()));
  if (!rope["rope_theta"].is_number() || std::ranges::all_of(all, [](double factor) { return factor == 1; })) {
    return;
  }
  refuse_if(rope["rope_type"] != "default",
            "{}: tensor {} has factors, and the metadata scale rotations too ({}): llama.cpp does both, and no family "
            "has that",
            subject, quote(rope_factors_name), json_shown(rope["rope_type"]));
  const double theta = rope["rope_theta"].get<double>(), factor = *std::ranges::max_element(all);
  bool llama3 = factor > 1;
  for (size_t i = 0; i < all.size(); ++i) {
    const double expected = llama3_factor(theta, static_cast<double>(i), static_cast<double>(all.size()), factor);
    llama3 = llama3 && std::abs(all[i] - expected) <= 1e-5 * expected;  // they were computed in float32
  }
  if (llama3) {
    rope.update({{"rope_type", "llama3"},
                 {"factor", factor},
                 {"low_freq_factor", llama3_low},
                 {"high_freq_factor", llama3_high},
                 {"original_max_position_embeddings", static_cast<int64_t>(llama3_context)}});
    return;
  }
  rope.update({{"rope_type", "longrope"},
               {"short_factor", all},
               {"long_factor", all},
               {"attention_factor", 1.0},
               {"original_max_position_embeddings", config.value("max_position_embeddings", json())}});
}

std::vector<GgufEntry> gguf_of_rope(const Rope& rope) {
  std::vector<GgufEntry> entries = {{"rope.freq_base", GgufKind::f32, rope.theta},
                                    {"rope.dimension_count", GgufKind::u32, rope.width}};
  if (!rope.scaling) {
    return entries;
  }
  const bool linear = rope.scaling->kind == RopeScalingKind::linear, yarn = rope.scaling->kind == RopeScalingKind::yarn;
  if (linear || yarn) {
    entries.push_back({"rope.scaling.type", GgufKind::string, linear ? "linear" : "yarn"});
    entries.push_back({"rope.scaling.factor", GgufKind::f32, rope.scaling->factor});
  }
  // llama.cpp takes 32 and 1 for the two betas of YaRN, whatever a file says.
  if (yarn) {
    entries.push_back(
        {"rope.scaling.original_context_length", GgufKind::u32, static_cast<int64_t>(rope.scaling->original_context)});
  }
  return entries;
}

std::optional<at::Tensor> factors_of_rope(const Rope& rope, int64_t context) {
  if (!rope.scaling) {
    return std::nullopt;
  }
  const RopeScaling& scaling = *rope.scaling;
  const auto planes = static_cast<size_t>(rope.width / 2);
  std::vector<double> factors;
  if (scaling.kind == RopeScalingKind::llama3 && scaling.original_context == llama3_context &&
      scaling.low_frequency == llama3_low && scaling.high_frequency == llama3_high) {
    for (size_t i = 0; i < planes; ++i) {
      factors.push_back(llama3_factor(rope.theta, static_cast<double>(i), static_cast<double>(planes), scaling.factor));
    }
  } else if (scaling.kind == RopeScalingKind::longrope && scaling.short_factor == scaling.long_factor &&
             scaling.attention_factor == 1 && scaling.original_context == static_cast<double>(context)) {
    factors = scaling.long_factor;
  } else {
    return std::nullopt;
  }
  return at::tensor(factors, at::kDouble).to(at::kFloat);
}

}  // namespace pare
