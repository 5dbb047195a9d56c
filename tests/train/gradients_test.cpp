// Gradients against finite differences in float64, of every tensor of every variant, through the loss that is trained.

#include <cstdlib>
#include <filesystem>

#include "pare/support/files.h"
#include "pare/support/json.h"
#include "tests/model/architectures.h"
#include "tests/train/gradient_check.h"
#include "tests/train/variants.h"

namespace pare::test {

namespace {

std::vector<std::pair<std::string, std::string>> stored_architectures() {
  const char* place = std::getenv("PARE_SHARED");
  const std::filesystem::path folder = std::filesystem::path(place ? place : "../shared") / "architectures";
  std::vector<std::pair<std::string, std::string>> list;
  if (!std::filesystem::is_directory(folder)) {
    MESSAGE("skipped: there is no " << folder.string());
    return list;
  }
  for (const std::filesystem::directory_entry& entry : entries_of(folder)) {
    list.emplace_back(entry.path().filename().string(), read_text_file(entry.path(), 1 << 20));
  }
  return list;
}

void check_variant(TrainConfig config) {
  const Architecture& a = config.architecture;
  config.dtype = TrainDtype::float64;
  config.optimiser.clip = 0;
  Trainer trainer(config, {a, as_weights(calm_tensors(a))}, at::kCPU);
  check_gradients(trainer, {random_batch(a)});
}

}  // namespace

TEST_CASE("gradients of every variant of the papers are finite differences") {
  for (const Variant& variant : paper_variants()) {
    CAPTURE(variant.name);
    check_variant(config_of(variant));
  }
}

TEST_CASE("gradients of everything the schema can say are finite differences") {
  for (const auto& [name, text] : every_architecture()) {
    const Architecture a = parse(text);
    if (a.task == Task::encoder || a.head.sequence) {  // no answer, or a second one that no loss here asks for
      continue;
    }
    CAPTURE(name);
    check_variant({.architecture = a});
  }
}

TEST_CASE("gradients of the stored architectures are finite differences") {
  for (const auto& [name, text] : stored_architectures()) {
    CAPTURE(name);
    check_variant({.architecture = parse(text)});
  }
}

// What is left out is decided by seed and step, and stays the same while a weight is moved: the masked function has
// gradients like any other.
TEST_CASE("gradients under dropout are finite differences of the same mask") {
  for (const Variant& variant : paper_variants()) {
    if (variant.name != "baseline" && variant.name != "skipless, shaped" && variant.name != "collapsed QK and VO") {
      continue;
    }
    CAPTURE(variant.name);
    TrainConfig config = config_of(variant);
    config.dropout = {.embedding = 0.2, .attention = 0.3, .residual = 0.1};
    check_variant(config);
  }
}

}  // namespace pare::test
