#include "pare/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

std::string bytes_text(const std::optional<int64_t>& bytes) {
  return bytes ? human_bytes(static_cast<uint64_t>(*bytes)) : "unknown";
}

std::string interval_text(const std::optional<Interval>& interval) {
  return interval ? fmt::format("{:.2f} to {:.2f}", interval->least, interval->most) : "";
}

std::string title_of(const Bench& bench, Timed what) {
  const BenchOptions& options = bench.options;
  const bool images = std::ranges::any_of(bench.models, &BenchedModel::image),
             all_images = std::ranges::all_of(bench.models, &BenchedModel::image);
  const std::string batch = all_images ? "one image" : fmt::format("{} tokens", with_commas(options.prompt));
  switch (what) {
    case Timed::prefill:
      return fmt::format("Prefill: one forward pass over {}{}", batch,
                         images && !all_images ? ", or over one image" : "");
    case Timed::decode:
      return fmt::format("Decode: {} tokens after {}, one at a time", with_commas(options.tokens),
                         with_commas(options.prompt));
    case Timed::read:
      return "Weights that decoding reads, beside a plain read of the same bytes";
    case Timed::train:
      return fmt::format("Training step: {} of {}, forward, backward, AdamW",
                         options.batch == 1 ? "a sequence" : fmt::format("{} sequences", with_commas(options.batch)),
                         batch);
  }
  return "";
}

bool has_any(const Bench& bench, Timed what) {
  return std::ranges::any_of(bench.turns, [what](const BenchTurn& turn) { return turn.what == what; });
}

std::string speed_table(const Bench& bench, Timed what) {
  if (!has_any(bench, what)) {
    return "";
  }
  const bool several = bench.models.size() > 1;
  std::vector<Align> columns(several ? 5 : 3, Align::right);
  std::vector<std::string> head = {"model", "tokens/s", "quartiles"};
  columns[0] = Align::left;
  if (several) {
    head.insert(head.end(), {"ratio", "95 % interval"});
  }
  Table table(columns, head);
  for (size_t n = 0; n < bench.models.size(); ++n) {
    const std::vector<double> rates = rates_of(bench, n, what);
    if (rates.empty()) {
      table.row({escaped(bench.models[n].name), "none"});
      continue;
    }
    const Quartiles q = quartiles_of(rates);
    std::vector<std::string> row = {escaped(bench.models[n].name), rate_text(q.median),
                                    fmt::format("{} to {}", rate_text(q.lower), rate_text(q.upper))};
    if (const std::optional<SpeedRatio> ratio = ratio_to_first(bench, n, what); ratio && n > 0) {
      row.insert(row.end(), {fmt::format("{:.2f}", ratio->quartiles.median), interval_text(ratio->interval)});
    }
    table.row(row);
  }
  return fmt::format("\n{}\n{}", wrapped(title_of(bench, what), 0), table.text());
}

std::string read_table(const Bench& bench) {
  if (!has_any(bench, Timed::read)) {
    return "";
  }
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right},
              {"model", "a token", "GB/s", "plain read", "share", "95 % interval"});
  for (size_t n = 0; n < bench.models.size(); ++n) {
    const std::optional<SpeedRatio> share = share_of_read(bench, n);
    if (!share) {
      continue;
    }
    const BenchedModel& model = bench.models[n];
    const double decode =
        quartiles_of(rates_of(bench, n, Timed::decode)).median * static_cast<double>(model.step_bytes);
    const double read = quartiles_of(rates_of(bench, n, Timed::read)).median;
    table.row({escaped(model.name), bytes_text(model.step_bytes), rate_text(decode / 1e9), rate_text(read / 1e9),
               fmt::format("{:.0f} %", 100 * share->quartiles.median),
               share->interval
                   ? fmt::format("{:.0f} to {:.0f} %", 100 * share->interval->least, 100 * share->interval->most)
                   : ""});
  }
  return fmt::format("\n{}\n{}", wrapped(title_of(bench, Timed::read), 0), table.text());
}

