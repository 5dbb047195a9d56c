#include "pare/checkpoint/zip_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr uint64_t end_size = 22, end64_size = 56, locator_size = 20, local_size = 30, central_size = 46;
constexpr uint64_t longest_comment = 65535, largest_directory = 64 << 20;
constexpr std::string_view end_mark = "PK\x05\x06", end64_mark = "PK\x06\x06", locator_mark = "PK\x06\x07",
                           central_mark = "PK\x01\x02", local_mark = "PK\x03\x04";

uint64_t number(std::string_view text, size_t place, size_t size) {
  PARE_CHECK(place + size <= text.size(), "beyond a record");
  uint64_t value = 0;
  std::memcpy(&value, text.data() + place, size);  // little-endian, as this machine is
  return value;
}

struct Directory {
  uint64_t begin = 0, size = 0, entries = 0;
};

class Reader {
 public:
  Reader(const PlacedBytes& file, const std::string& subject) : file_(file), subject_(subject) {}

  std::map<std::string, ZipEntry> run() {
    const Directory directory = find_directory();
    refuse_if(directory.size > largest_directory, "{}: the directory of the archive has {} bytes, expected at most {}",
              subject_, directory.size, largest_directory);
    refuse_if(directory.begin > file_.size || directory.size > file_.size - directory.begin,
              "{}: the directory of the archive lies beyond its end: an incomplete download?", subject_);
    // Before anything is kept for each: an entry has a record of at least that size.
    refuse_if(directory.entries > directory.size / central_size,
              "{}: the directory of the archive has {} bytes, too few for {} entries", subject_, directory.size,
              directory.entries);
    const std::string text = file_.text(directory.begin, directory.size);
    std::map<std::string, ZipEntry> entries;
    size_t place = 0;
    for (uint64_t n = 0; n < directory.entries; ++n) {
      place += add(std::string_view(text).substr(place), directory.begin, entries);
    }
    check_apart(entries);
    return entries;
  }

 private:
  Directory find_directory() const {
    refuse_if(file_.size < end_size, "{} has {} bytes, too few for an archive: an incomplete download?", subject_,
              file_.size);
    const uint64_t searched = std::min(file_.size, end_size + longest_comment);
    const uint64_t from = file_.size - searched;
    const std::string tail = file_.text(from, searched);
    for (size_t place = tail.size() - end_size + 1; place-- > 0;) {
      if (std::string_view(tail).substr(place, 4) == end_mark &&
          place + end_size + number(tail, place + 20, 2) == tail.size()) {
        return directory_at(tail, place, from + place);
      }
    }
    throw InputError(
        fmt::format("{} begins as a zip archive but has no directory at its end: an incomplete download?", subject_));
  }

  Directory directory_at(const std::string& tail, size_t place, uint64_t in_file) const {
    const Directory found{number(tail, place + 16, 4), number(tail, place + 12, 4), number(tail, place + 10, 2)};
    const bool in_parts = number(tail, place + 4, 2) != number(tail, place + 6, 2) ||
                          number(tail, place + 8, 2) != number(tail, place + 10, 2);
    if (in_file >= locator_size) {
      const std::string locator = file_.text(in_file - locator_size, locator_size);
      if (locator.starts_with(locator_mark)) {
        return directory64(number(locator, 8, 8), in_file - locator_size);
      }
    }
    refuse_if(in_parts, "{} is one of several parts of an archive, which pare does not read", subject_);
    return found;
  }

  Directory directory64(uint64_t place, uint64_t locator) const {
    refuse_if(place > locator || locator - place < end64_size,
              "{}: the 64-bit directory of the archive lies beyond its end", subject_);
    const std::string end = file_.text(place, end64_size);
    refuse_if(!end.starts_with(end64_mark), "{}: the archive has no 64-bit directory where it says", subject_);
    refuse_if(number(end, 24, 8) != number(end, 32, 8), "{} is one of several parts of an archive", subject_);
    return {number(end, 48, 8), number(end, 40, 8), number(end, 32, 8)};
  }

