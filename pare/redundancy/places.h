#pragma once
// Every place of the computation, one by one: what is added up there, which matrices and norms read it. Streams
// (pare/arch/streams.h) unite what a skip joins, since that has one basis; a constant, or a mean, can differ on both
// sides of a skip. Places that a block run twice reads are one.

#include <optional>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/arch/tensor_id.h"

namespace pare {

enum class Zone { stream, embedding, transform, sequence };  // of one width each

// A matrix, or several of the same kind, that reads a place.
struct PlaceReader {
  ModuleId module;
  int64_t rows = 0;
  bool absorbs = false;  // a constant added to what it reads can be taken back, or goes on as a constant
  bool settles = false;  // it ends there: by a bias of its own or the next, or because nobody sees it
  int64_t unseen = 0;    // directions of it that LayerNorm's zero mean hides; usually its rows
  int64_t unless = 0;    // the same where the norm has a bias, and the matrix does not settle constants
  int64_t passed = 0;    // rows whose constants nobody sees, though the matrix does not absorb
};

// A matrix or table that writes a place: so many vectors.
struct PlaceWriter {
  ModuleId module;
  int64_t vectors = 0;
};

struct PlaceNorm {
  ModuleId module;
  Norm norm;
};

// target = the sum of some places, of others through a matrix, and of a constant that is stored.
struct Sum {
  size_t target = 0;
  std::vector<size_t> added, mapped;
  bool constant = false;
  std::optional<PlaceNorm> norm;  // target is its output
};

struct Place {
  Zone zone = Zone::stream;
  int64_t width = 0;
  bool pinned = false;    // something takes it as it is, so that no constant can be added
  bool identity = false;  // a projection without a matrix reads it
  std::vector<PlaceReader> readers;
  std::vector<PlaceWriter> writers;
  std::vector<PlaceNorm> norms;  // that read it
  bool mean_unseen = false;      // only LayerNorms read it, and whatever it is added to
};

struct BlockPlaces {
  size_t attention_input = 0, attention_output = 0;
};

struct Places {
  std::vector<Place> all;
  std::vector<Sum> sums;
  std::vector<BlockPlaces> blocks;
  size_t embedded = 0, head_input = 0;

  // The LayerNorm whose output a place is, and nothing else: what it writes lies beside one direction. An RMSNorm after
  // one without a bias keeps that; the two are then one norm.
  std::optional<Norm> layer_norm_of(size_t place) const;
};

Places find_places(const Architecture& architecture);

// Whether softmax drops a constant that is added to every key of a head, but for `turned` dimensions of it.
bool drops_key_constants(const Attention& attention);
// Whether a constant that is added to every value comes out as one that the output's bias can take.
bool passes_value_constants(const Attention& attention);
// Whether the value's bias can make any constant there.
bool value_bias_reaches_all(const Attention& attention, int64_t width);

}  // namespace pare
