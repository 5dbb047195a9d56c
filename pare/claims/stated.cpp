#include "pare/claims/stated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pare/support/error.h"

namespace pare {

// What is shown without an experiment of its own, and what is not shown.
static std::vector<StatedClaim> further_claims() {
  constexpr ClaimVerdict holds = ClaimVerdict::holds, corrected = ClaimVerdict::holds_corrected,
                         fails = ClaimVerdict::does_not_hold;
  const std::string eliminate = "docs/theorems/eliminate_projection.md", certificates = "docs/certificates/README.md",
                    lower = "docs/theorems/lower_mlp_to_heads.md", gauge = "docs/theorems/gauge_heads.md",
                    simulation = "experiments/parametric-simulation/README.md";
  std::vector<StatedClaim> found;
  const auto shown = [&](Paper paper, const std::string& place, const std::string& says, ClaimVerdict verdict,
                         const std::string& number, const std::string& name, const std::string& page) {
    found.push_back({name, paper, place, says, verdict, number, page,
                     fmt::format("{}: paper {}, {}", tests_of_stated, static_cast<int>(paper), place)});
  };
  // Costs are those of kept runs, or of the part that was timed, times what is left to do.
  const auto open = [&](Paper paper, const std::string& place, const std::string& says, const std::string& would_take) {
    found.push_back({.paper = paper, .place = place, .says = says, .would_take = would_take});
  };

  Paper paper = Paper::query_elimination;
  shown(paper, "Lemma 3.1",
        "Attention depends on its input only through three products, so any basis of the input will do.", holds,
        "off by 4.5e-14 at condition number 1e2", "eliminate_projection", eliminate);
  shown(paper, "Proposition 4.2", "A block diagonal matrix between queries and keys changes nothing.", holds,
        "off by 4.1e-15", "gauge_heads", gauge);
  shown(paper, "Theorem 4.1", "Without norms, the query of one layer can be removed exactly, with any skips.", holds,
        "2,304 parameters; a tied head takes 4,656", "eliminate_projection", eliminate);
  shown(paper, "Theorem 4.2",
        "With a skip around attention only, and no norms, the query can be removed in every layer.", holds,
        "-7.32 %, off by 1.0e-6 in float32", "eliminate_projection", certificates);
  shown(paper, "Section 6", "The same holds with RoPE, grouped heads, QK-norm and encoders.", holds,
        "3.7e-14 with RoPE, 4 heads on 2", "merge_skipless", "docs/theorems/merge_skipless.md");
  shown(paper, "Remark 6", "Through LayerNorm, no query can be removed exactly.", holds,
        "241 = 241: the count of gpt2 has none", "redundancy", "docs/redundancy.md");
  shown(paper, "Corollary 8.4.1", "A skip Z x becomes a skip Z' x iff some J has W₂[:,J] W₁[J,:] = Z' - Z.", holds, "",
        "absorb_skip", "docs/theorems/absorb_skip.md");
  shown(paper, "Section 5.1", "Weight decay below 0.1 is slightly worse for the reduced model.",
        ClaimVerdict::undecided, "+0.0345 without (one seed), +0.0117 with", "query-elimination",
        "experiments/query-elimination/README.md");
  open(paper, "Section 6", "A lowest learning rate of a tenth of the peak is worse for the reduced model than less.",
       "20 runs like those of query-elimination, two lowest rates for two models with five seeds: 21 minutes of one "
       "H200 at 63 s a run. At the paper's own size, 19 hours a run.");

  paper = Paper::skipless;
  shown(paper, "Figure 1(b), Table 1", "Without skips and norms P and Q merge into their neighbours, exactly.", holds,
        "3.7e-14, predicted 1.8e-13", "merge_skipless", "docs/theorems/merge_skipless.md");
  shown(paper, "Figures 1(c), 1(d)", "K or V can be removed instead of Q if no heads share them.", holds,
        "-14.63 %, off by 5.9e-7 in float32", "merge_skipless", certificates);
  open(paper, "Section 5", "All square matrices of Mistral-7B are invertible.",
       "its weights, 14.5 GB, which cannot be had here. Then invertible-matrices measures them: 64 matrices of width "
       "4,096 at 33 s each, 35 minutes on two CPU cores.");

  paper = Paper::attention_only;
  shown(paper, "Theorem 4", "A transformer with MLPs becomes one of attention alone.", holds, "off by 8.4e-16",
        "lower_mlp_to_heads", lower);
  shown(paper, "Theorems 6 and 7", "Linear maps and activations alone are attention heads.", holds, "",
        "lower_mlp_to_heads", lower);

  paper = Paper::minimum_transformer;
  shown(paper, "Section 3", "Collapsed matrices save half of an attention's parameters.", corrected,
        "18,432 with one head; 9,408 for 4,704 with four", "collapse_heads", "docs/theorems/collapse_heads.md");
  open(paper, "Section 6", "On ImageNet the reduced models do not converge.",
       "ImageNet's 1.28 million images, 138 GB, which cannot be had here. By tokens, from CIFAR-10's 25 s a run: 33 "
       "minutes of one H200 for each run of 40 epochs at 196 patches, 5 h 30 min for two models with five seeds.");

  paper = Paper::rank_and_symmetry;
  shown(paper, "Proposition 6.2 (iii)", "A directional head writes into two dimensions.", fails, "16 of 16",
        "parametric-simulation", simulation);
  shown(paper, "Proposition 6.3", "A head writes min(rank X, k) dimensions, whatever its asymmetry.", holds, "16 of 16",
        "parametric-simulation", simulation);
  shown(paper, "Corollary 6.6", "The more directional the heads, the lower the rank of multi-head attention.", fails,
        "r = -0.271 and +0.267 in trained models", "asymmetry-vs-rank", "experiments/asymmetry-vs-rank/README.md");
  shown(paper, "Proposition C.2 (ii)", "Heads are free up to their order and a matrix of GL(k) each.", holds,
        "off by 4.1e-15", "gauge_heads", gauge);
  shown(paper, "Table 1", "The MLP is 64.8 % of the operations of BERT-base.", holds, "64.9 %", "ffn-width",
        "experiments/ffn-width/README.md");

  // Its models cannot be had here. norm-removal runs the same on smaller ones, under paper 0.
  open(Paper::without_layer_norm, "table of losses",
       "Fine-tuned until its LayerNorms are constants, GPT-2 loses 0.067 (small), 0.025 (medium), 0.014 (large) and "
       "0.025 nats (XL).",
       "the weights of the four GPT-2s (11 GB in float32) and OpenWebText, which cannot be had here. A billion tokens "
       "of "
       "fine-tuning take 38 minutes of one H200 with GPT-2 at 442 thousand tokens a second; by parameters, 7 h 54 min "
       "with XL.");
  return found;
}

std::vector<StatedClaim> stated_claims() {
  std::vector<StatedClaim> all;
  for (const Paper paper : {Paper::query_elimination, Paper::skipless, Paper::attention_only,
                            Paper::minimum_transformer, Paper::rank_and_symmetry, Paper::without_layer_norm}) {
    for (const PaperClaim& claim : claims()) {
      if (claim.paper == paper) {
        all.push_back({claim.id, paper, claim.place, claim.says, claim.recorded, claim.number,
                       fmt::format("experiments/{}/README.md", claim.id)});
      }
    }
    for (StatedClaim& claim : further_claims()) {
      if (claim.paper == paper) {
        all.push_back(std::move(claim));
      }
    }
  }
  return all;
}

std::string to_words(const std::optional<ClaimVerdict>& verdict) {
  return verdict ? to_words(*verdict) : "not measured";
}

std::string tally_of_claims() {
  const std::vector<StatedClaim> all = stated_claims();
  std::vector<std::string> parts;
  const auto add = [&](const std::optional<ClaimVerdict>& verdict, const char* words) {
    int64_t number = 0;
    for (const StatedClaim& claim : all) {
      number += claim.verdict == verdict;
    }
    if (number > 0) {
      parts.push_back(fmt::format("{} {}", number, words));
    }
  };
  add(ClaimVerdict::holds, "hold");
  add(ClaimVerdict::holds_corrected, "hold with a correction");
  add(ClaimVerdict::does_not_hold, "do not hold");
  add(ClaimVerdict::undecided, "undecided");
  add(std::nullopt, "not measured");
  return fmt::format("{} claims: {}", all.size(), fmt::join(parts, ", "));
}

}  // namespace pare
