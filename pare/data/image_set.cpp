#include "pare/data/image_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "pare/data/text_file.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/sha256.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr size_t most_problems = 20;
constexpr uint64_t largest_picture = 1'000'000'000;
constexpr uint64_t most_records = 500'000;  // of a file without a header that would say

// What a file holds unpacked, a part at a time: what is packed may be a thousand times what it was packed to.
class Unpacked {
 public:
  explicit Unpacked(const std::string& path) : path_(path), source_(open_bytes(path)) {}

  // Up to `most` bytes in all; fewer where it ends. What was read before stays.
  const std::vector<uint8_t>& read_to(uint64_t most) {
    constexpr uint64_t piece = 1 << 24;
    while (!ended_ && bytes_.size() < most) {
      check_interrupt();
      const size_t known = bytes_.size(), wanted = static_cast<size_t>(std::min<uint64_t>(piece, most - known));
      bytes_.resize(known + wanted);
      const size_t count = source_(std::as_writable_bytes(std::span(bytes_).subspan(known)));
      bytes_.resize(known + count);
      ended_ = count < wanted;
    }
    refuse_if(bytes_.empty(), "{} is empty: there is nothing to learn from it", quote(path_));
    return bytes_;
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  const std::string& path_;
  ByteSource source_;
  std::vector<uint8_t> bytes_;
  bool ended_ = false;
};

std::string hash_of(const std::vector<uint8_t>& bytes) {
  return sha256_of(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void check_labels(const ImageSet& set, size_t from, int64_t classes, const std::string& path) {
  for (size_t i = from; i < set.labels.size(); ++i) {
    if (set.labels[i] >= classes) {
      throw InputError(fmt::format("{}: image {} has the label {}, which is not one of {} classes", quote(path),
                                   i - from, set.labels[i], classes));
    }
  }
}

// MNIST's format: a magic number that says how many dimensions there are, these, and bytes; all numbers big-endian.
struct Idx {
  std::vector<uint8_t> bytes;
  std::vector<int64_t> sizes;
  size_t begin = 0;
};

// No more is unpacked than its header speaks of, and a byte, which tells that there is more.
Idx read_idx(const std::string& path, int64_t dimensions, const char* what) {
  Unpacked file(path);
  Idx idx;
  idx.begin = 4 + 4 * static_cast<size_t>(dimensions);
  const std::vector<uint8_t>& head = file.read_to(idx.begin);
  const auto number = [&](size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < 4; ++i) {
      value = value << 8 | head[4 * at + i];
    }
    return value;
  };
  refuse_if(head.size() < 4 || number(0) != 0x800 + static_cast<uint64_t>(dimensions),
            "{} is no IDX file of {} (its first bytes are not 00 00 08 {:02X}): data.train and data.validation name "
            "pictures, labels, pictures, labels",
            quote(path), what, dimensions);
  uint64_t expected = 1;
  bool possible = head.size() == idx.begin;
  for (size_t i = 0; i < static_cast<size_t>(dimensions) && possible; ++i) {
    idx.sizes.push_back(static_cast<int64_t>(number(i + 1)));
    possible = !__builtin_mul_overflow(expected, number(i + 1), &expected) && expected < uint64_t{1} << 62;
  }
  const size_t there = possible ? file.read_to(idx.begin + expected + 1).size() - idx.begin : 0;
  refuse_if(!possible || there != expected,
            "{}: its header speaks of {} bytes of data, and there are {}: an incomplete download?", quote(path),
            possible ? with_commas(static_cast<int64_t>(expected)) : "impossibly many",
            there > expected ? "more" : with_commas(static_cast<int64_t>(there)));
  idx.bytes = file.take();
  return idx;
}

void read_idx_pair(const std::string& pictures, const std::string& labels, int64_t classes, ImageSet& set) {
  const Idx images = read_idx(pictures, 3, "pictures");
  const Idx numbers = read_idx(labels, 1, "labels");
  if (images.sizes[0] != numbers.sizes[0]) {
    throw InputError(fmt::format("{} has {} pictures, but {} has {} labels: do they belong together?", quote(pictures),
                                 images.sizes[0], quote(labels), numbers.sizes[0]));
  }
  refuse_if(set.shape.channels != 1 || images.sizes[1] != set.shape.side || images.sizes[2] != set.shape.side,
            "{}: grey pictures of {} x {}, but the model reads {} channel{} of {} x {} (embedding.patch)",
            quote(pictures), images.sizes[2], images.sizes[1], set.shape.channels, set.shape.channels == 1 ? "" : "s",
            set.shape.side, set.shape.side);
  const size_t known = set.labels.size();
  set.pixels.insert(set.pixels.end(), images.bytes.begin() + static_cast<std::ptrdiff_t>(images.begin),
                    images.bytes.end());
  set.labels.insert(set.labels.end(), numbers.bytes.begin() + static_cast<std::ptrdiff_t>(numbers.begin),
                    numbers.bytes.end());
  check_labels(set, known, classes, labels);
  set.files.push_back({pictures, images.sizes[0], hash_of(images.bytes)});
  set.files.push_back({labels, images.sizes[0], hash_of(numbers.bytes)});
}

void read_cifar(const std::string& path, size_t labels, int64_t classes, ImageSet& set) {
  constexpr ImageShape cifar{3, 32};
  const size_t pixels = static_cast<size_t>(cifar.bytes()), record = labels + pixels;
  Unpacked file(path);
  const std::vector<uint8_t>& bytes = file.read_to(most_records * record + 1);
  refuse_if(bytes.size() > most_records * record,
            "{} has more than {} records, and a file of CIFAR at most 50,000: split it, if it is one", quote(path),
            with_commas(static_cast<int64_t>(most_records)));
  refuse_if(bytes.size() % record != 0, "{}: {} bytes are no whole number of records of {}: {}", quote(path),
            bytes.size(), record, "another data.format, or an incomplete download?");
  refuse_if(set.shape != cifar,
            "{}: pictures of 3 channels of 32 x 32, but the model reads {} of {} x {} (embedding.patch)", quote(path),
            set.shape.channels, set.shape.side, set.shape.side);
  const size_t known = set.labels.size();
  for (size_t at = 0; at < bytes.size(); at += record) {
    const uint8_t* begin = bytes.data() + at;
    set.labels.push_back(begin[labels - 1]);
    set.pixels.insert(set.pixels.end(), begin + labels, begin + record);
  }
  check_labels(set, known, classes, path);
  set.files.push_back({path, static_cast<int64_t>(bytes.size() / record), hash_of(bytes)});
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

bool is_picture(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

void decode_file(const fs::path& path, const std::string& bytes, const ImageShape& shape, std::span<uint8_t> into) {
  const std::string subject = quote(path.string());
  const std::span<const std::byte> file = std::as_bytes(std::span(bytes));
  refuse_if(bytes.empty(), "{} is empty: expected a JPEG or PNG", subject);
  if (bytes.starts_with("\xFF\xD8")) {
    return decode_jpeg(file, shape, into, subject);
  }
  if (bytes.starts_with("\x89PNG\r\n\x1A\n")) {
    return decode_png(file, shape, into, subject);
  }
  throw InputError(fmt::format("{} is no JPEG and no PNG: its first bytes say so", subject));
}

// Hands back the images' hashes, as sha256sum lists them in the folder of all classes.
std::string read_class(const fs::path& folder, int64_t label, ImageSet& set, Problems& problems) {
  std::string hashes;
  int64_t found = 0;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (is_hidden(entry.path()) || problems.list().size() >= most_problems) {
      continue;
    }
    check_interrupt();
    if (!is_picture(entry.path())) {
      problems.add(fmt::format("{} is no .jpg, .jpeg or .png", quote(entry.path().string())));
      continue;
    }
    const size_t known = set.pixels.size();
    set.pixels.resize(known + static_cast<size_t>(set.shape.bytes()));
    try {
      const std::string bytes = read_text_file(entry.path(), largest_picture);
      hashes += fmt::format("{}  {}\n", sha256_of(bytes), (folder.filename() / entry.path().filename()).string());
      decode_file(entry.path(), bytes, set.shape, std::span(set.pixels).subspan(known));
    } catch (const InputError& error) {
      problems.add(error.what());
    }
    set.labels.push_back(label);
    ++found;
  }
  problems.add_if(found == 0 && problems.list().size() < most_problems, "{} has no images: a class needs some",
                  quote(folder.string()));
  return hashes;
}

void read_folders(const std::string& path, int64_t classes, ImageSet& set, Problems& problems) {
  refuse_if(!fs::is_directory(path), "{} is no folder: with data.format=folders it holds one folder for each class",
            quote(path));
  std::vector<fs::path> folders;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries_of(path)) {
    if (entry.is_directory() && !is_hidden(entry.path())) {
      folders.push_back(entry.path());
      names.push_back(entry.path().filename().string());
    }
  }
  refuse_if(folders.empty(), "{} has no folders: expected one for each class, with its images", quote(path));
  if (std::ssize(folders) > classes) {
    throw InputError(
        fmt::format("{} has folders of {} classes, but the model knows {} (head.classes): the label {} "
                    "of {} is beyond",
                    quote(path), folders.size(), classes, classes, quote(names[classes])));
  }
  refuse_if(!set.classes.empty() && set.classes != names, "{} has other classes than the folder before it: {} and {}",
            quote(path), fmt::join(names, ", "), fmt::join(set.classes, ", "));
  set.classes = names;
  const int64_t known = set.size();
  std::string hashes;
  for (size_t label = 0; label < folders.size(); ++label) {
    hashes += read_class(folders[label], static_cast<int64_t>(label), set, problems);
  }
  set.files.push_back({path, set.size() - known, sha256_of(hashes)});
}

}  // namespace

ImageSet read_images(const std::vector<std::string>& paths, ImageFormat format, const ImageShape& shape,
                     int64_t classes) {
  ImageSet set{.shape = shape};
  Problems problems;
  refuse_if(format == ImageFormat::idx && paths.size() % 2 != 0,
            "{} IDX file{}: expected pictures, labels, pictures, labels", paths.size(), paths.size() == 1 ? "" : "s");
  for (size_t i = 0; i < paths.size(); ++i) {
    switch (format) {
      case ImageFormat::idx:
        read_idx_pair(paths[i], paths[i + 1], classes, set);
        ++i;
        break;
      case ImageFormat::cifar10:
        read_cifar(paths[i], 1, classes, set);
        break;
      case ImageFormat::cifar100:
        read_cifar(paths[i], 2, classes, set);
        break;
      case ImageFormat::folders:
        read_folders(paths[i], classes, set, problems);
        break;
    }
  }
  problems.throw_if_any("the images");
  return set;
}

}  // namespace pare
