// Paper 1's speed: one sequence, token by token, with a matrix and without it. Decoding reads every weight once a
// token, so what is not there is not waited for.

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "pare/arch/presets.h"
#include "pare/bench/bench.h"
#include "pare/claims/claim.h"
#include "pare/model/device.h"
#include "pare/model/init.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// How far a measured ratio may lie from the claimed one.
constexpr double margin = 0.03;

struct Removal {
  std::string name, preset;
  std::optional<double> claimed;
  std::function<void(Architecture&)> remove;
  bool whole = false;  // on a CPU too: what it saves is one layer's
};

void each_attention(Architecture& a, const std::function<void(Attention&)>& change) {
  for (Block& block : a.blocks) {
    change(block.attention);
  }
}

std::vector<Removal> removals() {
  const auto without_query = [](Architecture& a) { each_attention(a, [](Attention& t) { t.query = Identity(); }); };
  const auto without_query_and_output = [](Architecture& a) {
    each_attention(a, [](Attention& t) { t.query = t.output = Identity(); });
  };
  return {{"skipless Mistral-7B: Q, P", "skipless-mistral-7b", 1.17, without_query_and_output},
          {"skipless Pythia-6.9B: Q, P", "skipless-pythia-6.9b", 1.19, without_query_and_output},
          {"Mistral-7B: Q (W_Q = I)", "mistral-7b", std::nullopt, without_query},
          {"GPT-2: identity blocks", "gpt2", std::nullopt,
           [](Architecture& a) { each_attention(a, [](Attention& t) { t.key = t.value = Shrunk(); }); }, true},
          {"Qwen2.5-0.5B: first layer", "qwen2.5-0.5b", std::nullopt,
           [](Architecture& a) { a.first_layer = FirstLayer::table; }, true}};
}

// An eighth of a model that does not fit: of layers, and of the vocabulary, so that the head has its share.
constexpr int64_t part_on_cpu = 8;
void shorten(Architecture& a) {
  a.blocks.resize(a.blocks.size() / part_on_cpu);
  a.vocab /= part_on_cpu;
}

// So small that nothing is said of speed: two layers that are narrow.
void make_tiny(Architecture& a) {
  a.blocks.resize(2);
  a.width = 256;
  a.vocab = 512;
  for (Block& block : a.blocks) {
    Attention& t = block.attention;
    t.heads = a.width / t.head_width;
    t.kv_heads = t.kv_heads < t.heads ? 1 : t.heads;
    std::get<DenseMlp>(block.mlp->kind).width = 2 * a.width;
  }
}

struct Timing {
  const Removal* removal = nullptr;
  BenchedModel with, without;
  double speed_with = 0, speed_without = 0;  // tokens a second
  SpeedRatio ratio;
  std::vector<std::string> noise;

  double of_bytes() const { return static_cast<double>(with.step_bytes) / static_cast<double>(without.step_bytes); }
  // Its ends, or what there is where rounds are too few to say.
  Interval interval() const { return ratio.interval.value_or(Interval{ratio.quartiles.lower, ratio.quartiles.upper}); }
};

Timing timed(const Removal& removal, const Trial& trial) {
  const bool smoke = trial.scale == ClaimScale::smoke;
  const at::Device device = find_device(trial.device);
  const auto subject = [&](const std::string& name, bool removed) {
    Architecture a = *find_preset(removal.preset);
    smoke ? make_tiny(a) : device.is_cpu() && !removal.whole ? shorten(a) : void();
    removed ? removal.remove(a) : void();
    return BenchSubject{name, {a, random_weights(a, trial.seed, Dtype::bf16, Draw::plain)}, Dtype::bf16};
  };
  const BenchOptions options{
      .device = device, .rounds = smoke ? 1 : 15, .prompt = 8, .tokens = smoke ? 2 : 16, .seed = trial.seed};
  const Bench bench = run_bench({subject("with", false), subject("without", true)}, options);
  if (bench.interrupted) {
    throw Interrupted();
  }
  const auto speed = [&](size_t n) { return quartiles_of(rates_of(bench, n, Timed::decode)).median; };
  return {&removal,       bench.models[0], bench.models[1],
          speed(0),       speed(1),        *ratio_to_first(bench, 1, Timed::decode),
          noise_of(bench)};
}

