#pragma once
// config.json of a family, read with suspicion: every number has a range, every problem is listed, and a key that
// would change the computation in a way we do not do is a refusal.

#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/config_remarks.h"
#include "pare/support/error.h"

namespace pare {

// The most that a file may ask for. Far above any real model, and small enough that no product overflows.
namespace most {
constexpr int64_t layers = 1 << 14, heads = 1 << 16, width = 1 << 20, rows = 1 << 30;
// Of what only enters the arithmetic, transformers takes any number: published models have an epsilon of 1e12, which
// makes a LayerNorm a constant.
constexpr double number = std::numeric_limits<double>::max();
}  // namespace most
constexpr double above_zero = std::numeric_limits<double>::denorm_min();  // the least of what has to be positive

// A class of a family, by the name it has in "architectures".
struct ModelClass {
  std::string name;
  Task task = Task::encoder;
  std::vector<std::string> tensors;  // globs: a file that has all of these, and names no class, is of this one
};

// One name, or several of the same thing.
struct NameList {
  NameList(const char* name) : all{name} {}
  NameList(std::initializer_list<std::string_view> names) : all(names) {}
  std::vector<std::string_view> all;
};

class Config {
 public:
  // `subject` is the path shown in messages; `tensors` the names stored beside it, where they are known.
  Config(nlohmann::json json, std::string subject, std::optional<std::set<std::string>> tensors = std::nullopt,
         ConfigRemarks remarks = {});

  // Absent gives the fallback, and so does null, but for a flag: there it is Python's None, which is not true. Aliases
  // of one setting must agree where several are there.
  int64_t integer(const NameList& keys, int64_t fallback, int64_t least, int64_t most);
  double number(const NameList& keys, double fallback, double least, double most);
  std::vector<double> numbers(std::string_view key, size_t count, double least, double most);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  Activation activation(std::string_view key, std::string_view fallback);  // Hugging Face's names
  int64_t label_count();                                                   // of a classifier: id2label, or num_labels

  const std::string& subject() const { return subject_; }
  bool has(std::string_view key) const;             // there, and not null
  bool is_null(std::string_view key) const;         // there, and null, where that is not the default
  const nlohmann::json& raw(std::string_view key);  // null where absent
  const nlohmann::json& everything() const { return json_; }
  Config inner(std::string_view key);                          // an object within; problems go to this one
  Config inner(std::string_view key, nlohmann::json object);   // the same, with this in its place
  bool stores(std::string_view ending, bool otherwise) const;  // a tensor so named is beside it

  // The one that "architectures" names. Where that names none, the last whose tensors are all there, else the bare
  // model; without knowing the tensors, the first.
  ModelClass model_class(const std::vector<ModelClass>& classes);

  // Refuses any other value than this one. Absent is fine, and so is null, unless the value is true.
  void only(std::string_view key, const nlohmann::json& value, std::string_view why);
  // Known, and without effect on what the model computes.
  void neutral(const std::vector<std::string_view>& keys);
  void wrong(std::string_view key, const nlohmann::json& found, std::string_view expected);
  void problem(std::string text);

  // Throws what was found so far, where going on would only invent more.
  void stop_if_wrong() const { shared_->problems.throw_if_any(subject_); }
  // Throws every problem at once. A key that nobody read is one, unless it is known to have no effect, or unknown keys
  // are ignored. Of an inner object: hands its unread keys to the outer one.
  void finish();

 private:
  struct Shared {
    Problems problems;
    std::vector<std::string> unknown;
    ConfigRemarks remarks;
  };
  Config(nlohmann::json json, std::string prefix, std::shared_ptr<Shared> shared);
  void warn(std::string text) const;
  void finish_unknown();
  ModelClass class_of_tensors(const std::vector<ModelClass>& classes) const;
  const nlohmann::json* find(std::string_view key);
  const nlohmann::json* find_one(const NameList& keys, std::string_view& key);

  nlohmann::json json_;
  std::string subject_, prefix_;  // prefix_: empty for the whole file, "rope_scaling." within
  std::optional<std::set<std::string>> tensors_;
  std::set<std::string, std::less<>> read_;
  std::shared_ptr<Shared> shared_;
};

// What a family fixes about its rotary embedding; the file says the rest.
struct RopeSettings {
  RopeLayout layout = RopeLayout::half;
  double theta = 10000;           // where the file names none
  std::optional<double> partial;  // the part of a head that turns, where the file names none; absent: always all of it
  // What older files call these two, beside rope_scaling; written too.
  std::string_view theta_key = "rope_theta", partial_key = "partial_rotary_factor";
};

// The same where layers with a window turn in their own way.
struct RopeKinds {
  RopeSettings full, sliding;  // of `sliding` the theta_key may be empty: older files have no such key
  bool both_scaled = false;    // the rope_scaling of older files is for both, else only for layers without a window
};
struct RopePair {
  Rope full, sliding;
};

// Both spellings: rope_theta + rope_scaling, and rope_parameters of newer files. Computed settings are resolved here.
Rope read_rope(Config& config, const RopeSettings& settings, int64_t head_width, int64_t context);
// Writes both spellings. The part that turns is left out where it is all of a head, unless the family means less by
// that.
void write_rope(nlohmann::ordered_json& config, const RopeSettings& settings, const Rope& rope, int64_t head_width);
// The same for two kinds of layers: a theta of older files for each, or rope_parameters with an object for each kind.
RopePair read_ropes(Config& config, const RopeKinds& kinds, int64_t head_width, int64_t context);
void write_ropes(nlohmann::ordered_json& config, const RopeKinds& kinds, const RopePair& ropes, int64_t head_width);

std::string_view hugging_face_activation(Activation activation);
void write_labels(nlohmann::ordered_json& config, int64_t classes);
// Names for a message: 'a', 'b', 'c'; all of them, unless there are thousands.
std::string listed(const std::vector<std::string>& names);

}  // namespace pare
