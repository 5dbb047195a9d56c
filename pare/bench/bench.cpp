#include "pare/bench/bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <random>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/bench/plain_read.h"
#include "pare/decode/decoder.h"
#include "pare/decode/kernels.h"
#include "pare/model/executor.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/progress.h"
#include "pare/train/trainer.h"

namespace pare {

namespace {

bool continues_text(const Architecture& a) {
  try {
    check_continues_text(a, "");
    return true;
  } catch (const InputError&) {
    return false;
  }
}

class Stopwatch {
 public:
  explicit Stopwatch(at::Device device) : device_(device), begin_(now()) {}
  double seconds() const { return std::chrono::duration<double>(now() - begin_).count(); }

 private:
  // What was handed to a GPU before is done by then.
  std::chrono::steady_clock::time_point now() const {
    if (!device_.is_cpu()) {
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    }
    return std::chrono::steady_clock::now();
  }
  at::Device device_;
  std::chrono::steady_clock::time_point begin_;
};

// The same numbers for models of one vocabulary.
at::Tensor random_ids(int64_t rows, int64_t columns, int64_t below, uint64_t seed) {
  std::mt19937_64 random(seed);
  at::Tensor ids = at::empty({rows, columns}, at::kLong);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    ids.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  }
  return ids;
}

Inputs random_batch(const Architecture& a, int64_t rows, int64_t tokens, uint64_t seed) {
  if (a.embedding.patch) {
    const Patch& patch = *a.embedding.patch;
    const int64_t side = patch.image, parts = 256;
    const at::Tensor bytes = random_ids(rows, patch.channels * side * side, parts, seed);
    return {.pixels = bytes.to(at::kFloat).div(parts / 2).sub(1).reshape({rows, patch.channels, side, side})};
  }
  return {.ids = random_ids(rows, tokens, a.vocab, seed)};
}

int64_t positions_of(const Architecture& a, int64_t tokens) {
  return a.embedding.patch ? patch_positions(a) : tokens;
}

// What trains a model is asked: the task, and what a target is one of. Nothing where nobody trains it.
struct Lesson {
  TrainTask task = TrainTask::causal_lm;
  int64_t answers = 0;
  bool for_each_token = true;
};
std::optional<Lesson> lesson_of(const Architecture& a) {
  if (a.task == Task::causal_lm || a.task == Task::masked_lm) {
    return Lesson{a.task == Task::causal_lm ? TrainTask::causal_lm : TrainTask::masked_lm, a.vocab, true};
  }
  if (a.task == Task::classifier && a.head.classes) {
    return Lesson{TrainTask::classifier, *a.head.classes, false};
  }
  return std::nullopt;
}

// The type that a model of this one is trained in, if there is such training.
std::optional<TrainDtype> trained_in(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return TrainDtype::float32;
    case Dtype::bf16:
      return TrainDtype::bfloat16;
    case Dtype::f64:
      return TrainDtype::float64;
    default:
      return std::nullopt;
  }
}

// A model that is trained on the same batch again and again, and stays as it is: its rate is 0.
class Pupil {
 public:
  Pupil(const BenchSubject& subject, const Lesson& lesson, const BenchOptions& options)
      : trainer_(config_of(subject, lesson, options), subject.model, options.device) {
    const Architecture& a = subject.model.architecture;
    batch_.inputs = random_batch(a, options.batch, options.prompt, options.seed);
    const at::Tensor targets =
        random_ids(options.batch, lesson.for_each_token ? options.prompt : 1, lesson.answers, options.seed + 1);
    batch_.targets = lesson.for_each_token ? targets : targets.flatten();
    batch_.asks_all = true;
  }

  void step() {
    trainer_.begin_step({&batch_, 1}, {.rate = 0, .number = number_++});
    trainer_.finish_step();
  }

 private:
  static TrainConfig config_of(const BenchSubject& subject, const Lesson& lesson, const BenchOptions& options) {
    TrainConfig config;
    config.architecture = subject.model.architecture;
    config.task = lesson.task;
    config.dtype = *trained_in(subject.dtype);
    config.batch = options.batch;
    return config;
  }

  Trainer trainer_;
  TrainBatch batch_;
  int64_t number_ = 0;
};

// On a GPU the first steps run piece by piece, and the third is recorded.
constexpr int steps_before_timing = 3;

// A model that is loaded, and what it is asked for.
class Runner {
 public:
  Runner(const BenchSubject& subject, const BenchOptions& options)
      : options_(options), architecture_(subject.model.architecture), dtype_(subject.dtype) {
    const Arithmetic arithmetic{.dtype = scalar_type(subject.dtype), .device = options.device};
    inputs_ = random_batch(architecture_, 1, options.prompt, options.seed);
    if (continues_text(architecture_)) {
      decoder_.emplace(subject.model, arithmetic);
      dtype_ = dtype_of(decoder_->dtype());
    } else {
      executor_.emplace(subject.model, arithmetic.dtype, arithmetic.device);
      inputs_ = moved(inputs_, options.device);
    }
  }

