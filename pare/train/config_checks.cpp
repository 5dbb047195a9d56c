// What the keys of a configuration ask of each other, and of what is trained.

#include "pare/train/config.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "pare/train/conditioning.h"

namespace pare {

namespace {

// What keys ask of each other.
void check_together(const TrainConfig& c, Problems& problems) {
  if (c.distillation.weight > 1) {
    problems.add(fmt::format("distillation.weight: {} is more than 1", c.distillation.weight));
  }
  if (c.optimiser.betas.size() != 2) {
    problems.add(fmt::format("optimiser.betas: {} numbers, expected two", c.optimiser.betas.size()));
  }
  if (c.optimiser.min_lr > c.optimiser.lr) {
    problems.add(fmt::format("optimiser.min_lr: {} is more than optimiser.lr, {}", c.optimiser.min_lr, c.optimiser.lr));
  }
  constexpr int64_t most_sequences = int64_t{1} << 31;
  if (c.batch > most_sequences / std::max<int64_t>(c.accumulate, 1) / std::max<int64_t>(c.steps, 1)) {
    problems.add("steps: more than 2^31 sequences in all, whose order could not be stored");
  }
}

bool is_of_images(DataFormat format) {
  return format == DataFormat::idx || format == DataFormat::cifar10 || format == DataFormat::cifar100 ||
         format == DataFormat::folders;
}

void check_samples(const TrainConfig& c, Problems& problems) {
  const DataConfig& d = c.data;
  if (c.task != TrainTask::causal_lm) {
    problems.add(fmt::format("data.samples: only a causal_lm draws text, and the task is {}", word(c.task)));
  }
  if (d.samples.model.empty() && c.from.empty()) {
    problems.add("data.samples.model: name the folder of the model that draws them, or a model to start from (from)");
  }
  if (!d.train.empty() || !d.shards.empty()) {
    problems.add(
        "data.samples: they are drawn instead of what data.train or data.shards name: leave those keys out, or "
        "data.samples");
  }
}

// Which keys of the data go with what is learned.
void check_text_data(const TrainConfig& c, Problems& problems) {
  const DataConfig& d = c.data;
  if (is_of_images(d.format)) {
    problems.add(
        fmt::format("data.format: {} are images, and the Architecture reads tokens (it has no "
                    "embedding.patch)",
                    word(d.format)));
  }
  if (!d.tokenizer.empty() && d.format != DataFormat::bytes) {
    problems.add(fmt::format("data.tokenizer: files of {} hold token ids already", word(d.format)));
  }
  if (d.samples.count > 0) {
    check_samples(c, problems);
    return;
  }
  if (d.samples != SamplesConfig()) {
    problems.add("data.samples.count: how many sequences are to be drawn is not said");
  }
  if (d.shards.empty()) {
    if (d.train.empty()) {
      problems.add(fmt::format("data.train: {} needs text files, or data.shards", word(c.task)));
    }
    return;
  }
  if (c.task == TrainTask::classifier) {
    problems.add("data.shards: a classifier reads lines with labels, of which no shards are made");
  }
  if (!d.train.empty() || !d.validation.empty() || d.format != DataFormat::bytes) {
    problems.add(
        "data.shards: they are read instead of data.train and data.validation, and know their format: leave "
        "those keys out");
  }
}

void check_image_data(const TrainConfig& c, Problems& problems) {
  const DataConfig& d = c.data;
  if (!is_of_images(d.format)) {
    problems.add(
        fmt::format("data.format: {} is text, and the Architecture reads images: idx, cifar10, cifar100 or "
                    "folders",
                    word(d.format)));
  }
  if (d.train.empty()) {
    problems.add("data.train: images are needed to learn from");
  }
  if (!d.tokenizer.empty() || !d.shards.empty()) {
    problems.add(fmt::format("data.{}: images have no tokens", d.tokenizer.empty() ? "shards" : "tokenizer"));
  }
  const size_t channels = static_cast<size_t>(c.architecture.embedding.patch->channels);
  for (const auto& [key, values] : {std::pair("mean", &d.mean), {"deviation", &d.deviation}}) {
    if (values->size() != 1 && values->size() != channels) {
      problems.add(fmt::format("data.{}: {} numbers, expected one, or one for each of {} channels", key, values->size(),
                               channels));
    }
  }
}

void check_generated_data(const TrainConfig& c, Problems& problems) {
  const int64_t needed = c.task == TrainTask::addition ? 12 : c.data.symbols + 1;
  if (c.architecture.vocab < needed) {
    problems.add(fmt::format("architecture.vocab: {} is less than the {} tokens of {}", c.architecture.vocab, needed,
                             word(c.task)));
  }
  if (!c.data.train.empty() || !c.data.validation.empty() || !c.data.tokenizer.empty() || !c.data.shards.empty()) {
    problems.add(fmt::format("data.train: {} is a generated task, which reads no files", word(c.task)));
  }
}

// What the task asks of the Architecture.
void check_task(const TrainConfig& c, Problems& problems) {
  const Architecture& a = c.architecture;
  const auto expect = [&](Task task) {
    if (a.task != task) {
      problems.add(fmt::format("task: {} trains an Architecture of the task {}, this one's is {}", word(c.task),
                               word(task), word(a.task)));
    }
  };
  const bool masked = c.task == TrainTask::masked_lm;
  expect(masked ? Task::masked_lm : c.task == TrainTask::classifier ? Task::classifier : Task::causal_lm);
  const auto looks_ahead = [](const Block& block) { return block.attention.mask == Mask::full; };
  if (a.task == Task::causal_lm && std::ranges::any_of(a.blocks, looks_ahead)) {
    problems.add("architecture: a causal_lm whose attention sees later tokens would be told the answer: mask is full");
  }
  if (masked && !c.data.mask_token) {
    problems.add("data.mask_token: masked_lm needs the token that stands for a masked one");
  }
  if (masked && c.data.mask_token && (*c.data.mask_token < 0 || *c.data.mask_token >= a.vocab)) {
    problems.add(fmt::format("data.mask_token: {} is not a token of a vocabulary of {}", *c.data.mask_token, a.vocab));
  }
  const bool fixed = is_generated(c.task) || a.embedding.patch;
  is_generated(c.task) ? check_generated_data(c, problems)
  : a.embedding.patch  ? check_image_data(c, problems)
                       : check_text_data(c, problems);
  if (fixed && c.context != 0 && c.context != context_of(c)) {
    problems.add(fmt::format("context: {}, but {} has sequences of {} tokens: leave the key out", c.context,
                             is_generated(c.task) ? word(c.task) : "an image model", context_of(c)));
  }
  if (context_of(c) > a.context) {
    problems.add(
        fmt::format("context: sequences of {} tokens, but the Architecture's context is {}", context_of(c), a.context));
  }
}

void check_conditioning(const TrainConfig& config, Problems& problems) {
  if (config.conditioning.weight > 0 && ConditioningLoss(last_architecture(config), at::kCPU).empty()) {
    problems.add(
        "conditioning.weight: eliminate_projection will remove no matrix of the model that the run ends with, so "
        "none has to be inverted (pare audit says what stands in the way)");
  }
}

void check_morph(const TrainConfig& config, Problems& problems) {
  const MorphConfig& morph = config.morph;
  const int64_t steps = config.steps;
  if (morph.to == config.architecture) {
    problems.add("morph.to: the model is that already: name what goes, such as morph.to.norms=none");
  }
  if (!morph.to && morph.steps != 0) {
    problems.add("morph.to: nothing is there to become: name an Architecture, or what changes (morph.to.norms=none)");
  }
  if (morph.to && (morph.steps < 1 || morph.steps > steps)) {
    problems.add(
        fmt::format("morph.steps: {} is not between 1 and steps, {}: a run ends with the new Architecture alone",
                    morph.steps, steps));
  }
}

}  // namespace

void check_config(const TrainConfig& config, Problems& problems) {
  check_together(config, problems);
  check_morph(config, problems);
  check_conditioning(config, problems);
  if (problems.empty()) {
    check_task(config, problems);
  }
}

}  // namespace pare
