#include "pare/verify/questions.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "pare/arch/count.h"
#include "pare/arch/head.h"
#include "pare/support/error.h"
#include "pare/support/sha256.h"

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
      deck_.resize(architecture_.vocab);
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

// What white noise hardly ever is: of one colour, smooth, or far from grey on the whole. Pixels come normalised, black
// from -1 to -2.2 and white from 1 to 2.7, depending on who normalised them.
class Painter {
 public:
  Painter(const Patch& patch, uint64_t seed) : patch_(patch), generator_(at::detail::createCPUGenerator(seed)) {}

  at::Tensor paint(int64_t number) {  // [channels, image, image]
    if (number % 2 == 0) {
      return noise({patch_.channels, patch_.image, patch_.image});
    }
    switch (number / 2 % 6) {
      case 0:
        return page(between(1, 2.7));
      case 1:
        return photograph();
      case 2:
        return page(between(-2.2, -1));
      case 3:
        return ramp();
      case 4:
        return blurred();
      default:
        return noise({patch_.channels, 1, 1}).expand({-1, patch_.image, patch_.image}) * between(0.5, 2);
    }
  }

 private:
  at::Tensor noise(at::IntArrayRef shape) { return at::randn(shape, generator_, at::kDouble); }
  double between(double low, double high) {
    return low + (high - low) * at::rand({}, generator_, at::kDouble).item<double>();
  }
  at::Tensor page(double colour) {
    return at::full({patch_.channels, patch_.image, patch_.image}, colour, at::kDouble);
  }
  at::Tensor scaled(const at::Tensor& image) {  // to a usual contrast, and not always grey on the whole
    return (image - image.mean()) / image.std().clamp_min(1e-12) * between(0.5, 1.5) + between(-1, 1);
  }

  at::Tensor ramp() {
    const at::Tensor place = at::linspace(-1, 1, patch_.image, at::kDouble);
    const double angle = between(0, 6.2832);
    const at::Tensor grey = std::cos(angle) * place.unsqueeze(1) + std::sin(angle) * place;
    return grey.unsqueeze(0) * (1.5 + 0.3 * noise({patch_.channels, 1, 1})) + between(-1, 1);
  }
  at::Tensor blurred() {
    const at::Tensor few = noise({1, patch_.channels, 3, 3});
    return scaled(at::upsample_bilinear2d(few, {patch_.image, patch_.image}, true)[0]);
  }
  // As much in every octave: amplitudes fall like one over the frequency.
  at::Tensor photograph() {
    const at::Tensor spectrum = at::fft_rfft2(noise({patch_.channels, patch_.image, patch_.image}));
    const at::Tensor rows = at::fft_fftfreq(patch_.image, 1.0 / patch_.image, at::kDouble);
    const at::Tensor columns = at::fft_rfftfreq(patch_.image, 1.0 / patch_.image, at::kDouble);
    const at::Tensor frequency = (rows.unsqueeze(1).square() + columns.square()).sqrt().clamp_min(1);
    return scaled(at::fft_irfft2(spectrum / frequency, std::vector<int64_t>{patch_.image, patch_.image}));
  }

  const Patch& patch_;
  at::Generator generator_;
};

Inputs images(const Patch& patch, int64_t count, uint64_t seed) {
  Painter painter(patch, seed);
  std::vector<at::Tensor> painted;
  for (int64_t n = 0; n < count; ++n) {
    painted.push_back(painter.paint(n));
  }
  Inputs inputs;
  inputs.pixels = at::stack(painted);
  return inputs;
}

