#include "pare/train/batches.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <numeric>

#include "pare/support/error.h"
#include "pare/support/sha256.h"
#include "pare/train/sequences.h"

namespace pare {

std::shared_ptr<const Sequences> open_sequences(const TrainConfig& config) {
  if (is_generated(config.task)) {
    return generated_sequences(config);
  }
  if (config.task != TrainTask::classifier) {
    return text_sequences(config);
  }
  return config.architecture.embedding.patch ? image_sequences(config) : labelled_sequences(config);
}

std::string data_key(const TrainConfig& config) {
  const nlohmann::ordered_json json = train_config_to_json(config);
  const Architecture& a = config.architecture;
  nlohmann::ordered_json key = {json["task"], json["data"], a.vocab, a.head.classes.value_or(0)};
  if (a.embedding.patch) {  // in which patches an image is read is the model's business
    key.push_back({a.embedding.patch->channels, a.embedding.patch->image});
  } else {
    key.push_back(context_of(config));
  }
  return key.dump();
}

std::vector<int32_t> draw_order(int64_t sequences, int64_t count, uint64_t seed) {
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(count));
  for (uint64_t epoch = 0; std::ssize(order) < count; ++epoch) {
    at::Generator generator = at::detail::createCPUGenerator(mixed(seed, epoch));
    const at::Tensor drawn = at::randperm(sequences, generator, at::kLong);
    const int64_t* numbers = drawn.const_data_ptr<int64_t>();
    const int64_t taken = std::min(sequences, count - std::ssize(order));
    for (int64_t i = 0; i < taken; ++i) {
      order.push_back(static_cast<int32_t>(numbers[i]));
    }
  }
  return order;
}

Batches::Batches(std::shared_ptr<const Sequences> sequences, const TrainConfig& config)
    : sequences_(std::move(sequences)),
      batch_(config.batch),
      per_step_(config.batch * config.accumulate),
      validation_sequences_(sequences_->validation()),
      context_(context_of(config)),
      seed_(config.data.seed),
      task_(config.task) {
  const int64_t draws = per_step_ * config.steps;
  if (sequences_->training() > 0) {
    order_ = draw_order(sequences_->training(), draws, static_cast<uint64_t>(config.data.seed));
  }
  if (config.evaluate.batches > 0) {
    validation_sequences_ = std::min(validation_sequences_, config.evaluate.batches * config.batch);
  }
}

TrainBatch Batches::training(int64_t number) const {
  std::vector<int64_t> numbers(static_cast<size_t>(batch_));
  std::iota(numbers.begin(), numbers.end(), number * batch_);
  if (!order_.empty()) {
    for (int64_t& drawn : numbers) {
      drawn = order_.at(drawn);
    }
  }
  return sequences_->batch(false, numbers, number * batch_);
}

int64_t Batches::positions(const TrainBatch& batch) const {
  return batch.inputs.ids.defined() ? batch.inputs.ids.numel() : batch_size(batch.inputs) * context_;
}

int64_t Batches::validations() const {
  return (validation_sequences_ + batch_ - 1) / batch_;
}

TrainBatch Batches::validation(int64_t number) const {
  std::vector<int64_t> numbers(static_cast<size_t>(std::min(batch_, validation_sequences_ - number * batch_)));
  std::iota(numbers.begin(), numbers.end(), number * batch_);
  return sequences_->batch(true, numbers, number * batch_);
}

nlohmann::ordered_json Batches::manifest() const {
  static_assert(std::endian::native == std::endian::little, "the order is stored little-endian");
  nlohmann::ordered_json json;
  json["task"] = word(task_);
  if (sequences_->images(false) == nullptr) {
    json["context"] = context_;
  }
  json["sequences_per_step"] = per_step_;
  json["data"] = sequences_->manifest();
  json["training_sequences"] = sequences_->training();
  json["validation_sequences"] = validation_sequences_;
  json["order"] = {{"seed", seed_}, {"draws", order_.size()}};
  if (!order_.empty()) {
    const std::string_view bytes(reinterpret_cast<const char*>(order_.data()), order_.size() * sizeof(int32_t));
    json["order"]["file"] = "order.i32";
    json["order"]["sha256"] = sha256_of(bytes);
  }
  return json;
}

}  // namespace pare
