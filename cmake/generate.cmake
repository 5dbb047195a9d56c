# Writes C++ from file names and JSON files, at configure time; a new file is seen by itself.

# generated/families.cpp: one entry per pare/checkpoint/families/NAME.cpp, which defines family_NAME().
file(GLOB family_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/pare/checkpoint/families/*.cpp)
set(declarations "")
set(entries "")
foreach(file ${family_files})
  get_filename_component(name ${file} NAME_WE)
  string(APPEND declarations "const Family& family_${name}();\n")
  string(APPEND entries "&family_${name}(), ")
endforeach()
set(PARE_FAMILIES_CPP ${CMAKE_BINARY_DIR}/generated/families.cpp)
file(CONFIGURE OUTPUT ${PARE_FAMILIES_CPP} @ONLY CONTENT [[
#include "pare/checkpoint/family.h"

namespace pare {

@declarations@
const std::vector<const Family*>& families() {
  static const std::vector<const Family*> list = {@entries@};
  return list;
}

}  // namespace pare
]])

# generated/presets.cpp: presets/*.json as text.
file(GLOB preset_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/presets/*.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${preset_files})
set(entries "")
foreach(file ${preset_files})
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE "\\.json$" "" name ${name})
  file(READ ${file} text)
  string(APPEND entries "    {\"${name}\", R\"json(${text})json\"},\n")
endforeach()
set(PARE_PRESETS_CPP ${CMAKE_BINARY_DIR}/generated/presets.cpp)
file(CONFIGURE OUTPUT ${PARE_PRESETS_CPP} @ONLY CONTENT [[
#include "pare/arch/presets.h"

namespace pare {

const std::map<std::string, std::string_view, std::less<>>& preset_texts() {
  static const std::map<std::string, std::string_view, std::less<>> texts = {
@entries@  };
  return texts;
}

}  // namespace pare
]])