  // One record of the directory; hands back how long it is.
  size_t add(std::string_view record, uint64_t directory_begin, std::map<std::string, ZipEntry>& entries) const {
    refuse_if(record.size() < central_size || !record.starts_with(central_mark),
              "{}: the directory of the archive is damaged after {} entries", subject_, entries.size());
    const uint64_t name_length = number(record, 28, 2), extra_length = number(record, 30, 2),
                   comment_length = number(record, 32, 2);
    const size_t length = static_cast<size_t>(central_size + name_length + extra_length + comment_length);
    refuse_if(length > record.size(), "{}: the directory of the archive ends within a record", subject_);
    const std::string name(record.substr(central_size, static_cast<size_t>(name_length)));
    const uint64_t flags = number(record, 8, 2), method = number(record, 10, 2);
    refuse_if((flags & 1) != 0, "{}: {} is encrypted", subject_, quote(name));
    refuse_if(method != 0,
              "{}: {} is compressed (method {}), and torch.save stores everything as it is: not a file of PyTorch, or "
              "one that was packed again; unpack it and save it with torch.save",
              subject_, quote(name), method);
    uint64_t packed = number(record, 20, 4), size = number(record, 24, 4), offset = number(record, 42, 4);
    take_wide(record.substr(central_size + name_length, extra_length), {&size, &packed, &offset}, name);
    refuse_if(packed != size, "{}: {} is stored in {} bytes but should have {}", subject_, quote(name), packed, size);
    const ZipEntry entry = located(name, offset, size, directory_begin);
    refuse_if(!entries.emplace(name, entry).second, "{}: the archive has {} twice", subject_, quote(name));
    return length;
  }

  // Numbers of all ones stand in the extra field of zip64, in this order.
  void take_wide(std::string_view extra, std::initializer_list<uint64_t*> numbers, const std::string& name) const {
    constexpr uint64_t elsewhere = 0xffffffff, zip64 = 1;
    std::optional<std::string_view> wide;
    while (extra.size() >= 4) {
      const uint64_t id = number(extra, 0, 2), length = number(extra, 2, 2);
      if (length > extra.size() - 4) {
        break;  // padding
      }
      if (id == zip64) {
        wide = extra.substr(4, static_cast<size_t>(length));
        break;
      }
      extra.remove_prefix(4 + static_cast<size_t>(length));
    }
    for (uint64_t* value : numbers) {
      if (*value != elsewhere) {
        continue;
      }
      refuse_if(!wide || wide->size() < 8, "{}: {} has no 64-bit size or place", subject_, quote(name));
      *value = number(*wide, 0, 8);
      wide->remove_prefix(8);
    }
  }

  // Past the entry's own header, which must have the same name: its length is said there and nowhere else.
  ZipEntry located(const std::string& name, uint64_t offset, uint64_t size, uint64_t directory_begin) const {
    refuse_if(offset > directory_begin || directory_begin - offset < local_size,
              "{}: {} begins at byte {}, beyond the data of the archive", subject_, quote(name), offset);
    const std::string header = file_.text(offset, local_size);
    refuse_if(!header.starts_with(local_mark), "{}: {} is not where the directory says", subject_, quote(name));
    const uint64_t name_length = number(header, 26, 2), extra_length = number(header, 28, 2);
    const uint64_t room = directory_begin - offset - local_size;
    refuse_if(name_length != name.size() || number(header, 8, 2) != 0 || name_length > room ||
                  file_.text(offset + local_size, name_length) != name,
              "{}: {} is another entry where it lies", subject_, quote(name));
    refuse_if(extra_length > room - name_length || size > room - name_length - extra_length,
              "{}: {} has {} bytes and ends beyond the data of the archive: an incomplete download?", subject_,
              quote(name), size);
    return {offset + local_size + name_length + extra_length, size};
  }

  void check_apart(const std::map<std::string, ZipEntry>& entries) const {
    std::vector<std::pair<ZipEntry, std::string_view>> sorted;
    for (const auto& [name, entry] : entries) {
      sorted.emplace_back(entry, name);
    }
    std::ranges::sort(sorted, {}, [](const auto& pair) { return pair.first.begin; });
    for (size_t i = 1; i < sorted.size(); ++i) {
      const auto& [before, before_name] = sorted[i - 1];
      const auto& [after, after_name] = sorted[i];
      refuse_if(before.begin + before.size > after.begin, "{}: {} and {} lie over each other", subject_,
                quote(before_name), quote(after_name));
    }
  }

  const PlacedBytes& file_;
  const std::string& subject_;
};

}  // namespace

std::string PlacedBytes::text(uint64_t offset, uint64_t count) const {
  PARE_CHECK(offset <= size && count <= size - offset, "beyond the end");
  std::string bytes(static_cast<size_t>(count), '\0');
  read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::map<std::string, ZipEntry> read_zip(const PlacedBytes& file, const std::string& subject) {
  return Reader(file, subject).run();
}

}  // namespace pare
