#include "pare/report/pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/bench/bench.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

bool was_timed(const Bench& bench, Timed what) {
  return std::ranges::any_of(bench.turns, [what](const BenchTurn& turn) { return turn.what == what; });
}

std::string title_of_timed(Timed what) {
  switch (what) {
    case Timed::prefill:
      return "Prefill";
    case Timed::decode:
      return "Decode";
    case Timed::read:
      return "Plain read";
    case Timed::train:
      return "Training step";
  }
  PARE_UNREACHABLE("no such measurement");
}

std::string words_of_timed(const Bench& bench, Timed what) {
  const BenchOptions& options = bench.options;
  const bool images = std::ranges::any_of(bench.models, &BenchedModel::image);
  switch (what) {
    case Timed::prefill:
      return fmt::format("One forward pass over {} tokens{}.", with_commas(options.prompt),
                         images ? ", or over one image" : "");
    case Timed::decode:
      return fmt::format("{} tokens after a prompt of {}, one at a time, always the most likely.",
                         with_commas(options.tokens), with_commas(options.prompt));
    case Timed::read:
      return "The weights that a step of decoding reads, read by the same threads and added up.";
    case Timed::train:
      return fmt::format("{} sequences of {} tokens: forward, backward, AdamW.", with_commas(options.batch),
                         with_commas(options.prompt));
  }
  PARE_UNREACHABLE("no such measurement");
}

Figure speeds(const Bench& bench, Timed what) {
  Figure figure{.kind = FigureKind::bars,
                .title = title_of_timed(what) + ", by model",
                .words = words_of_timed(bench, what) +
                         " The bar is the median over rounds; the whisker, half the distance of the quartiles.",
                .x = {.words = "model"},
                .y = {.words = "speed", .unit = "tokens/s", .least = 0},
                .series = {{.name = title_of_timed(what)}}};
  Series& series = figure.series.front();
  for (size_t n = 0; n < bench.models.size(); ++n) {
    if (const std::vector<double> rates = rates_of(bench, n, what); !rates.empty()) {
      const Quartiles q = quartiles_of(rates);
      series.x.push_back(static_cast<double>(figure.x.names.size()));
      series.y.push_back(q.median);
      series.spread.push_back((q.upper - q.lower) / 2);
      figure.x.names.push_back(bench.models[n].name);
    }
  }
  return figure;
}

// Both at once: what decoding reads, and what a plain read does.
Figure reading(const Bench& bench) {
  Figure figure{.kind = FigureKind::bars,
                .title = "Weights read, by model",
                .words =
                    "By decoding, and by a plain read of the same bytes by the same threads, which no loop over "
                    "weights is faster than. The whisker is half the distance of the quartiles.",
                .x = {.words = "model"},
                .y = {.words = "speed", .unit = "GB/s", .least = 0},
                .series = {{.name = "decode"}, {.name = "plain read"}}};
  for (size_t n = 0; n < bench.models.size(); ++n) {
    if (!share_of_read(bench, n)) {
      continue;
    }
    const double place = static_cast<double>(figure.x.names.size());
    const auto add = [&](Series& series, Timed what, double bytes) {
      const Quartiles q = quartiles_of(rates_of(bench, n, what));
      series.x.push_back(place);
      series.y.push_back(q.median * bytes / 1e9);
      series.spread.push_back((q.upper - q.lower) / 2 * bytes / 1e9);
    };
    add(figure.series[0], Timed::decode, static_cast<double>(bench.models[n].step_bytes));
    add(figure.series[1], Timed::read, 1);
    figure.x.names.push_back(bench.models[n].name);
  }
  return figure;
}

Figure rounds(const Bench& bench, Timed what) {
  Figure figure{.kind = FigureKind::lines,
                .title = title_of_timed(what) + ", by round",
                .words = "Where all models go down together, the machine did something else.",
                .x = {.words = "round"},
                .y = {.words = "speed", .unit = "tokens/s", .least = 0}};
  for (size_t n = 0; n < bench.models.size(); ++n) {
    Series series{.name = bench.models[n].name};
    for (const BenchTurn& turn : bench.turns) {
      if (turn.model == n && turn.what == what && turn.seconds > 0) {
        series.x.push_back(static_cast<double>(turn.round));
        series.y.push_back(turn.work / turn.seconds);
      }
    }
    if (!series.x.empty()) {
      figure.series.push_back(std::move(series));
    }
  }
  return figure;
}

ReportVerdict noise_verdict(const Bench& bench) {
  const std::vector<std::string> noise = noise_of(bench);
  ReportVerdict verdict{.name = "Machine", .word = noise.empty() ? "quiet" : "noisy"};
  verdict.tone = noise.empty() ? Tone::good : Tone::fair;
  verdict.number = bench.use ? fmt::format("other processes: {:.1f} of {} cores", bench.use->others, bench.use->cores)
                             : "the system tells nothing of other processes";
  verdict.words = noise.empty() ? "No figure scatters by more than 10 % over the rounds."
                                : fmt::format("{}. Measure again when nothing else runs, or with more --rounds.",
                                              fmt::join(noise, "; "));
  return verdict;
}

