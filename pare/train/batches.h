#pragma once
// What a run sees, and in which order. Nothing here depends on the model, so that every variant that is given the same
// data sees the same batches.

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pare/model/inputs.h"
#include "pare/train/config.h"

namespace pare {

// Images to learn from, as bytes: one tensor that fits where the model is, and a batch is some rows of it, made numbers
// there.
struct ImageData {
  at::Tensor pixels;  // uint8 [images, channels, side, side]
  at::Tensor labels;  // int64 [images]
};

// (byte / 255 - mean) / deviation, in float32 on the device of the pixels. One number, or one for each channel.
at::Tensor normalised_pixels(const at::Tensor& pixels, const std::vector<double>& mean,
                             const std::vector<double>& deviation);

constexpr int64_t no_target = -100;

struct TrainBatch {
  Inputs inputs;
  at::Tensor targets;     // int64, of each token or each sequence; no_target where nothing is asked
  bool asks_all = false;  // known when it is made: no no_target is among them, and nobody looks for one
};

// Sequences by number: those of training in any order and again in later epochs, those of validation in their own.
class Sequences {
 public:
  virtual ~Sequences() = default;
  virtual int64_t training() const = 0;  // how many there are; 0: as many as one asks for, none twice
  virtual int64_t validation() const = 0;
  // `draw`: how many sequences were drawn before each of them, for what is drawn anew each time it is seen.
  virtual TrainBatch batch(bool of_validation, const std::vector<int64_t>& numbers, int64_t draw) const = 0;
  virtual nlohmann::ordered_json manifest() const = 0;  // what is read, with hashes
  // False: no sequence of training has this token. True, too, where nobody counted.
  virtual bool may_learn(int64_t /*token*/) const { return true; }
  // Images as they are held, for who wants all of them on a device; null where there are none.
  virtual const ImageData* images(bool /*of_validation*/) const { return nullptr; }
};

// InputError where the data is missing, empty, too short, or has tokens that the Architecture has not.
std::shared_ptr<const Sequences> open_sequences(const TrainConfig& config);
// All of a configuration that `open_sequences` reads: the same text, the same sequences.
std::string data_key(const TrainConfig& config);

// The numbers of the sequences that `count` draws see: each epoch is a permutation of its own, from the seed.
std::vector<int32_t> draw_order(int64_t sequences, int64_t count, uint64_t seed);

class Batches {
 public:
  // In the order that the seed of the data gives: a run that goes on draws it again.
  Batches(std::shared_ptr<const Sequences> sequences, const TrainConfig& config);
  TrainBatch training(int64_t number) const;         // `accumulate` of them are one step
  int64_t positions(const TrainBatch& batch) const;  // tokens or patches in it
  int64_t validations() const;                       // batches to measure on
  TrainBatch validation(int64_t number) const;

  const std::vector<int32_t>& order() const { return order_; }
  bool may_learn(int64_t token) const { return sequences_->may_learn(token); }
  nlohmann::ordered_json manifest() const;  // data.json

 private:
  std::shared_ptr<const Sequences> sequences_;
  std::vector<int32_t> order_;
  int64_t batch_, per_step_, validation_sequences_, context_, seed_;
  TrainTask task_;
};

}  // namespace pare
