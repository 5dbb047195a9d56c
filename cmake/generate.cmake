# Writes C++ from file names and JSON files, at configure time; a new file is seen by itself.

# generated/FUNCTION.cpp: a list with one entry for each FOLDER/NAME.cpp, which defines `const TYPE& KIND_NAME()`.
function(pare_list_files type kind folder header function variable)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER files EXCLUDE REGEX "${ARGN}")
  set(declarations "")
  set(entries "")
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    string(APPEND declarations "const ${type}& ${kind}_${name}();\n")
    string(APPEND entries "&${kind}_${name}(), ")
  endforeach()
  set(output ${CMAKE_BINARY_DIR}/generated/${function}.cpp)
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
#include "@header@"

namespace pare {

@declarations@
const std::vector<const @type@*>& @function@() {
  static const std::vector<const @type@*> list = {@entries@};
  return list;
}

}  // namespace pare
]])
  set(${variable} ${output} PARENT_SCOPE)
endfunction()

pare_list_files(Family family pare/checkpoint/families pare/checkpoint/family.h families PARE_FAMILIES_CPP "^$")
pare_list_files(Pass pass pare/passes pare/passes/pass.h passes_by_file PARE_PASSES_CPP "/order\\.cpp$")

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

# generated/unicode.cpp: the lines of pare/data/unicode.txt.
set(unicode_file ${CMAKE_SOURCE_DIR}/pare/data/unicode.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${unicode_file})
file(READ ${unicode_file} text)
string(STRIP "${text}" text)
string(REPLACE "\n" "\",\n\"" text "${text}")
set(PARE_UNICODE_CPP ${CMAKE_BINARY_DIR}/generated/unicode.cpp)
file(CONFIGURE OUTPUT ${PARE_UNICODE_CPP} @ONLY CONTENT [[
#include "pare/data/unicode.h"

namespace pare {

std::span<const std::string_view> unicode_lines() {
  static constexpr std::string_view lines[] = {
"@text@"};
  return lines;
}

}  // namespace pare
]])

# generated/norm_runs.cpp: of experiments/norm-removal/runs.json what `audit` says of its recipe.
set(runs_file ${CMAKE_SOURCE_DIR}/experiments/norm-removal/runs.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${runs_file})
file(READ ${runs_file} text)
string(JSON runs GET "${text}" runs)
string(JSON count LENGTH "${runs}")
math(EXPR last "${count} - 1")
set(entries "")
foreach(i RANGE ${last})
  string(JSON run GET "${runs}" ${i})
  string(JSON name GET "${run}" name)
  string(JSON loss GET "${run}" loss)
  string(JSON start GET "${run}" validation 0)
  string(JSON parameters GET "${run}" parameters)
  string(JSON steps GET "${run}" config steps)
  string(JSON morph_steps ERROR_VARIABLE none GET "${run}" config morph steps)
  if(none)
    set(morph_steps 0)
  endif()
  string(JSON stories ERROR_VARIABLE none GET "${run}" seen stories)
  if(none OR stories STREQUAL "")
    set(stories 0)
  endif()
  string(JSON stopped ERROR_VARIABLE ended GET "${run}" stopped)
  if(ended)
    set(stopped false)
  else()
    set(stopped true)
  endif()
  string(APPEND entries "      {\"${name}\", ${loss}, ${start}, ${stories}, ${parameters}, ${steps}, ${morph_steps}, ${stopped}},\n")
endforeach()
set(PARE_NORM_RUNS_CPP ${CMAKE_BINARY_DIR}/generated/norm_runs.cpp)
file(CONFIGURE OUTPUT ${PARE_NORM_RUNS_CPP} @ONLY CONTENT [[
#include "pare/audit/trained_away.h"

namespace pare {

std::span<const KeptNormRun> kept_norm_runs() {
  static constexpr KeptNormRun runs[] = {
@entries@  };
  return runs;
}

}  // namespace pare
]])

# generated/modeling_code.cpp: the Python that goes beside an exported model.
set(modeling_file ${CMAKE_SOURCE_DIR}/pare/export/python/modeling_pare.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${modeling_file})
file(READ ${modeling_file} modeling_text)
set(PARE_MODELING_CPP ${CMAKE_BINARY_DIR}/generated/modeling_code.cpp)
file(CONFIGURE OUTPUT ${PARE_MODELING_CPP} @ONLY CONTENT [[
#include "pare/checkpoint/modeling_code.h"

namespace pare {

std::string_view modeling_code() {
  return R"python(@modeling_text@)python";
}

}  // namespace pare
]])
