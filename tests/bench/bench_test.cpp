// What is said of turns, by turns that are given; the plain read beside a loop; what a step of decoding reads.

#include "pare/bench/bench.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "pare/bench/plain_read.h"
#include "pare/decode/decoder.h"
#include "pare/decode/engine.h"
#include "pare/support/error.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

// Two models; the second is faster in every round, while the machine becomes slower and slower.
Bench drifting() {
  Bench bench{.threads = 2, .instructions = "plain"};
  bench.models = {{.name = "a", .step_bytes = 1000}, {.name = "b", .step_bytes = 500}};
  bench.options.rounds = 7;
  for (int64_t round = 1; round <= 7; ++round) {
    const double slow = std::pow(2.0, static_cast<double>(round));
    for (size_t model = 0; model < 2; ++model) {
      const double seconds = slow / (model == 0 ? 1.0 : 1.5 + 0.01 * static_cast<double>(round));
      bench.turns.push_back({round, model, Timed::prefill, 128, seconds});
      bench.turns.push_back({round, model, Timed::decode, 32, seconds});
      bench.turns.push_back({round, model, Timed::read, 40'000, seconds});
    }
  }
  return bench;
}

}  // namespace

TEST_CASE("ratios are taken round by round, so that a drift cancels") {
  const Bench bench = drifting();
  const SpeedRatio ratio = *ratio_to_first(bench, 1, Timed::decode);
  CHECK(ratio.quartiles.median == doctest::Approx(1.54));
  CHECK(ratio.interval->least == doctest::Approx(1.51));  // of seven rounds all are in the interval
  CHECK(ratio.interval->most == doctest::Approx(1.57));
  CHECK(quartiles_of(rates_of(bench, 0, Timed::decode)).spread() > 1);
  CHECK_FALSE(ratio_to_first(bench, 1, Timed::train));
  // 32 tokens of 1,000 bytes beside 40,000 bytes, in the same time.
  CHECK(share_of_read(bench, 0)->quartiles.median == doctest::Approx(0.8));
  CHECK(share_of_read(bench, 1)->quartiles.median == doctest::Approx(0.4));
}

TEST_CASE("rounds that only one model has are no pair") {
  Bench bench = drifting();
  bench.interrupted = true;
  std::erase_if(bench.turns, [](const BenchTurn& turn) { return turn.model == 1 && turn.round > 5; });
  const SpeedRatio ratio = *ratio_to_first(bench, 1, Timed::prefill);
  CHECK(ratio.quartiles.count == 5);
  CHECK_FALSE(ratio.interval);  // fewer than six
  CHECK(ratio.quartiles.median == doctest::Approx(1.53));
  CHECK(bench_text(bench).find("2 models in turns in 7 of 7 rounds, ended early") != std::string::npos);
}

TEST_CASE("a machine is noisy by what other processes take, what a host takes, and what scatters") {
  const std::vector<Scatter> still = {{"decode of a", 0.099}}, wild = {{"decode of a", 0.02}, {"read of b", 0.23}};
  const MachineUse quiet{.cores = 8, .own = 2, .others = 0.79, .stolen = 0.15};
  CHECK(noise_of(quiet, still).empty());
  CHECK(noise_of(std::nullopt, still).empty());
  CHECK(noise_of(quiet, wild) ==
        std::vector<std::string>{"the middle half of the rounds lies more than 10 % apart: read of b 23 %"});
  const MachineUse shared{.cores = 8, .own = 2, .others = 0.9}, virtual_one{.cores = 8, .own = 2, .stolen = 0.2};
  CHECK(noise_of(shared, still) ==
        std::vector<std::string>{"other processes kept 0.9 of 8 cores busy (more than 10 % of them)"});
  CHECK(noise_of(virtual_one, still) ==
        std::vector<std::string>{"the host of this virtual machine took 0.20 of 8 cores (more than 2 %)"});
  const Bench bench = drifting();
  CHECK(noise_of(bench).size() == 1);  // of all six figures
  CHECK(noise_of(bench).front().find("read of b") != std::string::npos);
  CHECK(bench_text(bench).find("The machine was noisy") != std::string::npos);
}

TEST_CASE("processor time, from the kernel's table") {
  const std::string before =
      "cpu  100 20 30 1000 5 1 2 7 50 0\ncpu0 50 10 15 500 5 1 1 3 50 0\ncpu1 50 10 15 500 0 0 1 4 0 0\nintr 1";
  const std::string after = "cpu  500 20 130 1500 5 1 2 27 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1 1 1\n";
  std::optional<ProcessorTime> from = parse_processor_time(before, 100), to = parse_processor_time(after, 100);
  REQUIRE(from);
  REQUIRE(to);
  CHECK(from->cores == 2);
  CHECK(from->busy == doctest::Approx(1.53));
  CHECK(from->stolen == doctest::Approx(0.07));
  to->wall = from->wall + 2.5;
  to->own = from->own + 4;
  const MachineUse use = *use_between(from, to);
  CHECK(use.own == doctest::Approx(1.6));
  CHECK(use.others == doctest::Approx(0.4));  // 5 s busy, of which 4 are ours, in 2.5 s
  CHECK(use.stolen == doctest::Approx(0.08));
  to->own = from->own + 6;  // ticks are coarse
  CHECK(use_between(from, to)->others == 0);
  CHECK_FALSE(use_between(std::nullopt, to));
  for (const std::string wrong : {"", "cpu 1 2", "cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\n"}) {
    CHECK_FALSE(parse_processor_time(wrong, 100));
  }
}

TEST_CASE("a plain read reads every byte once, whatever the number of threads") {
  for (const size_t size : {0, 1, 7, 8, 127, 128, 129, 1000, 4099}) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<std::byte>(37 * i + 11);
    }
    uint64_t expected = 0;
    for (size_t i = 0; i < size; ++i) {
      const uint64_t byte = std::to_integer<uint64_t>(bytes[i]);
      expected += i < size / 8 * 8 ? byte << (8 * (i % 8)) : byte;
    }
    CHECK(sum_of_words(bytes) == expected);
    for (const int threads : {1, 3}) {
      PlainRead read({bytes, bytes}, threads);
      CHECK(read.bytes() == 2 * static_cast<int64_t>(size));
      CHECK(read.read() == 2 * expected);
    }
  }
  PlainRead own(4000, at::kCPU, 2);
  CHECK(own.bytes() == 4000);
  CHECK(own.read() != 0);
}

