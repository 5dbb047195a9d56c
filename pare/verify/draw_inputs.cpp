#include "pare/verify/draw_inputs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "pare/arch/head.h"
#include "pare/support/error.h"

namespace pare {

namespace {

constexpr int64_t long_tokens = 256, short_tokens = 64, tiny_tokens = 16;

class Dealer {
 public:
  // `first` are dealt before `cards`, and those before all others.
  Dealer(const Architecture& reference, std::vector<int64_t> first, std::vector<int64_t> cards, uint64_t seed)
      : architecture_(reference), deck_(std::move(cards)), random_(seed) {
    std::shuffle(deck_.begin(), deck_.end(), random_);
    std::shuffle(first.begin(), first.end(), random_);
    deck_.insert(deck_.end(), first.begin(), first.end());  // from the back
  }

  // [sequences, tokens], padded where asked for: lengths between half and all of the tokens, the first row whole, every
  // other row padded in front.
  Inputs batch(int64_t sequences, int64_t tokens, bool padded) {
    Inputs inputs;
    inputs.ids = at::empty({sequences, tokens}, at::kLong);
    for (int64_t s = 0; s < sequences; ++s) {
      fill(inputs.ids[s].data_ptr<int64_t>(), tokens);
    }
    if (padded && sequences > 1 && tokens > 1) {
      inputs.mask = padding(sequences, tokens);
    }
    if (architecture_.embedding.types > 1) {
      inputs.types = at::empty({sequences, tokens}, at::kLong);
      std::generate_n(inputs.types.data_ptr<int64_t>(), sequences * tokens,
                      [this] { return below(architecture_.embedding.types); });
    }
    return inputs;
  }

  bool cards_left() const { return !deck_.empty() && first_deck_; }

 private:
  int64_t below(int64_t count) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(count)); }

  // Every token once before any comes again.
  int64_t next() {
    if (deck_.empty()) {
      first_deck_ = false;
      deck_.resize(static_cast<size_t>(architecture_.vocab));
      std::iota(deck_.begin(), deck_.end(), 0);
      std::shuffle(deck_.begin(), deck_.end(), random_);
    }
    const int64_t token = deck_.back();
    deck_.pop_back();
    return token;
  }

  // The tokens that mean something by their place, such as one that begins every text, have the first or last ids.
  int64_t next_beginning() {
    const int64_t n = beginnings_++ / 2 % architecture_.vocab;
    return beginnings_ % 2 == 1 ? n : architecture_.vocab - 1 - n;
  }

  // One in eight begins a repetition of what stood before, of up to eight tokens.
  void fill(int64_t* ids, int64_t tokens) {
    for (int64_t i = 0; i < tokens;) {
      if (i == 0 || below(8) > 0) {
        ids[i] = i == 0 ? next_beginning() : next();
        ++i;
        continue;
      }
      const int64_t from = below(i), length = std::min(1 + below(8), tokens - i);
      for (int64_t n = 0; n < length; ++n, ++i) {
        ids[i] = ids[from + n];
      }
    }
  }

  at::Tensor padding(int64_t sequences, int64_t tokens) {
    const at::Tensor mask = at::ones({sequences, tokens}, at::kBool);
    for (int64_t s = 1; s < sequences; ++s) {
      const int64_t missing = below(tokens / 2 + 1);
      mask[s].narrow(0, s % 2 == 1 ? 0 : tokens - missing, missing).fill_(false);
    }
    return mask;
  }

  const Architecture& architecture_;
  std::vector<int64_t> deck_;
  bool first_deck_ = true;
  int64_t beginnings_ = 0;
  std::mt19937_64 random_;
};

Inputs images(const Patch& patch, int64_t count, uint64_t seed) {
  Inputs inputs;
  inputs.pixels =
      at::randn({count, patch.channels, patch.image, patch.image}, at::detail::createCPUGenerator(seed), at::kDouble);
  return inputs;
}

}  // namespace

std::vector<Inputs> draw_inputs(const Architecture& reference, int64_t sequences, uint64_t seed) {
  PARE_CHECK(sequences > 0, "nothing to draw");
  if (reference.embedding.patch) {
    return {images(*reference.embedding.patch, sequences, seed)};
  }
  Dealer dealer(reference, {}, {}, seed);
  const auto at_most = [&reference](int64_t tokens) { return std::min(reference.context, tokens); };
  std::vector<Inputs> drawn = {dealer.batch(1, at_most(long_tokens), false)};
  if (sequences > 1) {
    drawn.push_back(dealer.batch(sequences - 1, at_most(short_tokens), true));
  }
  drawn.push_back(dealer.batch(1, at_most(tiny_tokens), false));
  return drawn;
}

std::vector<Inputs> draw_wanted(const Architecture& reference, const Wanted& wanted, int64_t budget, uint64_t seed) {
  if (reference.embedding.patch) {
    const int64_t each = patch_positions(reference);
    const int64_t count = std::max(wanted.sequences, (wanted.tokens + each - 1) / each);
    const int64_t most = std::max<int64_t>(1, budget / each);
    return count == 0 ? std::vector<Inputs>()
                      : std::vector{images(*reference.embedding.patch, std::min(count, most), seed)};
  }
  Dealer dealer(reference, wanted.first_cards, wanted.cards, seed);
  std::vector<Inputs> drawn;
  int64_t sequences = 0, tokens = 0;
  const auto add = [&](int64_t count, int64_t length) {
    drawn.push_back(dealer.batch(count, length, false));
    sequences += count;
    tokens += count * length;
  };
  if (wanted.longest > 0) {
    add(1, std::min({wanted.longest, reference.context, budget / 2}));
  }
  // Every token alone, of every type: among others it may drown.
  const int64_t cards = std::ssize(wanted.first_cards) + std::ssize(wanted.cards);
  Inputs alone;
  alone.ids = at::empty({cards, 1}, at::kLong);
  std::copy(wanted.cards.begin(), wanted.cards.end(),
            std::copy(wanted.first_cards.begin(), wanted.first_cards.end(), alone.ids.data_ptr<int64_t>()));
  for (int64_t type = 0; cards > 0 && type < std::max<int64_t>(1, reference.embedding.types); ++type) {
    if (tokens + cards > (type == 0 ? budget / 2 : budget * 3 / 4)) {
      break;
    }
    alone.types = type == 0 ? at::Tensor() : at::full_like(alone.ids, type);
    drawn.push_back(alone);
    sequences += cards;
    tokens += cards;
  }
  // Short ones where whole sequences are counted.
  const int64_t length = std::min(reference.context, wanted.sequences > 0 ? tiny_tokens : short_tokens);
  while ((dealer.cards_left() || sequences < wanted.sequences || tokens < wanted.tokens) && tokens + length <= budget) {
    const int64_t missing = std::max({wanted.sequences - sequences, (wanted.tokens - tokens + length - 1) / length,
                                      int64_t{dealer.cards_left() ? 1 : 0}});
    add(std::clamp<int64_t>(missing, 1, std::min<int64_t>(64, (budget - tokens) / length)), length);
  }
  return drawn;
}

}  // namespace pare
