// The native format: config.json holds the Architecture itself, and tensors have their canonical names.

#include "pare/checkpoint/family.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/checkpoint/config.h"
#include "pare/checkpoint/known_keys.h"
#include "pare/checkpoint/modeling_code.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr int64_t format = 1;

// transformers runs such a model with the Python beside it, and no other.
void check_auto_map(Config& config) {
  const nlohmann::json& map = config.raw("auto_map");
  const std::string prefix = fmt::format("{}.Pare", modeling_module);
  for (const auto& [automatic, ours] : map.items()) {
    if (!ours.is_string() || !ours.get_ref<const std::string&>().starts_with(prefix)) {
      config.problem(fmt::format("auto_map.{} is {}, expected a class of {}: code of one's own is not supported",
                                 escaped(automatic), shown(ours), modeling_name));
    }
  }
}

Architecture read_config(Config& config) {
  check_auto_map(config);
  if (!config.has("pare_format")) {
    config.problem("pare_format is missing; expected 1");
  }
  config.integer({"pare_format"}, format, format, format);
  config.stop_if_wrong();
  return architecture_from_json(config.raw("architecture"), config.subject() + ": architecture");
}

nlohmann::ordered_json write_config(const Architecture& a) {
  return {{"model_type", "pare"}, {"pare_format", format}, {"architecture", architecture_to_json(a)}};
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  for (const TensorSpec& spec : tensor_table(a)) {
    binder.tensor(spec.name, spec.name);
  }
  return binder.take();
}

}  // namespace

const Family& native_family() {
  static const Family family = {
      .model_type = "pare",
      .base_prefix = "",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
  };
  return family;
}

}  // namespace pare
