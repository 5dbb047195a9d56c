# libtorch by path: its own CMake package insists on a CUDA toolkit when the wheel was built with CUDA.
# Only the CPU library is linked; the CUDA library is loaded when somebody asks for it.

# TARGET: what to link with, for the torch package in FOLDER, which holds include/ and lib/.
function(pare_add_torch target folder)
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} SYSTEM INTERFACE ${folder}/include)
  target_link_libraries(${target} INTERFACE ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so)
  # libtorch brings the shared C++ library; a compiler that would link a second, static one ends in a crash.
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so.6 OUTPUT_VARIABLE shared_cxx
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(IS_ABSOLUTE "${shared_cxx}")
    target_link_libraries(${target} INTERFACE ${shared_cxx})
  endif()
  target_link_options(${target} INTERFACE -fopenmp -Wl,--allow-shlib-undefined)  # one libgomp: torch ships its own
endfunction()

# The version of the torch package in FOLDER, without what follows a plus.
function(pare_torch_version folder variable)
  file(STRINGS ${folder}/version.py line REGEX "^__version__ = ")
  string(REGEX REPLACE "^__version__ = ['\"]([0-9.]*).*" "\\1" version "${line}")
  set(${variable} ${version} PARENT_SCOPE)
endfunction()
