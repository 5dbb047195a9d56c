#pragma once
// Pictures with their classes, decoded, in one piece of memory: small ones by the ten thousand fit.

#include <cstdint>
#include <string>
#include <vector>

#include "pare/data/image.h"

namespace pare {

// idx: MNIST's files, pictures and then labels. cifar10, cifar100: the binary batches (of 100, the fine classes).
// folders: FOLDER/CLASS/NAME with .jpg, .jpeg and .png; classes are numbered by their sorted names.
enum class ImageFormat { idx, cifar10, cifar100, folders };

struct ImageFile {
  std::string path;
  int64_t images = 0;
  std::string sha256;  // of what it holds unpacked; of a folder, of the list of its images as sha256sum writes it
};

struct ImageSet {
  ImageShape shape;
  std::vector<uint8_t> pixels;  // [images, channels, side, side]
  std::vector<int64_t> labels;
  std::vector<std::string> classes;  // their names, where folders have them
  std::vector<ImageFile> files;
  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

// All paths one after another; those of idx and cifar may be packed by gzip or xz. InputError, with every problem up
// to some number, for files that are missing, cut, damaged or too long, pictures of another shape, a class without
// pictures, and labels that are none of `classes`.
ImageSet read_images(const std::vector<std::string>& paths, ImageFormat format, const ImageShape& shape,
                     int64_t classes);

}  // namespace pare