// The cards alone, as many as may be: among others one may drown. Of every type, a few thousand at a time.
std::vector<Inputs> alone(const Architecture& reference, const Wanted& wanted, uint64_t seed) {
  constexpr int64_t together = 8192;
  std::vector<int64_t> cards = wanted.cards;
  std::mt19937_64 random(seed);
  std::shuffle(cards.begin(), cards.end(), random);
  cards.insert(cards.begin(), wanted.first_cards.begin(), wanted.first_cards.end());
  std::vector<Inputs> drawn;
  int64_t left = wanted.alone;
  for (int64_t type = 0; type < std::max<int64_t>(1, reference.embedding.types); ++type) {
    for (int64_t begin = 0; begin < std::ssize(cards) && left > 0; begin += together) {
      const int64_t count = std::min({together, std::ssize(cards) - begin, left});
      Inputs some;
      some.ids = at::empty({count, 1}, at::kLong);
      std::copy_n(cards.begin() + begin, count, some.ids.data_ptr<int64_t>());
      some.types = type == 0 ? at::Tensor() : at::full_like(some.ids, type);
      drawn.push_back(some);
      left -= count;
    }
  }
  return drawn;
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
    const int64_t count = std::max(wanted.sequences, 2 * ((wanted.tokens + each - 1) / each));  // half are noise
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
  for (Inputs& some : alone(reference, wanted, seed)) {
    sequences += some.ids.size(0);
    drawn.push_back(std::move(some));
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

static std::string file_lines(const ModelFolder& model) {
  std::string lines;
  for (const auto& [name, hash] : file_hashes(model)) {
    lines += fmt::format("{} {}\n", name, hash);
  }
  return lines;
}

uint64_t drawn_seed(const ModelFolder& reference, const ModelFolder& candidate, uint64_t seed) {
  const std::string hash =
      sha256_of(fmt::format("{}--\n{}--\n{}\n", file_lines(reference), file_lines(candidate), seed));
  return std::stoull(hash.substr(0, 16), nullptr, 16);
}

namespace {

constexpr double most_score_bytes = 0x1p31, most_score_operations = 0x1p37, most_alone_operations = 0x1p40;

// Two for each weight of a matrix; and what is compared of a logit costs as much as sixteen entries of the head.
double operations_per_token(const Architecture& a) {
  double weights = static_cast<double>(head_size(a)) * static_cast<double>(a.width + 16);
  for (const int64_t block : layer_blocks(a)) {
    weights += static_cast<double>(count_block(a, block).total);
  }
  return 2 * weights;
}

// Attention that is fused keeps no scores; what it may see is a table of bytes. Explicit attention holds its scores
// three times over: as they are, masked, and as probabilities. Of float64 a GPU has no fused one.
double score_bytes(const Attention& t, at::Device device) {
  const bool is_explicit = t.softcap || t.alibi || t.scores == Form::collapsed || t.values == Form::collapsed;
  return is_explicit || device.is_cuda() ? 1 + 3 * 8 * static_cast<double>(t.heads) : 1;
}

// For each pair of tokens: two products over a head's width, and an exponential, which costs as much as eight entries.
double score_operations(const Architecture& a) {
  double sum = 0;
  for (const int64_t block : layer_blocks(a)) {
    const Attention& t = a.blocks[block].attention;
    sum += 4 * static_cast<double>(t.heads) * static_cast<double>(t.head_width + 8);
  }
  return sum;
}

double dearer(const Architecture& reference, const Architecture& candidate) {
  return std::max(operations_per_token(reference), operations_per_token(candidate));
}

}  // namespace

LongestSequence longest_affordable(const Architecture& reference, const Architecture& candidate, int64_t budget,
                                   at::Device device) {
  double bytes = 0;
  for (const Architecture* a : {&reference, &candidate}) {
    for (const Block& block : a->blocks) {
      bytes = std::max(bytes, score_bytes(block.attention, device));
    }
  }
  const double operations = std::max(score_operations(reference), score_operations(candidate));
  const double most_operations =
      std::max(most_score_operations, static_cast<double>(budget) * dearer(reference, candidate));
  LongestSequence longest{reference.context, ""};
  const auto at_most = [&longest](double tokens, std::string bound) {
    if (tokens < static_cast<double>(longest.tokens)) {
      longest = {std::max<int64_t>(1, static_cast<int64_t>(tokens)), std::move(bound)};
    }
  };
  const double context = static_cast<double>(reference.context);
  at_most(static_cast<double>(budget) / 2, fmt::format("--budget {} would ask it", 2 * reference.context));
  at_most(std::sqrt(most_score_bytes / bytes),
          fmt::format("its scores would take {:.3g} GB", bytes * context * context / 1e9));
  at_most(std::sqrt(most_operations / operations),
          fmt::format("its scores would take {:.2g} operations", operations * context * context));
  return longest;
}

bool can_hold_attention(const Architecture& architecture, int64_t tokens) {
  constexpr double most_bytes = 0x1p29;
  const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens);
  return std::ranges::all_of(architecture.blocks, [pairs](const Block& block) {
    return 8 * pairs * static_cast<double>(block.attention.heads) <= most_bytes;
  });
}

int64_t affordable_alone(const Architecture& reference, const Architecture& candidate, int64_t budget) {
  const double cheap = most_alone_operations / std::max(1.0, dearer(reference, candidate));
  return std::max(budget / 2, static_cast<int64_t>(std::min(cheap, 1e12)));
}

}  // namespace pare
