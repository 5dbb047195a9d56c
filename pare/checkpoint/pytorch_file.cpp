#include "pare/checkpoint/pytorch_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "pare/checkpoint/pickle.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace pare {

static_assert(std::endian::native == std::endian::little, "data is little-endian and copied as it is");

namespace {

constexpr const char* save_again = "load it with torch.load and save it again with torch.save, on a machine of today";

uint64_t bytes_of(Dtype dtype) {
  return static_cast<uint64_t>(dtype_bits(dtype)) / 8;
}

std::optional<uint64_t> product(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

std::optional<uint64_t> bytes_of(const PickledStorage& storage) {
  return product(storage.count, storage.dtype ? bytes_of(*storage.dtype) : 1);
}

// The last element's number within the storage; nothing where it overflows.
std::optional<uint64_t> last_element(const PickledTensor& tensor) {
  uint64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const std::optional<uint64_t> way =
        product(static_cast<uint64_t>(tensor.shape[i]) - 1, static_cast<uint64_t>(tensor.strides[i]));
    if (!way || __builtin_add_overflow(last, *way, &last)) {
      return std::nullopt;
    }
  }
  return last;
}

bool is_contiguous(const PickledTensor& tensor) {
  int64_t next = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != next) {
      return false;
    }
    next *= tensor.shape[i];
  }
  return true;
}

// Of a tensor in a storage whose bytes are at `place`: within it, and with no element twice, so that no small file
// stands for more bytes than it has. InputError of what follows the tensor's name.
StoredTensor placed(const PickledTensor& tensor, const ZipEntry& place) {
  const std::optional<uint64_t> size = byte_size(tensor.dtype, tensor.shape);
  refuse_if(!size, "has more bytes than can be counted");
  StoredTensor stored{.dtype = tensor.dtype, .shape = tensor.shape, .begin = place.begin, .end = place.begin};
  if (*size == 0) {
    return stored;
  }
  const uint64_t element = bytes_of(tensor.dtype);
  const std::optional<uint64_t> last = last_element(tensor);
  refuse_if(!last || *last >= place.size / element, "reaches beyond its storage {}, which has {} bytes",
            quote(tensor.storage.key), place.size);
  refuse_if(*size > place.size,
            "has {} bytes in a storage of {}: its elements lie over each other, which pare does not read; save a copy "
            "of it (tensor.contiguous())",
            *size, place.size);
  stored.begin += tensor.offset * element;
  stored.end = stored.begin + *size;
  if (!is_contiguous(tensor)) {
    stored.strides = tensor.strides;
  }
  return stored;
}

struct StateDict {
  std::map<std::string, PickledTensor> tensors;
  std::string within;  // the key under which it was found, where it is not the whole
};

const PickledDict& dict_of(const Pickle& pickle, PickleIndex index, const std::string& subject) {
  const auto* dict = std::get_if<PickledDict>(&pickle.at(index));
  refuse_if(dict == nullptr, "{} holds {}, expected a state dict: save model.state_dict()", subject,
            kind_of(pickle.at(index)));
  return *dict;
}

bool holds_tensors(const Pickle& pickle, const PickledDict& dict) {
  return std::ranges::any_of(
      dict.entries, [&](const auto& entry) { return std::holds_alternative<PickledTensor>(pickle.at(entry.second)); });
}

const std::string* text_at(const Pickle& pickle, PickleIndex index) {
  return std::get_if<std::string>(&pickle.at(index));
}

