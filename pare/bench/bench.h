#pragma once
// How fast models run, side by side: prefill, decoding, training steps and a plain read of the same weights, in rounds
// in which all take turns, so that what a machine does meanwhile happens to all of them.

#include <c10/core/Device.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/bench/machine.h"
#include "pare/checkpoint/dtype.h"
#include "pare/checkpoint/model.h"
#include "pare/support/statistics.h"

namespace pare {

struct BenchSubject {
  std::string name;  // for people; no two have the same
  Model model;
  Dtype dtype = Dtype::f32;
  bool random = false;  // its weights are, since only an Architecture was given
};

struct BenchOptions {
  at::Device device = at::kCPU;
  int64_t rounds = 9;
  int64_t prompt = 128, tokens = 32;  // what is read at once, and decoded after it
  bool train = false;
  int64_t batch = 4;  // sequences of a training step, each as long as the prompt
  uint64_t seed = 0;
};

// prefill: one forward pass over the prompt, or over an image. decode: the tokens after it, one at a time, always the
// most likely. read: a plain read of what a step of decoding reads. train: forward, backward and AdamW.
enum class Timed { prefill, decode, read, train };
constexpr Timed all_timed[] = {Timed::prefill, Timed::decode, Timed::read, Timed::train};
const char* word(Timed what);

struct BenchTurn {
  int64_t round = 0;  // from 1
  size_t model = 0;
  Timed what = Timed::prefill;
  double work = 0;  // tokens, or bytes of a read
  double seconds = 0;
};

struct BenchedModel {
  std::string name;
  Dtype dtype = Dtype::f32;
  bool engine = false;  // decoded by pare/decode/engine.h, else by the Executor
  bool image = false;   // reads images: a forward pass is over one of them
  bool random = false;  // its weights are random
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  int64_t step_bytes = 0;  // of the matrices that a step of decoding reads; 0: it decodes nothing
  std::optional<int64_t> loaded_bytes, peak_bytes;  // memory that loading it, and a round of it, took
  std::optional<int64_t> train_bytes;               // the same of a training step, at most
  std::vector<std::string> left_out;                // what is not measured, and why
};

struct Bench {
  BenchOptions options;
  int threads = 1;
  std::string instructions;  // that the engine's loops were compiled for
  std::vector<BenchedModel> models;
  std::vector<BenchTurn> turns;  // in the order in which they were taken
  std::optional<MachineUse> use;
  bool interrupted = false;  // by Ctrl-C: the turns are those before it
};

// How much is read and decoded where nobody says: what fits the smallest context. InputError, with the model's name,
// where what was asked for does not fit.
BenchOptions fitted_to(BenchOptions options, const std::vector<BenchSubject>& subjects, bool prompt_given,
                       bool tokens_given);

// Holds all models at once. After a round that does not count, Ctrl-C ends it with what is there.
Bench run_bench(const std::vector<BenchSubject>& subjects, const BenchOptions& options);

// The bytes of the matrices that one more token reads, by what the Architecture stores.
int64_t stored_step_bytes(const Architecture& architecture, Dtype dtype);

// Tokens, or bytes, a second in each round that has it.
std::vector<double> rates_of(const Bench& bench, size_t model, Timed what);

// A quotient of two speeds, taken in each round that has both, and the median of these.
struct SpeedRatio {
  Quartiles quartiles;
  std::optional<Interval> interval;  // 95 %, of the median
};
// How many times as fast as the first model; nothing where one of them has no such turn.
std::optional<SpeedRatio> ratio_to_first(const Bench& bench, size_t model, Timed what);
// The speed at which decoding reads weights, as a share of a plain read.
std::optional<SpeedRatio> share_of_read(const Bench& bench, size_t model);

// Why the machine was noisy; empty where it was quiet.
std::vector<std::string> noise_of(const Bench& bench);

std::string bench_text(const Bench& bench);
nlohmann::ordered_json bench_json(const Bench& bench);
std::string rate_text(double rate);  // "1,234", "38.3", "4.56"

}  // namespace pare
