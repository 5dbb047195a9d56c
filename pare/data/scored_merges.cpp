#include "pare/data/scored_merges.h"

#include <map>
#include <set>

namespace pare {

std::vector<BpeMerge> scored_merges(const std::vector<ScoredToken>& tokens, const Vocabulary& vocabulary) {
  std::set<float> scores;
  for (const ScoredToken& token : tokens) {
    scores.insert(token.score);
  }
  std::map<float, int64_t> ranks;
  int64_t above = 0;
  for (auto score = scores.rbegin(); score != scores.rend(); ++score) {
    ranks[*score] = above++;
  }
  std::vector<BpeMerge> merges;
  for (size_t n = 0; n < tokens.size(); ++n) {
    const std::string_view text = tokens[n].text;
    for (size_t cut = 1; tokens[n].joins && cut < text.size(); ++cut) {
      const std::optional<TokenId> left = vocabulary.find(text.substr(0, cut)),
                                   right = vocabulary.find(text.substr(cut));
      if (left && right) {
        merges.push_back({*left, *right, static_cast<TokenId>(n), ranks.at(tokens[n].score)});
      }
    }
  }
  return merges;
}

}  // namespace pare