StateDict state_dict(const Pickle& pickle, const std::string& subject) {
  const PickledDict& root = dict_of(pickle, pickle.root, subject);
  const PickledDict* chosen = holds_tensors(pickle, root) ? &root : nullptr;
  StateDict found;
  std::vector<std::string> candidates;
  for (const auto& [key, value] : root.entries) {
    const auto* dict = std::get_if<PickledDict>(&pickle.at(value));
    if (dict != nullptr && holds_tensors(pickle, *dict)) {
      const std::string* name = text_at(pickle, key);
      candidates.push_back(name == nullptr ? std::string(kind_of(pickle.at(key))) : quote(*name));
      found.within = name == nullptr ? "" : *name;
      chosen = chosen == nullptr ? dict : chosen;
    }
  }
  refuse_if(chosen == nullptr, "{} holds no tensors: expected a state dict, or a dict with one in it", subject);
  if (!candidates.empty() && (chosen == &root || candidates.size() > 1)) {
    throw InputError(fmt::format("{} holds tensors in {}{}, and one of these is the model: save that one alone",
                                 subject, chosen == &root ? "the dict itself and " : "",
                                 fmt::join(candidates, " and ")));
  }
  Problems problems;
  for (const auto& [key, value] : chosen->entries) {
    const std::string* name = text_at(pickle, key);
    const auto* tensor = std::get_if<PickledTensor>(&pickle.at(value));
    if (name == nullptr || tensor == nullptr) {
      problems.add(fmt::format("entry {} is {}, expected a tensor",
                               name ? quote(*name) : std::string(kind_of(pickle.at(key))), kind_of(pickle.at(value))));
    } else {
      problems.add_if(!found.tensors.emplace(*name, *tensor).second, "tensor {} is there twice", quote(*name));
    }
  }
  problems.throw_if_any(subject);
  return found;
}

TensorHeader header_of(const StateDict& state, const std::map<std::string, ZipEntry>& storages,
                       const std::string& subject) {
  TensorHeader header;
  Problems problems;
  for (const auto& [name, tensor] : state.tensors) {
    const auto place = storages.find(tensor.storage.key);
    const std::optional<uint64_t> wanted = bytes_of(tensor.storage);
    if (place == storages.end()) {
      problems.add(
          fmt::format("tensor {} lies in storage {}, which is not there", quote(name), quote(tensor.storage.key)));
    } else if (wanted != place->second.size) {
      problems.add(fmt::format("storage {} of tensor {} has {} bytes, expected {}", quote(tensor.storage.key),
                               quote(name), place->second.size,
                               wanted ? std::to_string(*wanted) : "more than can be counted"));
    } else {
      try {
        header.tensors[name] = placed(tensor, place->second);
      } catch (const InputError& error) {
        problems.add(fmt::format("tensor {} {}", quote(name), error.what()));
      }
    }
  }
  problems.throw_if_any(subject);
  if (!state.within.empty()) {
    header.note = fmt::format("{}: the tensors are those in {}", subject, quote(state.within));
  }
  return header;
}

TensorHeader parse_archive(const PlacedBytes& file, const std::string& subject) {
  const std::map<std::string, ZipEntry> entries = read_zip(file, subject);
  constexpr std::string_view pickle_name = "/data.pkl";
  std::string folder;
  for (const auto& [name, entry] : entries) {
    if (name.ends_with(pickle_name) && name.find('/') == name.size() - pickle_name.size()) {
      refuse_if(!folder.empty(), "{}: the archive has {} and {}, expected one", subject, quote(folder + "data.pkl"),
                quote(name));
      folder = name.substr(0, name.size() - pickle_name.size() + 1);
    }
  }
  refuse_if(folder.empty(), "{} is a zip archive without data.pkl: not a file of torch.save", subject);
  refuse_if(entries.contains(folder + "constants.pkl"),
            "{} is TorchScript, a program: load it with torch.jit.load and save its state_dict() with torch.save",
            subject);
  if (const auto order = entries.find(folder + "byteorder"); order != entries.end()) {
    const std::string text = file.text(order->second.begin, std::min<uint64_t>(order->second.size, 16));
    refuse_if(text != "little", "{} has the byte order {}, expected 'little': {}", subject, quote(text), save_again);
  }
  const ZipEntry& pickled = entries.at(folder + "data.pkl");
  refuse_if(pickled.size > longest_pickle, "{}: data.pkl has {} bytes, expected at most {}", subject, pickled.size,
            longest_pickle);
  const Pickle pickle = parse_pickle(file.text(pickled.begin, pickled.size), subject);
  std::map<std::string, ZipEntry> storages;
  const std::string data = folder + "data/";
  for (auto entry = entries.lower_bound(data); entry != entries.end() && entry->first.starts_with(data); ++entry) {
    storages.emplace(entry->first.substr(data.size()), entry->second);
  }
  return header_of(state_dict(pickle, subject), storages, subject);
}

