# find_package(packrnn) and pkg-config, against the build tree as well as the installed tree.
if(NOT PACKRNN_INSTALL)
  return()
endif()

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/packrnn")

install(TARGETS packrnn EXPORT packrnn-targets)
install(FILES packrnn.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/packrnn)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT packrnn-targets NAMESPACE packrnn:: DESTINATION ${package_dir})
export(EXPORT packrnn-targets NAMESPACE packrnn:: FILE "${packrnn_BINARY_DIR}/packrnn-targets.cmake")

# A static library hands its own dependencies on to whoever links it.
if(BUILD_SHARED_LIBS)
  set(packrnn_static OFF)
else()
  set(packrnn_static ON)
endif()
configure_package_config_file(cmake/packrnn-config.cmake.in
  "${packrnn_BINARY_DIR}/packrnn-config.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${packrnn_BINARY_DIR}/packrnn-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${packrnn_BINARY_DIR}/packrnn-config.cmake"
  "${packrnn_BINARY_DIR}/packrnn-config-version.cmake"
  DESTINATION ${package_dir})

# pkg-config. Plain --libs has to link too, so a static build lists everything under Libs.
set(pc_libs "-lpackrnn_layers -lpackrnn_kernels -lpackrnn_runtime")
set(pc_dependencies "-lfmt -lhwy -pthread")
if(PACKRNN_CUDA)
  string(APPEND pc_dependencies " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
if(packrnn_static)
  string(APPEND pc_libs " ${pc_dependencies}")
  set(pc_libs_private "")
else()
  set(pc_libs_private "${pc_dependencies}")
endif()
# Relative to the file itself, so that an installed tree can be moved (and DESTDIR works).
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
  BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" OUTPUT_VARIABLE pc_prefix)
configure_file(cmake/packrnn.pc.in "${packrnn_BINARY_DIR}/packrnn.pc" @ONLY)
install(FILES "${packrnn_BINARY_DIR}/packrnn.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
