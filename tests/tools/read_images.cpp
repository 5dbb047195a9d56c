// read_images FORMAT CHANNELS SIDE CLASSES PATH...: the pixels and then the labels (a byte each) of images, on stdout.

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "pare/data/image_set.h"
#include "pare/support/error.h"

int main(int argc, char** argv) {
  using namespace pare;
  const std::map<std::string, ImageFormat> formats = {{"idx", ImageFormat::idx},
                                                      {"cifar10", ImageFormat::cifar10},
                                                      {"cifar100", ImageFormat::cifar100},
                                                      {"folders", ImageFormat::folders}};
  if (argc < 6 || !formats.contains(argv[1])) {
    std::fputs("read_images FORMAT CHANNELS SIDE CLASSES PATH...\n", stderr);
    return 1;
  }
  try {
    const ImageSet set = read_images({argv + 5, argv + argc}, formats.at(argv[1]),
                                     {std::atoi(argv[2]), std::atoi(argv[3])}, std::atoi(argv[4]));
    const std::vector<uint8_t> labels(set.labels.begin(), set.labels.end());
    std::fwrite(set.pixels.data(), 1, set.pixels.size(), stdout);
    std::fwrite(labels.data(), 1, labels.size(), stdout);
  } catch (const InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