// Before PyTorch 1.6: pickles of a magic number, a version, the machine, the state dict and the keys of its storages;
// then these, each behind the number of its elements.
constexpr std::string_view old_begin("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8P\x19.", 15);

TensorHeader parse_old(const PlacedBytes& file, const std::string& subject) {
  const std::string text = file.text(0, std::min(file.size, longest_pickle));
  uint64_t place = old_begin.size();
  const auto next = [&] {
    Pickle pickle = parse_pickle(std::string_view(text).substr(place), subject);
    place += pickle.end;
    return pickle;
  };
  const Pickle version = next();
  const auto* number = std::get_if<int64_t>(&version.at(version.root));
  refuse_if(number == nullptr || *number != 1001, "{} has another version of PyTorch's old format than 1001: {}",
            subject, save_again);
  const Pickle machine = next();
  for (const auto& [key, value] : dict_of(machine, machine.root, subject).entries) {
    const std::string* name = text_at(machine, key);
    const bool* little = std::get_if<bool>(&machine.at(value));
    refuse_if(name != nullptr && *name == "little_endian" && (little == nullptr || !*little),
              "{} has the byte order of another machine, expected little-endian: {}", subject, save_again);
  }
  const Pickle pickle = next();
  const StateDict state = state_dict(pickle, subject);
  std::map<std::string_view, const PickledStorage*> known;
  for (const PickleValue& value : pickle.values) {
    if (const auto* storage = std::get_if<PickledStorage>(&value)) {
      known.emplace(storage->key, storage);
    }
  }
  const Pickle keys = next();
  const auto* list = std::get_if<PickledList>(&keys.at(keys.root));
  refuse_if(list == nullptr, "{}: the keys of the storages are {}, expected a list", subject,
            kind_of(keys.at(keys.root)));
  std::map<std::string, ZipEntry> storages;
  for (const PickleIndex item : list->items) {
    const std::string* key = text_at(keys, item);
    const auto storage = key == nullptr ? known.end() : known.find(*key);
    refuse_if(storage == known.end(), "{}: a storage that the state dict does not name: {}", subject, save_again);
    refuse_if(file.size - place < 8, "{} ends within its storages: an incomplete download?", subject);
    uint64_t count = 0;
    file.read(place, std::as_writable_bytes(std::span(&count, 1)));
    place += 8;
    const std::optional<uint64_t> size = bytes_of({.key = *key, .dtype = storage->second->dtype, .count = count});
    refuse_if(!size || *size > file.size - place, "{}: storage {} ends beyond the file: an incomplete download?",
              subject, quote(*key));
    refuse_if(!storages.emplace(*key, ZipEntry{place, *size}).second, "{}: storage {} is there twice", subject,
              quote(*key));
    place += *size;
  }
  return header_of(state, storages, subject);
}

}  // namespace

TensorHeader parse_pytorch(const PlacedBytes& file, const std::string& subject) {
  const std::string begin = file.text(0, std::min<uint64_t>(file.size, lfs_pointer_prefix));
  refuse_lfs_pointer(begin, subject);
  if (begin.starts_with("PK")) {
    return parse_archive(file, subject);
  }
  if (begin.starts_with(old_begin)) {
    return parse_old(file, subject);
  }
  throw InputError(
      fmt::format("{} is no file of torch.save: it begins neither as a zip archive nor as PyTorch's old "
                  "format",
                  subject));
}

PytorchFile::PytorchFile(const std::filesystem::path& path)
    : TensorFile(path, [](const InputFile& file) {
        const std::string subject = quote(shown(file.path()));
        const PlacedBytes source{file.size(), [&](uint64_t offset, std::span<std::byte> into) {
                                   refuse_if(file.read_at(offset, into) < into.size(),
                                             "{} became shorter while it was read", subject);
                                 }};
        return parse_pytorch(source, subject);
      }) {}

bool is_pytorch_name(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  constexpr std::string_view others[] = {"tok*.bin", "training_args.bin", "optimizer*", "scheduler.*",
                                         "scaler.*", "rng_state*",        "adapter_*"};
  const bool is_other =
      std::ranges::any_of(others, [&](std::string_view pattern) { return glob_match(pattern, name); });
  return !is_other && (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"));
}

}  // namespace pare
