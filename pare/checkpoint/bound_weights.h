#pragma once
// The same weights under the other names: a family's tensors as ours, and ours as a family's.

#include <map>
#include <string>
#include <vector>

#include "pare/checkpoint/family.h"
#include "pare/checkpoint/weights.h"

namespace pare {

// Everything the Architecture needs, under canonical names. InputError listing every tensor that is missing,
// unexpected, of the wrong shape or of a type that pare does not compute with, and pivots that are none; no other data
// is read. A fused tensor is read once for all that it holds. Where a file holds a tied tensor twice, the first is
// taken.
Weights canonical_weights(const Family& family, const Architecture& architecture, const Weights& stored,
                          const std::string& subject);

// What a file holds and canonical_weights() does not read, by the name there.
struct UnusedName {
  std::string name;     // the family's, with the base prefix
  std::string copy_of;  // the same, of the tied tensor that it is a second copy of; or empty
};
std::map<std::string, UnusedName> unused_names(const Family& family, const Architecture& architecture,
                                               const Weights& stored);

// Where a file keeps what the family calls so.
struct BoundName {
  std::string in_file;                 // its name there; empty where it is not there
  std::vector<std::string> tied;       // other names of the same data, whether they are there or not
  std::vector<std::string> canonical;  // what it holds of ours
  bool transposed = false;             // a matrix that is stored [in, out]
};
// Of every tensor that the Architecture may have in a file, by the family's name with the base prefix.
std::map<std::string, BoundName> bound_names(const Family& family, const Architecture& architecture,
                                             const Weights& stored);

// As transformers does: what the configuration ties, but a file holds twice and differently, is not tied. Hands back a
// warning for each such pair. Where there is one, `stored` has been given what the untied model reads, and the
// Architecture has to be read again, untied. Reads both tensors, where both are there.
std::vector<std::string> untie_if_different(const Family& family, const Architecture& architecture, Weights& stored,
                                            const std::string& subject);

// The weights under the family's own names, to write with family_config(): every tensor present, copies left out.
// Where the family has several sets of names, that of `named_like`.
Weights family_weights(const Family& family, const Architecture& architecture, const Weights& canonical,
                       const Weights& named_like = {});
// How a tensor is called in a file of this Architecture: one of a bare model without the base prefix.
std::string written_name(const Family& family, const Architecture& architecture, std::string name);

}  // namespace pare
