#pragma once
// What all layers of a graph share, and each asks for: who may look at whom, which positions, how far heads turn. Made
// when it is first asked for, once.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pare/export/onnx_builder.h"

namespace pare {

struct OnnxTurn {  // [batch, 1, tokens, width / 2]
  OnnxName cosine, sine;
};

class OnnxStep {
 public:
  // `cached`: the tokens given continue those of the past.
  OnnxStep(OnnxBuilder& builder, bool cached);

  bool cached() const { return cached_; }
  const OnnxName& mask() const { return mask_; }  // int64 [batch, all tokens]; "" of images
  const OnnxName& positions(bool all);            // int64 [batch or 1, tokens]: real tokens counted from 0
  // Of what all tokens have along this axis, that of the tokens at hand.
  OnnxName at_hand(const OnnxName& all, int64_t axis);

  // What is added to the scores of what may not be seen: [batch or 1, 1, queries, keys]; "": everything is.
  OnnxName hidden(const Attention& attention);
  // The same weight for every key that a query sees.
  OnnxName uniform(const Attention& attention);
  OnnxName alibi(const Attention& attention);  // [batch or 1, heads, queries, keys]
  OnnxName diagonal();                         // [queries, keys]: 1 where a token meets itself
  OnnxTurn turn(const Rope& rope, bool all);
  OnnxName sinusoidal(int64_t width);  // [batch or 1, tokens, width]

 private:
  struct Turned {
    Rope rope;
    bool all;
    OnnxTurn turn;
  };
  OnnxName allowed(const Attention& attention);
  OnnxName meets();
  void make_places();
  OnnxName angles(const OnnxName& positions, const OnnxName& frequencies);
  OnnxName frequencies(const Rope& rope);

  OnnxBuilder& b_;
  bool cached_;
  OnnxName mask_, own_tokens_, from_;  // from_: minus the number of tokens at hand
  OnnxName columns_, rows_;            // int64 [keys], [queries, 1]
  OnnxName positions_, all_positions_, longest_, meets_, diagonal_, distances_;
  std::map<std::pair<Mask, int64_t>, OnnxName> allowed_, hidden_, uniform_;
  std::map<std::pair<int64_t, double>, OnnxName> alibi_;
  std::map<int64_t, OnnxName> waves_;
  std::vector<Turned> turns_;
};

// The highest a score can be pushed down to, and still be a number where everything is.
constexpr double lowest_score = -3.4028234663852886e38;

}  // namespace pare
