#include "pare/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "pare/decode/kernels.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// A candidate's probability is its logit until `to_probabilities`.
using Candidates = std::vector<Candidate>;

void penalise(Candidates& all, std::span<const int64_t> seen, double penalty) {
  std::vector<bool> done(all.size());
  for (const int64_t id : seen) {
    if (!done.at(static_cast<size_t>(id))) {
      done[static_cast<size_t>(id)] = true;
      double& logit = all[static_cast<size_t>(id)].probability;
      logit = logit < 0 ? logit * penalty : logit / penalty;
    }
  }
}

double likeliest(const Candidates& all) {
  double most = all.front().probability;
  for (const Candidate& each : all) {
    most = std::max(most, each.probability);
  }
  return most;
}

void keep_top_k(Candidates& all, int64_t k) {
  if (k <= 0 || k >= std::ssize(all)) {
    return;
  }
  std::vector<double> logits;
  logits.reserve(all.size());
  for (const Candidate& each : all) {
    logits.push_back(each.probability);
  }
  std::nth_element(logits.begin(), logits.begin() + (k - 1), logits.end(), std::greater<>());
  std::erase_if(
      all, [least = logits[static_cast<size_t>(k - 1)]](const Candidate& each) { return each.probability < least; });
}

void to_probabilities(Candidates& all) {
  const double most = likeliest(all);
  double sum = 0;
  for (Candidate& each : all) {
    each.probability = std::exp(each.probability - most);
    sum += each.probability;
  }
  for (Candidate& each : all) {
    each.probability /= sum;
  }
}

void normalise(Candidates& all) {
  double sum = 0;
  for (const Candidate& each : all) {
    sum += each.probability;
  }
  for (Candidate& each : all) {
    each.probability /= sum;
  }
}

// From the least likely on, those go that together are no more than 1 - p, but never the last.
void keep_top_p(Candidates& all, double p) {
  if (p >= 1) {
    return;
  }
  // However many are no more likely than this, together they are no more than 1 - p: they need not be sorted.
  const double certain = (1 - p) / static_cast<double>(all.size());
  double gone = 0;
  Candidates kept;
  for (const Candidate& each : all) {
    if (each.probability <= certain) {
      gone += each.probability;
    } else {
      kept.push_back(each);
    }
  }
  // Of equal ones that of the higher id stays.
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Candidate& a, const Candidate& b) { return a.probability < b.probability; });
  size_t first = 0;
  while (first + 1 < kept.size() && gone + kept[first].probability <= 1 - p) {
    gone += kept[first++].probability;
  }
  all.assign(kept.begin() + static_cast<std::ptrdiff_t>(first), kept.end());
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  normalise(all);
}

void keep_min_p(Candidates& all, double share) {
  if (share <= 0) {
    return;
  }
  std::erase_if(all, [least = share * likeliest(all)](const Candidate& each) { return each.probability < least; });
  normalise(all);
}

// The largest logit. A token may be excluded, by minus infinity; none may be certain.
float checked(std::span<const float> logits) {
  const float most = largest(logits.data(), std::ssize(logits));
  check_logit(most);
  return most;
}

}  // namespace

void check_logit(float largest) {
  if (!std::isfinite(largest)) {
    throw InputError("the model's logits are not all finite numbers: damaged weights, or --dtype is too narrow for it");
  }
}

std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int64_t> seen,
                                  const Sampling& sampling) {
  PARE_CHECK(!logits.empty(), "logits of no token");
  const float first = checked(logits);
  if (sampling.temperature == 0 && sampling.repetition_penalty == 1) {
    return {{std::find(logits.begin(), logits.end(), first) - logits.begin(), 1}};
  }
  Candidates all(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    all[id] = {static_cast<int64_t>(id), static_cast<double>(logits[id])};
  }
  if (sampling.repetition_penalty != 1) {
    penalise(all, seen, sampling.repetition_penalty);
  }
  if (sampling.temperature == 0) {
    const auto most = std::max_element(
        all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.probability < b.probability; });
    return {{most->id, 1}};
  }
  const double most = likeliest(all);  // taken off first: however cold, the likeliest stays a number
  for (Candidate& each : all) {
    each.probability = (each.probability - most) / sampling.temperature;
  }
  keep_top_k(all, sampling.top_k);
  to_probabilities(all);
  keep_top_p(all, sampling.top_p);
  keep_min_p(all, sampling.min_p);
  return all;
}

int64_t drawn(std::span<const Candidate> candidates, double number) {
  PARE_CHECK(!candidates.empty(), "nothing to draw from");
  double total = 0;
  for (const Candidate& each : candidates) {
    total += each.probability;
  }
  double share = 0;
  for (const Candidate& each : candidates) {
    share += each.probability;
    if (share > number * total) {
      return each.id;
    }
  }
  return candidates.back().id;
}

double log_probability(std::span<const float> logits, int64_t id) {
  const int64_t n = std::ssize(logits);
  const float most = largest(logits.data(), n);
  return static_cast<double>(logits[static_cast<size_t>(id)]) - static_cast<double>(most) -
         std::log(sum_of_exponentials(logits.data(), n, most));
}

}  // namespace pare