std::string memory_table(const Bench& bench) {
  const bool trained =
      std::ranges::any_of(bench.models, [](const BenchedModel& m) { return m.train_bytes.has_value(); });
  std::vector<Align> columns(trained ? 6 : 5, Align::right);
  columns[0] = Align::left;
  std::vector<std::string> head = {"model", "parameters", "weights", "loaded", "peak"};
  if (trained) {
    head.emplace_back("training");
  }
  Table table(columns, head);
  for (const BenchedModel& model : bench.models) {
    std::vector<std::string> row = {escaped(model.name), with_commas(model.parameters), bytes_text(model.weight_bytes),
                                    bytes_text(model.loaded_bytes), bytes_text(model.peak_bytes)};
    if (trained) {
      row.push_back(model.train_bytes ? bytes_text(model.train_bytes) : "none");
    }
    table.row(row);
  }
  return "\nMemory that each model adds\n\n" + table.text();
}

std::string noise_text(const Bench& bench) {
  const std::vector<std::string> reasons = noise_of(bench);
  if (reasons.empty()) {
    return wrapped(
        bench.options.rounds == 1
            ? "One round tells nothing of noise: give --rounds."
            : "The machine was quiet: no figure scatters by more than 10 %, and other processes took no more than 10 % "
              "of the cores.",
        0);
  }
  std::string text = wrapped("The machine was noisy, so these figures may be wrong:", 0);
  for (const std::string& reason : reasons) {
    text += wrapped(reason, 4, "  - ");
  }
  return text + wrapped("Measure again when nothing else runs, or with more --rounds.", 0);
}

}  // namespace

std::string rate_text(double rate) {
  return rate >= 100 ? with_commas(std::llround(rate)) : fmt::format("{:.{}f}", rate, rate >= 10 ? 1 : 2);
}

std::string bench_text(const Bench& bench) {
  const BenchOptions& options = bench.options;
  int64_t rounds = 0;
  for (const BenchTurn& turn : bench.turns) {
    rounds = std::max(rounds, turn.round);
  }
  const Dtype dtype = bench.models.front().dtype;
  const bool one_type = std::ranges::all_of(bench.models, [dtype](const BenchedModel& m) { return m.dtype == dtype; });
  std::string text = wrapped(
      fmt::format("{} in {}{} on {}, {} ({}){}",
                  bench.models.size() == 1 ? "One model" : fmt::format("{} models in turns", bench.models.size()),
                  bench.interrupted     ? fmt::format("{} of {} rounds", rounds, options.rounds)
                  : options.rounds == 1 ? "one round"
                                        : fmt::format("{} rounds", options.rounds),
                  bench.interrupted ? ", ended early," : "", options.device.is_cpu() ? "cpu" : "cuda",
                  bench.threads == 1 ? "one thread" : fmt::format("{} threads", bench.threads), bench.instructions,
                  one_type ? fmt::format(", in {}", word(dtype)) : ""),  // else names say it
      0);
  text += speed_table(bench, Timed::prefill) + speed_table(bench, Timed::decode) + read_table(bench) +
          speed_table(bench, Timed::train) + memory_table(bench) + "\n";
  for (const BenchedModel& model : bench.models) {
    if (model.random) {
      text +=
          wrapped(fmt::format("{} has random weights: only its architecture is known.", escaped(model.name)), 2, "");
    }
    for (const std::string& why : model.left_out) {
      text += wrapped(fmt::format("Not measured of {}: {}.", escaped(model.name), why), 2, "");
    }
  }
  if (bench.models.size() > 1) {
    text += wrapped(fmt::format("A ratio above 1 is faster than {}: the median over rounds, each divided by its own "
                                "round. Its interval is the sign test's{}.",
                                escaped(bench.models.front().name), rounds < 6 ? ", which needs six rounds" : ""),
                    2, "");
  }
  return text + noise_text(bench);
}

}  // namespace pare