TEST_CASE("what a step reads is what the Architecture stores, for every form that the engine runs") {
  int64_t seen = 0;
  for (const auto& [name, text] : causal_architectures()) {
    const Architecture a = parse(text);
    const TensorTable table = tensor_table(a);  // one that is shrunk is made whole when it is loaded
    const bool shrunk = std::ranges::any_of(table, &TensorSpec::index);
    const bool twice = std::ranges::any_of(a.blocks, [](const Block& b) { return is<SameAsKey>(b.attention.query); });
    if (engine_lacks(a) || shrunk || twice) {
      continue;
    }
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name);
      const Decoder decoder({a, as_weights(generic_tensors(a))}, {.dtype = type});
      int64_t bytes = 0;
      for (const std::span<const std::byte>& matrix : decoder.matrices()) {
        bytes += std::ssize(matrix);
      }
      CHECK(bytes == stored_step_bytes(a, dtype_of(type)));
      ++seen;
    }
  }
  CHECK(seen > 10);
}

TEST_CASE("a model takes its turns: what is measured, what is left out, and in which order") {
  const auto subject = [](const std::string& name, const std::string& text) {
    const Architecture a = parse(text);
    return BenchSubject{name, {a, as_weights(generic_tensors(a))}, Dtype::f32};
  };
  const std::string text = causal_architectures().begin()->second;
  const std::vector<BenchSubject> subjects = {subject("a", text), subject("b", text)};
  BenchOptions options{.rounds = 2, .train = true, .batch = 2};
  options = fitted_to(options, subjects, false, false);
  const int64_t context = subjects[0].model.architecture.context;
  CHECK(options.prompt + options.tokens <= context);
  CHECK(options.tokens > 0);
  BenchOptions long_one = options;
  long_one.prompt = context;
  CHECK_THROWS_AS(fitted_to(long_one, subjects, true, true), InputError);
  const Bench bench = run_bench(subjects, options);
  std::string order;
  for (const BenchTurn& turn : bench.turns) {
    order += fmt::format("{}{}{} ", turn.round, bench.models[turn.model].name, word(turn.what)[0]);
    CHECK(turn.work > 0);
  }
  CHECK(order == "1ap 1ad 1ar 1bp 1bd 1br 1at 1bt 2ap 2ad 2ar 2bp 2bd 2br 2at 2bt ");
  CHECK(bench.models[0].left_out.empty());
  CHECK(bench_json(bench).at("models").size() == 2);
}

}  // namespace pare::test
