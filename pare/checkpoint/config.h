#pragma once
// config.json of a family, read with suspicion: every number has a range, every problem is listed, and a key that
// would change the computation in a way we do not do is a refusal.

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "pare/arch/architecture.h"
#include "pare/support/error.h"

namespace pare {

class Config {
 public:
  Config(nlohmann::json json, std::string subject);  // subject: the path shown in messages

  // Absent or null gives the fallback; without a fallback it is a problem. Aliases: the first key that is there.
  int64_t integer(std::initializer_list<std::string_view> keys, std::optional<int64_t> fallback, int64_t least,
                  int64_t most);
  double number(std::initializer_list<std::string_view> keys, std::optional<double> fallback);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  Activation activation(std::string_view key, std::string_view fallback);  // Hugging Face's names
  bool has(std::string_view key);                     // there and not null
  const nlohmann::json& raw(std::string_view key);    // null where absent; counts as read

  // Refuses any other value than these (absent and null are fine).
  void only(std::string_view key, const nlohmann::json& value, std::string_view why);
  // Known and without effect on the computation.
  void neutral(std::initializer_list<std::string_view> keys);
  void problem(std::string text) { problems_.add(std::move(text)); }

  // The class in "architectures", e.g. LlamaForCausalLM; `fallback` where absent.
  std::string model_class(std::string_view fallback);

  // Throws every problem at once; logs keys that nobody read.
  void finish();

 private:
  const nlohmann::json* find(std::string_view key);
  nlohmann::json json_;
  std::string subject_;
  std::set<std::string, std::less<>> read_;
  Problems problems_;
};

// RoPE settings in both spellings: rope_theta + rope_scaling, and rope_parameters of newer files.
std::optional<Rope> read_rope(Config& config, int64_t head_width, int64_t context, RopeLayout layout,
                              double default_theta, double default_partial);

nlohmann::ordered_json write_rope(const Rope& rope, int64_t head_width, int64_t context);
const char* hugging_face_activation(Activation activation);

}  // namespace pare
