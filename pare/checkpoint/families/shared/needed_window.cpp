#include "pare/checkpoint/families/shared/needed_window.h"

#include "pare/checkpoint/fields.h"

namespace pare {

const Field needed_window = {[](Config& config, const Key& key, Draft& draft) {
                               field::window.read(config, key, draft);
                               if (config.is_null(key.name())) {
                                 config.wrong(key.name(), nullptr,
                                              "a whole number: the family has a window even where no layer uses it");
                               }
                             },
                             [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                               field::window.write(config, key, draft);
                               if (config[key.name()].is_null()) {
                                 config[key.name()] = draft.a.context;
                               }
                             }};

}  // namespace pare
