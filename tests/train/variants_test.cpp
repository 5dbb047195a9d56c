// Every variant of the papers trains: from its own start, with the settings that the documentation names.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>

#include <cstdlib>

#include "pare/support/files.h"
#include "pare/train/initialise.h"
#include "pare/train/trainer.h"
#include "tests/train/variants.h"

namespace pare::test {

TEST_CASE("a few steps lower the loss of every variant") {
  for (const Variant& variant : paper_variants()) {
    CAPTURE(variant.name);
    const TrainConfig config = config_of(variant);
    const Batches batches(open_sequences(config), config);
    const std::vector<TrainBatch> some = {batches.training(0), batches.training(1)};
    Trainer trainer(config, initial_model(config, some[0].inputs), at::kCPU);
    const double first = trainer.measure(some).loss;
    for (int step = 0; step < 40; ++step) {
      trainer.begin_step(some, {3e-3});
    }
    const double last = trainer.measure(some).loss;
    CHECK(first > 2);  // of 12 symbols: log 12 is 2.48
    CHECK(last < first - 0.15);
  }
}

TEST_CASE("without skips, shaped attention starts as one that looks at no other token, whatever is the identity") {
  int seen = 0;
  for (const Variant& variant : paper_variants()) {
    if (!variant.name.ends_with("shaped")) {
      continue;
    }
    CAPTURE(variant.name);
    ++seen;
    const TrainConfig config = config_of(variant);
    const Batches batches(open_sequences(config), config);
    Inputs inputs = batches.training(0).inputs;
    const Trainer trainer(config, initial_model(config, inputs), at::kCPU);
    const at::NoGradGuard no_grad;
    const at::Tensor before = trainer.executor().forward(inputs).logits;
    inputs.ids = inputs.ids.clone();
    at::Tensor first = inputs.ids.select(1, 0);
    first.copy_((first + 1) % 12);
    const at::Tensor moved = (trainer.executor().forward(inputs).logits - before).abs();
    CHECK(moved.select(1, 0).max().item<double>() > 1e-2);
    CHECK(moved.narrow(1, 1, moved.size(1) - 1).max().item<double>() < 1e-5);
  }
  CHECK(seen == 4);
}

TEST_CASE("the documentation names the settings of every variant") {
  const std::string page = read_text_file("docs/training.md", 1 << 20);
  for (const Variant& variant : paper_variants()) {
    CAPTURE(variant.name);
    CHECK(page.find("| " + variant.name + " |") != std::string::npos);
    for (const std::string& setting : variant.settings) {
      CAPTURE(setting);
      const std::string all = "architecture.", blocks = "blocks.*.";
      std::string shown = setting.starts_with(all) ? setting.substr(all.size()) : setting;
      shown = shown.starts_with(blocks) ? shown.substr(blocks.size()) : shown;
      CHECK(page.find("`" + shown + "`") != std::string::npos);
    }
  }
}

}  // namespace pare::test
