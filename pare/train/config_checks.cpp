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
  problems.add_if(c.distillation.weight > 1, "distillation.weight: {} is more than 1", c.distillation.weight);
  problems.add_if(c.optimiser.betas.size() != 2, "optimiser.betas: {} numbers, expected two", c.optimiser.betas.size());
  problems.add_if(c.optimiser.min_lr > c.optimiser.lr, "optimiser.min_lr: {} is more than optimiser.lr, {}",
                  c.optimiser.min_lr, c.optimiser.lr);
  constexpr int64_t most_sequences = int64_t{1} << 31;
  problems.add_if(c.batch > most_sequences / std::max<int64_t>(c.accumulate, 1) / std::max<int64_t>(c.steps, 1),
                  "steps: more than 2^31 sequences in all, whose order could not be stored");
}

bool is_of_images(DataFormat format) {
  return format == DataFormat::idx || format == DataFormat::cifar10 || format == DataFormat::cifar100 ||
         format == DataFormat::folders;
}

void check_samples(const TrainConfig& c, Problems& problems) {
  const DataConfig& d = c.data;
  problems.add_if(c.task != TrainTask::causal_lm, "data.samples: only a causal_lm draws text, and the task is {}",
                  word(c.task));
  problems.add_if(d.samples.model.empty() && c.from.empty(),
                  "data.samples.model: name the folder of the model that draws them, or a model to start from (from)");
  problems.add_if(!d.train.empty() || !d.shards.empty(),
                  "data.samples: they are drawn instead of what data.train or data.shards name: leave those keys out, "
                  "or data.samples");
}

// Which keys of the data go with what is learned.
void check_text_data(const TrainConfig& c, Problems& problems) {
  const DataConfig& d = c.data;
  problems.add_if(is_of_images(d.format),
                  "data.format: {} are images, and the Architecture reads tokens (it has no embedding.patch)",
                  word(d.format));
  problems.add_if(!d.tokenizer.empty() && d.format != DataFormat::bytes,
                  "data.tokenizer: files of {} hold token ids already", word(d.format));
  if (d.samples.count > 0) {
    check_samples(c, problems);
    return;
  }
  problems.add_if(d.samples != SamplesConfig(), "data.samples.count: how many sequences are to be drawn is not said");
  if (d.shards.empty()) {
    problems.add_if(d.train.empty(), "data.train: {} needs text files, or data.shards", word(c.task));
    return;
  }
  problems.add_if(c.task == TrainTask::classifier,
                  "data.shards: a classifier reads lines with labels, of which no shards are made");
  problems.add_if(!d.train.empty() || !d.validation.empty() || d.format != DataFormat::bytes,
                  "data.shards: they are read instead of data.train and data.validation, and know their format: leave "
                  "those keys out");
}

void check_image_data(const TrainConfig& c, Problems& problems) {
  const DataConfig& d = c.data;
  problems.add_if(!is_of_images(d.format),
                  "data.format: {} is text, and the Architecture reads images: idx, cifar10, cifar100 or folders",
                  word(d.format));
  problems.add_if(d.train.empty(), "data.train: images are needed to learn from");
  problems.add_if(!d.tokenizer.empty() || !d.shards.empty(), "data.{}: images have no tokens",
                  d.tokenizer.empty() ? "shards" : "tokenizer");
  const size_t channels = static_cast<size_t>(c.architecture.embedding.patch->channels);
  for (const auto& [key, values] : {std::pair("mean", &d.mean), {"deviation", &d.deviation}}) {
    problems.add_if(values->size() != 1 && values->size() != channels,
                    "data.{}: {} numbers, expected one, or one for each of {} channels", key, values->size(), channels);
  }
}

void check_generated_data(const TrainConfig& c, Problems& problems) {
  const int64_t needed = c.task == TrainTask::addition ? 12 : c.data.symbols + 1;
  problems.add_if(c.architecture.vocab < needed, "architecture.vocab: {} is less than the {} tokens of {}",
                  c.architecture.vocab, needed, word(c.task));
  if (!c.data.train.empty() || !c.data.validation.empty() || !c.data.tokenizer.empty() || !c.data.shards.empty()) {
    problems.add(fmt::format("data.train: {} is a generated task, which reads no files", word(c.task)));
  }
}

// What the task asks of the Architecture.
void check_task(const TrainConfig& c, Problems& problems) {
  const Architecture& a = c.architecture;
  const auto expect = [&](Task task) {
    problems.add_if(a.task != task, "task: {} trains an Architecture of the task {}, this one's is {}", word(c.task),
                    word(task), word(a.task));
  };
  const bool masked = c.task == TrainTask::masked_lm;
  expect(masked ? Task::masked_lm : c.task == TrainTask::classifier ? Task::classifier : Task::causal_lm);
  const auto looks_ahead = [](const Block& block) { return block.attention.mask == Mask::full; };
  problems.add_if(a.task == Task::causal_lm && std::ranges::any_of(a.blocks, looks_ahead),
                  "architecture: a causal_lm whose attention sees later tokens would be told the answer: mask is full");
  problems.add_if(masked && !c.data.mask_token,
                  "data.mask_token: masked_lm needs the token that stands for a masked one");
  if (masked && c.data.mask_token && (*c.data.mask_token < 0 || *c.data.mask_token >= a.vocab)) {
    problems.add(fmt::format("data.mask_token: {} is not a token of a vocabulary of {}", *c.data.mask_token, a.vocab));
  }
  const bool fixed = is_generated(c.task) || a.embedding.patch;
  is_generated(c.task) ? check_generated_data(c, problems)
  : a.embedding.patch  ? check_image_data(c, problems)
                       : check_text_data(c, problems);
  problems.add_if(fixed && c.context != 0 && c.context != context_of(c),
                  "context: {}, but {} has sequences of {} tokens: leave the key out", c.context,
                  is_generated(c.task) ? word(c.task) : "an image model", context_of(c));
  problems.add_if(context_of(c) > a.context, "context: sequences of {} tokens, but the Architecture's context is {}",
                  context_of(c), a.context);
}

void check_conditioning(const TrainConfig& config, Problems& problems) {
  problems.add_if(config.conditioning.weight > 0 && ConditioningLoss(last_architecture(config), at::kCPU).empty(),
                  "conditioning.weight: eliminate_projection will remove no matrix of the model that the run ends "
                  "with, so none has to be inverted (pare audit says what stands in the way)");
  problems.add_if(config.conditioning.weight > 0 && config.shard == Shard::everything,
                  "shard: everything leaves no rank with a whole matrix, and conditioning.weight measures those of all "
                  "blocks at once: shard=optimiser");
}

void check_morph(const TrainConfig& config, Problems& problems) {
  const MorphConfig& morph = config.morph;
  const int64_t steps = config.steps;
  problems.add_if(morph.to == config.architecture,
                  "morph.to: the model is that already: name what goes, such as morph.to.norms=none");
  problems.add_if(!morph.to && morph.steps != 0,
                  "morph.to: nothing is there to become: name an Architecture, or what changes (morph.to.norms=none)");
  problems.add_if(morph.to && (morph.steps < 1 || morph.steps > steps),
                  "morph.steps: {} is not between 1 and steps, {}: a run ends with the new Architecture alone",
                  morph.steps, steps);
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