  void prepare_read() {
    if (!decoder_ || options_.tokens == 0) {
      return;
    }
    std::vector<std::span<const std::byte>> matrices = decoder_->matrices();
    if (matrices.empty()) {
      step_bytes_ = stored_step_bytes(architecture_, dtype_);
      read_ = std::make_unique<PlainRead>(step_bytes_, options_.device, at::get_num_threads());
    } else {
      read_ = std::make_unique<PlainRead>(std::move(matrices), at::get_num_threads());
      step_bytes_ = read_->bytes();
      engine_ = true;
    }
  }
  void prepare_training(const BenchSubject& subject, const Lesson& lesson) {
    pupil_ = std::make_unique<Pupil>(subject, lesson, options_);
  }

  Dtype dtype() const { return dtype_; }  // of what is computed with, which may be wider than what was asked for
  bool reads() const { return read_ != nullptr; }
  bool trains() const { return pupil_ != nullptr; }
  bool engine() const { return engine_; }
  int64_t step_bytes() const { return step_bytes_; }

  // Prefill, and what is decoded after it.
  std::vector<BenchTurn> run() {
    const c10::InferenceMode inference;
    const double positions = static_cast<double>(positions_of(architecture_, options_.prompt));
    Stopwatch watch(options_.device);
    if (!decoder_) {
      const Outputs outputs = executor_->forward(inputs_);
      return {{.what = Timed::prefill, .work = positions, .seconds = watch.seconds()}};
    }
    const int64_t* ids = inputs_.ids.const_data_ptr<int64_t>();
    decoder_->reset();
    const std::span<const float> logits = decoder_->prefill({ids, static_cast<size_t>(options_.prompt)});
    std::vector<BenchTurn> turns = {{.what = Timed::prefill, .work = positions, .seconds = watch.seconds()}};
    if (options_.tokens > 0) {
      const Stopwatch steps(options_.device);
      int64_t id = std::ranges::max_element(logits) - logits.begin();
      for (int64_t n = 0; n < options_.tokens; ++n) {
        check_interrupt();
        id = decoder_->likeliest(id);
      }
      turns.push_back(
          {.what = Timed::decode, .work = static_cast<double>(options_.tokens), .seconds = steps.seconds()});
    }
    return turns;
  }

  // A quarter as often as tokens were decoded, which takes a quarter of the time at least.
  BenchTurn read() {
    const int64_t times = std::max<int64_t>(1, options_.tokens / 4);
    const Stopwatch watch(options_.device);
    for (int64_t n = 0; n < times; ++n) {
      check_interrupt();
      sink_ = read_->read();
    }
    return {.what = Timed::read, .work = static_cast<double>(times * read_->bytes()), .seconds = watch.seconds()};
  }

  BenchTurn train() {
    const double work = static_cast<double>(options_.batch * positions_of(architecture_, options_.prompt));
    const Stopwatch watch(options_.device);
    pupil_->step();
    return {.what = Timed::train, .work = work, .seconds = watch.seconds()};
  }
  void warm_training() {
    for (int n = 0; n < steps_before_timing; ++n) {
      pupil_->step();
    }
  }

 private:
  BenchOptions options_;
  Architecture architecture_;
  Dtype dtype_;
  Inputs inputs_;
  std::optional<Decoder> decoder_;
  std::optional<Executor> executor_;
  std::unique_ptr<PlainRead> read_;
  std::unique_ptr<Pupil> pupil_;
  int64_t step_bytes_ = 0;
  bool engine_ = false;
  volatile uint64_t sink_ = 0;  // what was read is used
};

struct Loaded {
  BenchedModel described;
  std::unique_ptr<Runner> runner;
};

// Loads a model and runs everything once: its memory, and what is slow only the first time.
Loaded load(const BenchSubject& subject, const BenchOptions& options) {
  const Architecture& a = subject.model.architecture;
  Loaded loaded{.described = {.name = subject.name, .image = a.embedding.patch.has_value(), .random = subject.random}};
  BenchedModel& described = loaded.described;
  const MemoryWatch memory(options.device);
  loaded.runner = std::make_unique<Runner>(subject, options);
  Runner& runner = *loaded.runner;
  described.loaded_bytes = memory.held();
  described.dtype = runner.dtype();
  runner.run();
  described.peak_bytes = memory.peak();
  runner.prepare_read();
  if (runner.reads()) {
    runner.read();
  } else {
    described.left_out.push_back(
        continues_text(a)
            ? "decode: its context holds no token after the prompt"
            : fmt::format("decode: {}, so it continues no text",
                          a.embedding.patch ? "it reads images" : fmt::format("its task is {}", word(a.task))));
  }
  described.parameters = count(a).total;
  described.weight_bytes = bytes_of(described.parameters, described.dtype);
  described.step_bytes = runner.step_bytes();
  described.engine = runner.engine();
  return loaded;
}

