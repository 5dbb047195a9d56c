// The native format: config.json holds the Architecture itself, and tensors have their canonical names.

#include "pare/checkpoint/family.h"

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/checkpoint/config.h"

namespace pare {

namespace {

constexpr int64_t format = 1;

Architecture read_config(Config& config) {
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
