// What of a configuration a run makes use of.

#include <fmt/format.h>

#include "pare/train/config.h"

namespace pare {

std::vector<std::string> paths_read(const TrainConfig& config) {
  const DataConfig& data = config.data;
  std::vector<std::string> paths = data.train;
  paths.insert(paths.end(), data.validation.begin(), data.validation.end());
  for (const std::string& path : {data.tokenizer, data.shards, data.samples.model, config.from, config.teacher}) {
    if (!path.empty()) {
      paths.push_back(path);
    }
  }
  return paths;
}

std::vector<std::string> keys_without_effect(const TrainConfig& config) {
  const DataConfig& data = config.data;
  const DataConfig none;
  const InitConfig& init = config.init;
  const InitConfig usual;
  const bool masked = config.task == TrainTask::masked_lm, generated = is_generated(config.task);
  const bool images = config.architecture.embedding.patch.has_value(), taught = !config.teacher.empty();
  const bool sized = init.recipe == InitRecipe::norm_free || init.recipe == InitRecipe::orthogonal;
  const bool apart = generated || !data.validation.empty() || !data.shards.empty();
  std::vector<std::string> list;
  // A key that has another value than it has by itself.
  const auto note = [&](const char* key, bool is_set, bool is_used, const char* why) {
    if (is_set && !is_used) {
      list.push_back(fmt::format("{} changes nothing here: {}", key, why));
    }
  };
  note("data.mask_share", data.mask_share != none.mask_share, masked, "only masked_lm masks");
  note("data.mask_token", data.mask_token.has_value(), masked, "only masked_lm masks");
  note("data.length", data.length != none.length, generated, "it is of generated tasks");
  note("data.symbols", data.symbols != none.symbols, generated && config.task != TrainTask::addition,
       "it is of sorting and copying");
  note("data.mean", data.mean != none.mean, images, "it is of images");
  note("data.deviation", data.deviation != none.deviation, images, "it is of images");
  note("data.validation_share", data.validation_share != none.validation_share, !apart,
       "what is measured on is there already");
  note("init.deviation", init.deviation != usual.deviation, init.recipe == InitRecipe::gpt2,
       "it is of init.recipe=gpt2");
  note("init.key", init.key != usual.key, init.recipe == InitRecipe::gpt2, "it is of init.recipe=gpt2");
  note("init.embedding", init.embedding != usual.embedding, sized, "it is of init.recipe=norm_free and orthogonal");
  note("distillation.weight", config.distillation.weight != DistillationConfig().weight, taught, "there is no teacher");
  note("distillation.temperature", config.distillation.temperature != DistillationConfig().temperature, taught,
       "there is no teacher");
  note("morph.evenness", config.morph.evenness != MorphConfig().evenness, config.morph.to.has_value(),
       "there is no morph.to");
  if (config.optimiser.warmup >= config.steps) {
    list.push_back(
        fmt::format("the learning rate never reaches optimiser.lr={:g}: optimiser.warmup={} is not less than steps={}",
                    config.optimiser.lr, config.optimiser.warmup, config.steps));
  }
  return list;
}

}  // namespace pare
