// Paper 1's speed: one sequence, token by token, with a matrix and without it. Decoding reads every weight once a
// token, so what is not there is not waited for.

#include "pare/claims/claim.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "pare/arch/presets.h"
#include "pare/bench/bench.h"
#include "pare/model/device.h"
#include "pare/model/init.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/statistics.h"

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
  return {{"Mistral skipless: Q, P", "skipless-mistral-7b", 1.17, without_query_and_output},
          {"Pythia skipless: Q, P", "skipless-pythia-6.9b", 1.19, without_query_and_output},
          {"Mistral: Q (W_Q = I)", "mistral-7b", std::nullopt, without_query},
          {"GPT-2: identity blocks", "gpt2", std::nullopt,
           [](Architecture& a) { each_attention(a, [](Attention& t) { t.key = t.value = Shrunk(); }); }, true},
          {"Qwen2.5: first layer", "qwen2.5-0.5b", std::nullopt,
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
  Moments speed_with, speed_without;  // tokens a second, a number for each load
  std::vector<double> ratios;         // likewise
  bool noisy = false;                 // the machine, in one of them

  double of_bytes() const { return static_cast<double>(with.step_bytes) / static_cast<double>(without.step_bytes); }
  Estimate ratio() const { return estimate_of(ratios); }
};

// Where a model lies in a CPU's memory changes its speed by more than rounds of one load scatter. So both are loaded
// anew several times, in turns which of them first, and a load counts as one measurement.
int loads_on(at::Device device) {
  return device.is_cpu() ? 6 : 4;
}

Timing timed(const Removal& removal, const Trial& trial) {
  const bool smoke = trial.scale == ClaimScale::smoke;
  const at::Device device = find_device(trial.device);
  const auto subject = [&](bool removed) {
    Architecture a = *find_preset(removal.preset);
    smoke ? make_tiny(a) : device.is_cpu() && !removal.whole ? shorten(a) : void();
    removed ? removal.remove(a) : void();
    return BenchSubject{
        removed ? "without" : "with", {a, random_weights(a, trial.seed, Dtype::bf16, Draw::repeated)}, Dtype::bf16};
  };
  const BenchOptions options{
      .device = device, .rounds = smoke ? 1 : 5, .prompt = 8, .tokens = smoke ? 2 : 16, .seed = trial.seed};
  const int count = smoke ? 1 : loads_on(device);
  Timing timing{.removal = &removal};
  for (int load = 0; load < count; ++load) {
    const bool removed_first = load % 2 == 1;
    const Bench bench = run_bench({subject(removed_first), subject(!removed_first)}, options);
    if (bench.interrupted) {
      throw Interrupted();
    }
    const size_t with = removed_first ? 1 : 0, without = 1 - with;
    const double second = ratio_to_first(bench, 1, Timed::decode)->quartiles.median;
    timing.ratios.push_back(removed_first ? 1 / second : second);
    timing.with = bench.models[with];
    timing.without = bench.models[without];
    timing.speed_with.add(quartiles_of(rates_of(bench, with, Timed::decode)).median);
    timing.speed_without.add(quartiles_of(rates_of(bench, without, Timed::decode)).median);
    timing.noisy = timing.noisy || !noise_of(bench).empty();
  }
  return timing;
}

ClaimTable table_of(const std::vector<Timing>& timings) {
  ClaimTable table{.title = "Decoding one sequence, in bfloat16",
                   .columns = {"GB", "left", "bytes", "tokens/s", "then", "faster", "±"},
                   .measured = "how many times as fast",
                   .settings = {"GB", "left", "tokens/s", "then"},
                   .rows_are = "removed",
                   .decimals = 2,
                   .band = "the 95 % interval of a mean over loads"};
  for (const Timing& timing : timings) {
    table.names.push_back(timing.removal->name);
    table.rows.push_back({static_cast<double>(timing.with.step_bytes) / 1e9,
                          static_cast<double>(timing.without.step_bytes) / 1e9, timing.of_bytes(),
                          timing.speed_with.mean, timing.speed_without.mean, timing.ratio().mean,
                          timing.ratio().half_width()});
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
  std::vector<std::string> ratios, claimed, bytes;
  size_t noisy = 0;
  for (const Timing& timing : timings) {
    const Estimate ratio = timing.ratio();
    const std::optional<double>& asked = timing.removal->claimed;
    const std::string spread = ratio.interval ? fmt::format(" ± {:.3f}", ratio.half_width()) : "";
    found.compared.push_back({timing.removal->name, asked ? fmt::format("{:.2f}x", *asked) : "not said",
                              fmt::format("{:.3f}x{}; bytes {:.3f}x", ratio.mean, spread, timing.of_bytes())});
    noisy += timing.noisy ? 1 : 0;
    if (asked) {
      const Interval interval = ratio.interval.value_or(Interval{0, std::numeric_limits<double>::infinity()});
      within = within && interval.least >= *asked - margin && interval.most <= *asked + margin;
      beyond = beyond || interval.most < *asked - margin || interval.least > *asked + margin;
      ratios.push_back(fmt::format("{:.2f}", ratio.mean));
      claimed.push_back(fmt::format("{:.2f}", *asked));
      bytes.push_back(fmt::format("{:.2f}", timing.of_bytes()));
    }
  }
  found.tables = {table_of(timings)};
  if (trial.scale == ClaimScale::smoke) {
    found.because = "models of this size lie in a cache: nothing is read from memory";
    return found;
  }
  const bool cpu = trial.device == "cpu";
  found.verdict = within ? ClaimVerdict::holds : beyond ? ClaimVerdict::does_not_hold : ClaimVerdict::undecided;
  found.because = fmt::format("{} times as fast, where {} are claimed and the bytes allow {}",
                              fmt::join(ratios, " and "), fmt::join(claimed, " and "), fmt::join(bytes, " and "));
  found.how = fmt::format(
      "Random weights in bfloat16, on {}{}; one sequence. Both models of a pair are loaded {} times, in turns which of "
      "them first, and take turns in rounds of 16 tokens. A load gives one ratio, the median over its rounds; what is "
      "shown is the mean over loads with its 95 % interval, and it holds where that lies within {:.2f} of what is "
      "claimed. Bytes: the matrices that a token reads. {}",
      cpu ? fmt::format("{} threads of a CPU", at::get_num_threads())
          : "a GPU, each step a graph of libtorch's operators",
      cpu ? fmt::format(", an {}th of the layers and of the vocabulary of the 7B shapes", part_on_cpu) : "",
      loads_on(find_device(trial.device)), margin,
      noisy == 0 ? "The machine was quiet"
                 : fmt::format("The machine was noisy in {} of {} rows", noisy, timings.size()));
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_decode_speed() {
  return {{.id = "decode-speedup",
           .paper = Paper::skipless,
           .place = "Section 4",
           .says = "Decoding one sequence is 1.17 (Mistral-7B) and 1.19 times (Pythia-6.9B) as fast without Q and P.",
           .recorded = ClaimVerdict::does_not_hold,
           .number = "1.06 and 1.10 times as fast",
           .measure = decode_speedup,
           .of_times = true}};
}

}  // namespace pare
