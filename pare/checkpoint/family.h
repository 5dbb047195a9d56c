#pragma once
// A Hugging Face family: how its config.json and its tensor names translate to ours, and back.
// One file per family in families/, defining `const Family& family_NAME()`; the build finds it by its file name. What
// it defines is a FamilyTable (family_table.h).

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/arch/tensors.h"
#include "pare/checkpoint/config_remarks.h"

namespace pare {

class Config;

// How one stored tensor holds one or several of ours. Both directions are exact: only views, copies and permutations,
// which also work on tensors without data, so that shapes are checked before anything is read.
// A layout made for a matrix also fits the bias beside it.
struct Layout {
  std::function<std::vector<at::Tensor>(const at::Tensor& stored)> split;
  std::function<at::Tensor(const std::vector<at::Tensor>& canonical)> join;
  bool by_rows = false;  // a row of ours is a row of theirs, and can be had alone
};

Layout plain();                          // one tensor, as it is
Layout transposed(Layout of = plain());  // stored [in, out]
// Several on top of each other, `rows` of each, and that pattern `groups` times: [q; k; v] is one group, queries, keys
// and values interleaved by heads are one group per head.
Layout stacked(std::vector<int64_t> rows, int64_t groups = 1);
Layout leading_ones(int64_t count);      // stored with that many dimensions of size one in front
Layout number();                         // stored without a dimension
Layout exchanged_halves(int64_t heads);  // of the rows of each head

// How a file holds what is ours, as a word; where it holds several in one, they are on top of each other.
enum class Stored {
  plain,
  transposed,     // [in, out]
  by_key_heads,   // for each key head in turn: its queries, its key, its value
  in_four_parts,  // for each quarter of the heads in turn
  turned_back,    // for heads that turn the other way
  one_in_front,   // with one dimension of size one in front
  two_in_front,
  number,  // without a dimension
};

struct Binding {
  std::string stored;                  // the family's name, with the base prefix
  std::vector<std::string> canonical;  // our names, in the order in which the layout takes them
  Layout layout = plain();
  std::vector<std::string> copies;  // other names under which a file may hold the same data (a tied head)
};

// Collects the bindings of an Architecture, module by module.
class Binder {
 public:
  explicit Binder(const Architecture& architecture);
  // The weight and the bias of a module, each only where the Architecture has it.
  void module(const std::string& stored, const std::vector<std::string>& canonical, const Layout& layout = plain());
  void tensor(const std::string& stored, const std::string& canonical, const Layout& layout = plain());
  // Either, as a table has it: all of `canonical` in one module or tensor. `attention` for those stored by heads.
  void row(const std::string& stored, const std::vector<std::string>& canonical, Stored how,
           const Attention& attention);
  // `copy` may be in the file beside the tensor that holds `canonical`, and must then be equal to it.
  void copy(const std::string& copy, const std::string& canonical);
  std::vector<Binding> take() { return std::move(bindings_); }

 private:
  TensorTable known_;
  std::vector<Binding> bindings_;
};

struct Family {
  std::string_view model_type;
  // Checkpoints of the bare model leave this prefix out ("transformer." in GPT-2): both spellings load.
  std::string_view base_prefix;
  std::string bare_class;            // the class without a head, as "architectures" names it
  std::vector<std::string> classes;  // all that are read, which "architectures" may name
  // Reads config.json; every problem goes into the Config, which throws them all at once.
  std::function<Architecture(Config& config)> read_config;
  // Writes what config.json can say about an Architecture; family_config() finds out what it cannot.
  std::function<nlohmann::ordered_json(const Architecture& architecture)> write_config;
  // Where the family keeps every tensor of ours.
  std::function<std::vector<Binding>(const Architecture& architecture)> bindings;
  // Where files of one Architecture can have several sets of names: all of them.
  std::function<std::vector<std::vector<Binding>>(const Architecture& architecture)> possible_bindings = nullptr;
  // Globs of stored tensors that the computation does not read (masks, frequencies): they may be there or not.
  std::vector<std::string_view> ignored = {};
  // Endings of names in older files, and what they are called now.
  std::vector<std::pair<std::string_view, std::string_view>> renamed = {};
};

const std::vector<const Family*>& families();
// The native format is one more family: its config.json holds the Architecture, its tensors have canonical names.
const Family& native_family();
// InputError for another type: why it is not read (unread_families.h), or which are, the nearest of them, and the
// remarks.
const Family& find_family(const std::string& model_type, const std::string& subject,
                          const std::vector<std::string>& remarks = {});

// A tensor's name in a file, as it is spelled now.
std::string current_name(const Family& family, std::string name);

// Reads a parsed config.json of the family and validates it. `tensors`: the names stored beside it, where known.
Architecture read_architecture(const Family& family, const nlohmann::json& json, const std::string& subject,
                               std::optional<std::set<std::string>> tensors = std::nullopt, ConfigRemarks remarks = {});
// The config.json of an Architecture. InputError listing all that the family cannot express.
nlohmann::ordered_json family_config(const Family& family, const Architecture& architecture);

// The MLP of a block, to families that know only dense ones: that another is none is found by reading back.
DenseMlp dense_mlp(const Block& block);

}  // namespace pare
