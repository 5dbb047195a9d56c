#pragma once
// A window that transformers asks for, whether a layer uses it or not.

#include "pare/checkpoint/family_table.h"

namespace pare {

extern const Field needed_window;

}  // namespace pare