std::string ratio_words(const SpeedRatio& ratio) {
  return ratio.interval ? fmt::format("95 % interval of the median over {} rounds: {:.2f} to {:.2f}.",
                                      ratio.quartiles.count, ratio.interval->least, ratio.interval->most)
                        : fmt::format("Of {} rounds there is no interval: six are needed.", ratio.quartiles.count);
}

// How each stands to the first, by what matters most of what was timed.
ReportVerdict ratio_verdict(const Bench& bench, size_t n, Timed what) {
  const SpeedRatio ratio = *ratio_to_first(bench, n, what);
  const bool faster = ratio.interval && ratio.interval->least > 1, slower = ratio.interval && ratio.interval->most < 1;
  return {.name = fmt::format("{}: “{}” against “{}”", title_of_timed(what), bench.models[n].name,
                              bench.models.front().name),
          .word = faster   ? "faster"
                  : slower ? "slower"
                           : "no difference found",
          .number = fmt::format("{:.2f} times as fast", ratio.quartiles.median),
          .words = ratio_words(ratio),
          .tone = faster   ? Tone::good
                  : slower ? Tone::bad
                           : Tone::neutral};
}

ReportVerdict share_verdict(const Bench& bench, size_t n) {
  const SpeedRatio share = *share_of_read(bench, n);
  return {.name = fmt::format("Decode of “{}”", bench.models[n].name),
          .word = fmt::format("{:.0f} % of a plain read", 100 * share.quartiles.median),
          .number = fmt::format("{} tokens/s", rate_text(quartiles_of(rates_of(bench, n, Timed::decode)).median)),
          .words = fmt::format("As a share: {}", ratio_words(share))};
}

ReportTable memory(const Bench& bench) {
  const auto bytes = [](const std::optional<int64_t>& value) {
    return value ? human_bytes(static_cast<uint64_t>(*value)) : "–";
  };
  ReportTable table{"Memory that each model adds",
                    {"model", "type", "parameters", "weights", "read for a token", "loaded", "peak", "training",
                     "runs on", "not measured"},
                    {}};
  for (const BenchedModel& model : bench.models) {
    table.rows.push_back(
        {model.name, std::string(word(model.dtype)), with_commas(model.parameters), bytes(model.weight_bytes),
         bytes(model.step_bytes > 0 ? std::optional(model.step_bytes) : std::nullopt), bytes(model.loaded_bytes),
         bytes(model.peak_bytes), bytes(model.train_bytes), model.engine ? "the engine" : "the Executor",
         fmt::format("{}", fmt::join(model.left_out, "; "))});
  }
  return table;
}

}  // namespace

Report bench_report(const Bench& bench, const ReportOrigin& origin) {
  const BenchOptions& options = bench.options;
  std::vector<std::string> names;
  for (const BenchedModel& model : bench.models) {
    names.push_back(fmt::format("“{}”", model.name));
  }
  constexpr size_t most_named = 4;
  const std::string models =
      names.size() <= most_named ? fmt::format("{}", fmt::join(names, ", ")) : fmt::format("{} models", names.size());
  Report report{.title = fmt::format("Speed of {}", models),
                .summary = fmt::format("{} on {} with {}. In each round the models take turns.",
                                       options.rounds == 1 ? "One round" : fmt::format("{} rounds", options.rounds),
                                       options.device.is_cpu() ? "cpu" : "cuda",
                                       bench.threads == 1 ? "one thread" : fmt::format("{} threads", bench.threads)),
                .partial = bench.interrupted ? "It was ended before the last round." : "",
                .measured = facts_of(origin)};
  report.measured.push_back({"instructions of the engine", bench.instructions});
  report.measured.push_back({"seed", std::to_string(options.seed)});
  report.verdicts.push_back(noise_verdict(bench));
  ReportSection drawn{.title = "Speed", .words = ""}, by_round{.title = "Round by round", .words = ""};
  for (const Timed what : {Timed::decode, Timed::prefill, Timed::train}) {
    if (!was_timed(bench, what)) {
      continue;
    }
    for (size_t n = 1; n < bench.models.size(); ++n) {
      if (ratio_to_first(bench, n, what)) {
        report.verdicts.push_back(ratio_verdict(bench, n, what));
      }
    }
    drawn.figures.push_back(speeds(bench, what));
    if (options.rounds > 1) {
      by_round.figures.push_back(rounds(bench, what));
    }
  }
  for (size_t n = 0; n < bench.models.size(); ++n) {
    if (share_of_read(bench, n)) {
      report.verdicts.push_back(share_verdict(bench, n));
    }
  }
  if (was_timed(bench, Timed::read) && was_timed(bench, Timed::decode)) {
    drawn.figures.push_back(reading(bench));
  }
  report.sections = {std::move(drawn)};
  report.sections.push_back(
      {.title = "Memory",
       .words =
           "Loaded: what the process holds more after loading. Peak: the most that it held more, up to the end of a "
           "first round. Training: the most that a training step needs besides.",
       .tables = {memory(bench)}});
  if (!by_round.figures.empty()) {
    report.sections.push_back(std::move(by_round));
  }
  return report;
}

}  // namespace pare
