#pragma once
// What several runs say, and how surely: means with their 95 % interval, and differences of runs that are paired by
// their seed, their data and its order. Who compares runs takes what he says from here, `compare` and every claim
// alike.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pare {

// Numbers as they pass: memory does not grow with them (Welford 1962).
struct Moments {
  int64_t count = 0;
  double mean = 0;
  double squares = 0;  // sum of squared distances from the mean

  void add(double value);
  std::optional<double> average() const { return count > 0 ? std::optional(mean) : std::nullopt; }
  std::optional<double> deviation() const;  // of one number, with n - 1; nothing for fewer than two
};

// How many standard errors to either side hold the mean with that confidence, by Student's t.
double student_t(double confidence, int64_t degrees);

struct Interval {
  double least = 0, most = 0;
};

// A mean of independent numbers. It has an interval where they say how far they scatter: several of them, not all
// alike. The same run twice is no evidence, nor are seeds that draw nothing.
struct Estimate {
  int64_t count = 0;
  double mean = 0;
  std::optional<double> deviation = {};       // of one number
  std::optional<double> standard_error = {};  // of the mean
  std::optional<Interval> interval = {};      // 95 %

  double half_width() const { return interval ? (interval->most - interval->least) / 2 : 0; }
};
Estimate estimate_of(std::span<const double> values);

// A few numbers of which some may be far off, such as times on a machine that does other things, too.
struct Quartiles {
  int64_t count = 0;
  double lower = 0, median = 0, upper = 0;  // between two numbers as NumPy has it: on the line that joins them

  double spread() const { return median != 0 ? (upper - lower) / median : 0; }  // the middle half, as a share
};
Quartiles quartiles_of(std::span<const double> values);  // at least one
// The 95 % interval of a median, whatever the numbers are drawn from: between two of them (the sign test). Nothing of
// fewer than six.
std::optional<Interval> median_interval(std::span<const double> values);

// What one run came to.
struct Observed {
  int64_t seed = 0;
  std::string data = {};  // a hash of what it saw, in which order
  double value = 0;
};
// By how much the first are above the others, over the pairs that have seed and data in common. Several runs of one
// seed are one number, their mean; and what is the same pair to the last bit counts once.
std::vector<double> paired(std::span<const Observed> of, std::span<const Observed> reference);
Estimate paired_difference(std::span<const Observed> of, std::span<const Observed> reference);

// Lower and higher: the interval excludes 0. Equal: it does not, and lies within the margin that was named, none else.
enum class Difference { equal, lower, higher, too_few };
Difference difference_of(const Estimate& estimate, const std::optional<double>& margin);
bool is_within(const Estimate& estimate, double margin);  // the whole interval

// With how many pairs in all the interval would exclude 0 or lie within the margin, were mean and deviation as they are
// now; nothing where that is not known or more than 10,000.
std::optional<int64_t> pairs_needed(const Estimate& estimate, const std::optional<double>& margin);

// "higher: +0.0040 ± 0.0020 (5 pairs)", "equal within 0.005: ...", "too few to tell: ... (3 pairs); about 4 would".
std::string in_words(const Estimate& estimate, const std::optional<double>& margin);
// "+0.0025 ± 0.0032 (3 pairs)", "+0.0025 (one pair)"
std::string in_short(const Estimate& estimate);
std::string to_word(Difference difference);  // "too few" and the like

// One number of many sequences, as mean and spread, kept while they pass: memory does not grow with the corpus.
struct Spread : Moments {  // of the sequences that have this number
  int64_t undefined = 0;   // sequences that do not
  std::string reason;      // why not, of the first
  double least = std::numeric_limits<double>::infinity(), most = -std::numeric_limits<double>::infinity();

  // A number that is not finite counts as undefined.
  void add(double value, const char* reason_if_not_finite = "the activations are not finite");
  void add_undefined(const std::string& why);
  // Of other sequences, which come after those that are counted here.
  void add(const Spread& others);
};

}  // namespace pare