// After all models are loaded, so that none takes over memory that another one's training left.
void add_training(Loaded& loaded, const BenchSubject& subject, at::Device device) {
  const std::optional<Lesson> lesson = lesson_of(subject.model.architecture);
  if (!lesson) {
    loaded.described.left_out.push_back(
        fmt::format("train: nobody trains a model of the task {}", word(subject.model.architecture.task)));
    return;
  }
  if (!trained_in(subject.dtype)) {
    loaded.described.left_out.push_back(fmt::format("train: nobody trains in {}", word(subject.dtype)));
    return;
  }
  const MemoryWatch memory(device);
  loaded.runner->prepare_training(subject, *lesson);
  loaded.runner->warm_training();
  loaded.described.train_bytes = memory.peak();
}

}  // namespace

const char* word(Timed what) {
  switch (what) {
    case Timed::prefill:
      return "prefill";
    case Timed::decode:
      return "decode";
    case Timed::read:
      return "read";
    case Timed::train:
      return "train";
  }
  PARE_UNREACHABLE("no such measurement");
}

int64_t stored_step_bytes(const Architecture& a, Dtype dtype) {
  int64_t elements = 0;
  for (const TensorSpec& spec : tensor_table(a)) {
    const bool head = spec.id == weight_of(a.head.tied ? token_table : head_matrix);
    const int64_t times = head ? 1 : spec.id.module.block ? runs_of(a, *spec.id.module.block) : 0;
    elements += spec.shape.size() < 2 || spec.index ? 0 : times * element_count(spec.shape);
  }
  return bytes_of(elements, dtype);
}

BenchOptions fitted_to(BenchOptions options, const std::vector<BenchSubject>& subjects, bool prompt_given,
                       bool tokens_given) {
  int64_t context = std::numeric_limits<int64_t>::max();  // the smallest of those that decode
  for (const BenchSubject& subject : subjects) {
    const Architecture& a = subject.model.architecture;
    if (!a.embedding.patch && continues_text(a)) {
      context = std::min(context, a.context);
    }
  }
  options.tokens =
      tokens_given ? options.tokens : std::min(options.tokens, context < 2 ? 0 : std::max<int64_t>(1, context / 4));
  for (const BenchSubject& subject : subjects) {
    const Architecture& a = subject.model.architecture;
    if (a.embedding.patch) {
      continue;
    }
    const int64_t after = continues_text(a) ? options.tokens : 0;
    if (!prompt_given) {
      options.prompt = std::max<int64_t>(1, std::min(options.prompt, a.context - after));
    }
    refuse_if(options.prompt + after > a.context,
              "{} reads at most {} tokens, but {} are asked for: {} at once{}. Give smaller ones: --prompt, --tokens",
              quote(subject.name), a.context, options.prompt + after, options.prompt,
              after > 0 ? fmt::format(" and {} after them", after) : "");
  }
  return options;
}

Bench run_bench(const std::vector<BenchSubject>& subjects, const BenchOptions& options) {
  PARE_CHECK(!subjects.empty() && options.rounds > 0, "something to measure");
  Bench bench{.options = options, .threads = at::get_num_threads(), .instructions = kernel_target()};
  std::vector<std::unique_ptr<Runner>> runners;
  {
    Progress progress("loading", subjects.size() * (options.train ? 2 : 1));
    std::vector<Loaded> all;
    for (const BenchSubject& subject : subjects) {
      all.push_back(load(subject, options));
      progress.advance();
    }
    for (size_t n = 0; options.train && n < all.size(); ++n) {
      add_training(all[n], subjects[n], options.device);
      progress.advance();
    }
    for (Loaded& loaded : all) {
      bench.models.push_back(std::move(loaded.described));
      runners.push_back(std::move(loaded.runner));
    }
  }
  const std::optional<ProcessorTime> begin = processor_time();
  try {
    Progress progress("measuring", static_cast<uint64_t>(options.rounds) * subjects.size());
    for (int64_t round = 1; round <= options.rounds; ++round) {
      const auto take = [&](size_t model, BenchTurn turn) {
        turn.round = round;
        turn.model = model;
        bench.turns.push_back(turn);
      };
      for (size_t model = 0; model < runners.size(); ++model) {
        for (const BenchTurn& turn : runners[model]->run()) {
          take(model, turn);
        }
        if (runners[model]->reads()) {
          take(model, runners[model]->read());
        }
        check_interrupt();
      }
      for (size_t model = 0; model < runners.size(); ++model) {
        if (runners[model]->trains()) {
          take(model, runners[model]->train());
        }
        progress.advance();
      }
    }
  } catch (const Interrupted&) {
    if (bench.turns.empty()) {
      throw;
    }
    bench.interrupted = true;
  }
  bench.use = use_between(begin, processor_time());
  return bench;
}

}  // namespace pare
