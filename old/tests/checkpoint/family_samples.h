#pragma once
// Small models of a family, as transformers saved them: the configuration, and the names and shapes of the tensors.
// One check for all families: what is read and written back is what was there.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/config.h"
#include "pare/checkpoint/model_folder.h"
#include "tests/support/helpers.h"

namespace pare {

using nlohmann::json;

struct FamilySample {
  std::string what;
  json config;
  std::string tensors;  // "NAME SIZE,SIZE ..." one per line
};

inline std::string with(const char* first, const std::string& second) {
  return std::string(first) + second;
}

// The bare model's names have no prefix.
inline std::string without(std::string text, const std::string& prefix) {
  for (size_t at = text.find("\n" + prefix); at != std::string::npos; at = text.find("\n" + prefix)) {
    text.erase(at + 1, prefix.size());
  }
  return text;
}

inline Weight weight_of(const at::Tensor& tensor) {
  return Weight::leaf("w", dtype_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor] { return tensor; });
}

inline Weights random_weights(const std::string& lines) {
  Weights weights;
  std::istringstream stream(lines);
  for (std::string name, sizes; stream >> name >> sizes;) {
    Shape shape;
    std::istringstream list(sizes);
    for (std::string size; std::getline(list, size, ',');) {
      shape.push_back(std::stoll(size));
    }
    weights[name] = weight_of(at::randn(shape, at::kFloat));
  }
  return weights;
}

struct Opened {
  const Family* family;
  Architecture architecture;
  Weights weights;
};

inline Opened open(const json& config, const Weights& stored) {
  const Family& family = find_family(config["model_type"], "config.json");
  std::set<std::string> names;
  for (const auto& [name, weight] : stored) {
    names.insert(name);
  }
  const Architecture architecture = read_architecture(family, config, "config.json", names);
  return {&family, architecture, canonical_weights(family, architecture, stored, "model")};
}

inline std::string refusal(const json& config, const Weights& stored) {
  return message_of<InputError>([&] { open(config, stored); });
}

inline Architecture architecture_of(const json& config) {
  return read_architecture(find_family(config["model_type"], "config.json"), config, "config.json");
}

// Whether the configuration that is written back says the same.
inline bool survives(const json& config) {
  const Architecture a = architecture_of(config);
  const Family& family = find_family(config["model_type"], "config.json");
  return architecture_of(json::parse(family_config(family, a).dump())) == a;
}

inline void check_round_trip(const FamilySample& sample) {
  CAPTURE(sample.what);
  const Weights stored = random_weights(sample.tensors);
  const Opened model = open(sample.config, stored);
  const Weights written = family_weights(*model.family, model.architecture, model.weights, stored);
  REQUIRE(written.size() == stored.size());
  for (const auto& [name, weight] : stored) {
    CAPTURE(name);
    REQUIRE(written.contains(name));
    CHECK(written.at(name).shape() == weight.shape());
    CHECK(at::equal(written.at(name).load(), weight.load()));
  }
  const json config_again = json::parse(family_config(*model.family, model.architecture).dump());
  const Opened again = open(config_again, family_weights(*model.family, model.architecture, model.weights));
  CHECK(again.architecture == model.architecture);
  for (const auto& [name, weight] : model.weights) {
    CAPTURE(name);
    CHECK(at::equal(again.weights.at(name).load(), weight.load()));
  }
}

}  // namespace pare
