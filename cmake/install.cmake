# What `make install` puts in place: the command, the library as one archive, its headers, and a CMake package that
# names no folder of this machine.

include(CMakePackageConfigHelpers)
pare_torch_version(${PARE_TORCH} PARE_TORCH_VERSION)

# The command finds libtorch where the build found it: the one path that is not relative.
set_target_properties(pare PROPERTIES INSTALL_RPATH ${PARE_TORCH}/lib)
install(TARGETS pare RUNTIME DESTINATION bin)
install(TARGETS pare_archive ARCHIVE DESTINATION lib)

install(DIRECTORY pare/ DESTINATION include/pare FILES_MATCHING PATTERN "*.h"
        PATTERN cli EXCLUDE PATTERN claims EXCLUDE PATTERN families EXCLUDE)
install(DIRECTORY ${PARE_INCLUDE}/fmt ${PARE_INCLUDE}/nlohmann DESTINATION include/pare/third_party)

configure_file(cmake/pareConfig.cmake.in ${CMAKE_BINARY_DIR}/generated/pareConfig.cmake @ONLY)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/pareConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/pareConfig.cmake ${CMAKE_BINARY_DIR}/generated/pareConfigVersion.cmake
        cmake/torch.cmake DESTINATION lib/cmake/pare)
