#include "pare/rewrite/reasons.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "pare/support/names.h"

namespace pare {

namespace {

std::string with_blocks(std::string text, int64_t block, const std::string& instead) {
  const std::string name = fmt::format("blocks.{}", block);
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const char next = at + name.size() < text.size() ? text[at + name.size()] : '.';
    if (next < '0' || next > '9') {
      text.replace(at, name.size(), instead);
    }
  }
  return text;
}

std::string with_number(std::string text, int64_t block) {
  const std::string name = "blocks.*";
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    text.replace(at, name.size(), fmt::format("blocks.{}", block));
  }
  return text;
}

nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json to_json(const Precondition& p) {
  nlohmann::ordered_json json = {{"where", p.where}, {"expected", p.expected}, {"found", p.found}, {"holds", p.holds}};
  json["measured"] = p.measured ? number(*p.measured) : nullptr;
  json["limit"] = p.limit ? number(*p.limit) : nullptr;
  return json;
}

}  // namespace

std::string ranges(const std::vector<int64_t>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    parts.push_back(last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<Reason> reasons_against(const Proposal& proposal) {
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  std::vector<Key> order;
  std::map<Key, std::vector<int64_t>> blocks;
  for (const Precondition& p : proposal.preconditions) {
    if (p.holds) {
      continue;
    }
    const std::optional<int64_t>& block = p.block;
    const auto neutral = [&](const std::string& text) { return block ? with_blocks(text, *block, "blocks.*") : text; };
    const Key key{neutral(p.where), p.expected, neutral(p.found), p.remedy};
    if (!blocks.contains(key)) {
      order.push_back(key);
    }
    if (std::vector<int64_t>& list = blocks[key]; block && (list.empty() || list.back() != *block)) {
      list.push_back(*block);  // once, however many of its matrices say the same
    }
  }
  std::vector<Reason> reasons;
  for (const Key& key : order) {
    const std::vector<int64_t>& list = blocks.at(key);
    Reason reason{std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key)};
    if (list.size() == 1) {  // nothing was put together: the names stay what they are
      reason.found = with_number(reason.found, list.front());
    }
    if (const size_t star = reason.where.find('*'); star != std::string::npos) {
      reason.where.replace(star, 1, ranges(list));
    }
    reasons.push_back(std::move(reason));
  }
  return reasons;
}

std::vector<Reason> told_together(const std::vector<Reason>& reasons) {
  std::vector<Reason> together;
  for (const Reason& reason : reasons) {
    const auto same = std::ranges::find_if(together, [&](const Reason& other) {
      return std::tie(other.expected, other.found, other.remedy) ==
             std::tie(reason.expected, reason.found, reason.remedy);
    });
    if (same == together.end()) {
      together.push_back(reason);
    } else {
      same->where += ", " + reason.where;
    }
  }
  return together;
}

std::string text_of(const Reason& reason) {
  return fmt::format("{}: expected {}, found: {}", reason.where, reason.expected, reason.found);
}

std::string pasteable(PassCall call) {
  for (const PassOption& option : call.pass->options) {
    const auto given = call.options.find(std::string(option.name));
    if (given != call.options.end() && given->second == option.fallback) {
      call.options.erase(given);
    }
  }
  return call.options.empty() ? text_of(call) : quote(text_of(call));
}

nlohmann::ordered_json to_json(const PassStep& step, Dtype dtype) {
  const Proposal& proposal = step.proposal;
  nlohmann::ordered_json json;
  json["id"] = step.call.pass->id;
  json["options"] = step.call.options;
  json["applies"] = proposal.applies;
  json["reasons"] = nlohmann::ordered_json::array();
  for (const Reason& reason : reasons_against(proposal)) {
    json["reasons"].push_back(
        {{"where", reason.where}, {"expected", reason.expected}, {"found", reason.found}, {"remedy", reason.remedy}});
  }
  json["saved_parameters"] = step.saved_parameters;
  json["saved_bytes"] = saved_bytes(step, dtype);
  json["predicted_error"] = number(predicted_error(proposal.roundings, dtype));
  json["notes"] = proposal.notes;
  json["preconditions"] = nlohmann::ordered_json::array();
  for (const Precondition& p : proposal.preconditions) {
    json["preconditions"].push_back(to_json(p));
  }
  json["condition_numbers"] = nlohmann::ordered_json::array();
  for (const Conditioning& c : proposal.conditioning) {
    json["condition_numbers"].push_back({{"matrix", name_of(c.matrix)},
                                         {"stored", number(c.stored)},
                                         {"gauged", number(c.gauged)},
                                         {"chosen", c.chosen}});
  }
  return json;
}

}  // namespace pare
