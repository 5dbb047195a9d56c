#include "pare/checkpoint/decoder_family.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/checkpoint/config.h"
#include "pare/support/text.h"

namespace pare {

int64_t equal_head_width(Config& config, int64_t width, int64_t heads) {
  if (width % heads != 0) {
    config.problem(fmt::format("{} heads do not divide the width {}", heads, width));
  }
  return std::max<int64_t>(width / heads, 1);
}

void accept_own_classes(Config& config, std::string_view class_prefix) {
  const nlohmann::json leaves = config.raw("auto_map").flatten();
  for (const auto& [role, value] : leaves.items()) {
    const std::string path = value.is_string() ? value.get<std::string>() : "";
    // REPOSITORY--FILE.CLASS
    const std::string name = path.substr(path.rfind('.') + 1);
    if (!value.is_null() && !name.starts_with(class_prefix)) {
      config.problem(fmt::format("auto_map names {}: models with code of their own are not supported", value.dump()));
    }
  }
}

void bind_blocks(Binder& binder, const Architecture& architecture, std::string_view prefix,
                 const std::vector<BlockModule>& modules) {
  const std::vector<Block> blocks = expanded_blocks(architecture);
  for (size_t n = 0; n < blocks.size(); ++n) {
    const Attention& t = blocks[n].attention;
    for (const BlockModule& module : modules) {
      std::vector<std::string> ours;
      for (std::string_view name : module.ours) {
        ours.push_back(fmt::format("blocks.{}.{}", n, name));
      }
      const Layout layout =
          ours.size() == 1 ? plain()
                           : stacked({t.heads / t.kv_heads * t.head_width, t.head_width, t.head_width}, t.kv_heads);
      binder.module(fmt::format("{}.{}.{}", prefix, n, module.theirs), ours, layout);
    }
  }
}

void bind_head(Binder& binder, const Architecture& architecture, const std::string& stored) {
  binder.module(stored, {"head"});
  if (architecture.head.tied) {
    binder.copy(stored + ".weight", "embed.token.weight");
  }
}

}  // namespace pare