ClaimTable table_of(const std::vector<Timing>& timings) {
  ClaimTable table{.title = "Decoding one sequence, in bfloat16",
                   .columns = {"GB", "GB left", "ratio", "tokens/s", "then", "faster"},
                   .measured = "how many times as fast",
                   .settings = {"GB", "GB left", "tokens/s", "then"},
                   .rows_are = "removed"};
  for (const Timing& timing : timings) {
    table.names.push_back(timing.removal->name);
    table.rows.push_back({static_cast<double>(timing.with.step_bytes) / 1e9,
                          static_cast<double>(timing.without.step_bytes) / 1e9, timing.of_bytes(), timing.speed_with,
                          timing.speed_without, timing.ratio.quartiles.median});
  }
  return table;
}

Outcome decode_speedup(const Trial& trial) {
  const std::vector<Removal> all = removals();
  std::vector<Timing> timings;
  for (const Removal& removal : all) {
    trial.note ? trial.note(removal.name) : void();
    timings.push_back(timed(removal, trial));
  }
  Outcome found;
  bool within = true, beyond = false;
  std::vector<std::string> ratios, claimed, bytes, noise;
  for (const Timing& timing : timings) {
    const Interval interval = timing.interval();
    const std::optional<double>& asked = timing.removal->claimed;
    found.compared.push_back({timing.removal->name, asked ? fmt::format("{:.2f}x", *asked) : "",
                              fmt::format("{:.2f}x ({:.2f} to {:.2f}); bytes {:.2f}x", timing.ratio.quartiles.median,
                                          interval.least, interval.most, timing.of_bytes())});
    noise.insert(noise.end(), timing.noise.begin(), timing.noise.end());
    if (asked) {
      within = within && interval.least >= *asked - margin && interval.most <= *asked + margin;
      beyond = beyond || interval.most < *asked - margin || interval.least > *asked + margin;
      ratios.push_back(fmt::format("{:.2f}", timing.ratio.quartiles.median));
      claimed.push_back(fmt::format("{:.2f}", *asked));
      bytes.push_back(fmt::format("{:.2f}", timing.of_bytes()));
    }
  }
  found.tables = {table_of(timings)};
  const bool cpu = trial.device == "cpu";
  if (trial.scale == ClaimScale::smoke) {
    found.because = "models of this size lie in a cache: nothing is read from memory";
    return found;
  }
  found.verdict = within ? ClaimVerdict::holds : beyond ? ClaimVerdict::does_not_hold : ClaimVerdict::undecided;
  found.because = fmt::format("{} times as fast, where {} are claimed and the bytes allow {}",
                              fmt::join(ratios, " and "), fmt::join(claimed, " and "), fmt::join(bytes, " and "));
  found.how = fmt::format(
      "Random weights, on {}{}. Both models of a pair take turns in rounds of 16 tokens; a ratio is the median over "
      "rounds, with the interval of the sign test, and holds within {:.2f} of what is claimed. Bytes: the matrices "
      "that "
      "a token reads. {}",
      cpu ? fmt::format("{} threads of a CPU", at::get_num_threads()) : "a GPU",
      cpu ? fmt::format(", an {}th of the layers and of the vocabulary of the 7B shapes", part_on_cpu) : "", margin,
      noise.empty() ? "The machine was quiet." : fmt::format("The machine was noisy: {}.", fmt::join(noise, "; ")));
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_decode_speed() {
  return {{.id = "decode-speedup",
           .paper = Paper::skipless,
           .place = "Section 4",
           .says = "Decoding one sequence is 1.17 (Mistral-7B) and 1.19 times (Pythia-6.9B) as fast without Q and P.",
           .recorded = ClaimVerdict::undecided,
           .measure = decode_speedup,
           .of_times = true}};
}

}  // namespace pare
