#include "pare/cli/verify_summary.h"

#include <fmt/format.h>

#include "pare/support/numbers.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

// A path or a message may hold what a table of Markdown would take for its own.
std::string cell(std::string text) {
  for (const auto& [found, instead] : {std::pair("\\", "\\\\"), {"|", "\\|"}, {"\n", " "}, {"<", "&lt;"}, {"`", "'"}}) {
    for (size_t at = 0; (at = text.find(found, at)) != std::string::npos; at += std::string_view(instead).size()) {
      text.replace(at, 1, instead);
    }
  }
  return text;
}

std::string number(const Json& value) {
  return value.is_number() ? fmt::format("{:.4g}", value.get<double>()) : "-";
}

std::string with_error(const Json& value) {
  return value.is_object() ? fmt::format("{} ± {}", number(value["value"]), number(value["error"])) : "-";
}

std::string models(const Json& document) {
  std::string text = "| | model | family | stored in | parameters | SHA-256 |\n|---|---|---|---|---:|---|\n";
  for (const char* side : {"reference", "candidate"}) {
    const Json& model = document[side];
    if (model.is_null()) {
      continue;
    }
    std::string hashes;
    for (const auto& [name, hash] : model["files"].items()) {
      hashes += fmt::format("{}{} {}", hashes.empty() ? "" : ", ", cell(name), hash.get<std::string>().substr(0, 12));
    }
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", side, cell(model["path"].get<std::string>()),
                        cell(model["family"].get<std::string>()), cell(model["dtype"].get<std::string>()),
                        with_commas(model["parameters"].get<int64_t>()), hashes);
  }
  return text;
}

std::string measured(const Json& document) {
  std::string text = "\n| measured | value |\n|---|---|\n";
  const auto row = [&text](const char* what, const std::string& value) {
    if (value != "-") {
      text += fmt::format("| {} | {} |\n", what, value);
    }
  };
  const Json& inputs = document["inputs"];
  if (const Json& quantisation = document["quantisation"]; quantisation.is_object()) {
    row("stored in blocks: tensors of each type", cell(quantisation["types"].get<std::string>()));
  }
  row("sequences, tokens, inputs", fmt::format("{}, {}, {}", inputs["sequences"].get<int64_t>(),
                                               inputs["tokens"].get<int64_t>(), inputs["kind"].get<std::string>()));
  if (const Json& metrics = document["metrics"]; metrics.is_object()) {
    row("largest relative error", number(metrics["max_relative_logit_error"]));
    row("mean KL, nats", number(metrics["mean_kl_nats"]));
    row("largest KL, nats", number(metrics["max_kl_nats"]));
    row("same first choice", number(metrics["top1_agreement"]));
  }
  if (const Json& statistics = document["statistics"]; statistics.is_object()) {
    row("KL of the median row, of 99 in 100",
        fmt::format("{}, {}", number(statistics["median_kl"]), number(statistics["high_kl"])));
    row("perplexity of the reference", with_error(statistics["reference_perplexity"]));
    row("perplexity of the candidate", with_error(statistics["candidate_perplexity"]));
    row("RMS change of the right token's probability", with_error(statistics["rms_probability"]));
  }
  return text;
}

std::string wrong(const Json& document) {
  std::string text;
  const auto line = [&text](const std::string& words) { text += fmt::format("- {}\n", cell(words)); };
  for (const Json& difference : document["differences"]) {
    line(fmt::format("{} is {} in the reference, {} in the candidate", difference["setting"].get<std::string>(),
                     difference["reference"].get<std::string>(), difference["candidate"].get<std::string>()));
  }
  if (const Json& quantisation = document["quantisation"]; quantisation.is_object()) {
    for (const Json& setting : quantisation["settings"]) {
      line(setting.get<std::string>());
    }
    for (const Json& tensor : quantisation["tensors"]) {
      if (tensor["how"] == "other") {
        line(fmt::format("{}: {}", tensor["tensor"].get<std::string>(), tensor["reason"].get<std::string>()));
      }
    }
  }
  if (document["proof"].is_object() && document["verdict"] == "different") {
    for (const Json& gap : document["proof"]["gaps"]) {
      line(gap.get<std::string>());
    }
  }
  if (document.contains("error")) {
    line(document["error"]["message"].get<std::string>());
  }
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

std::string verify_summary(const Json& document) {
  const std::string verdict = document["verdict"].get<std::string>();
  const bool failed = document.contains("error") && verdict != "different";  // by a limit, or by --strict
  return fmt::format("**pare verify: {}{}**\n\n{}{}{}", verdict, failed ? ", and refused" : "", models(document),
                     measured(document), wrong(document));
}

}  // namespace pare
