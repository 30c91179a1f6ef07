# The one way to make a library of this project, and what it shares with tests and benchmarks.

# <build>/include/packrnn is a folder of links to the source folders, so that <packrnn/...> means
# the same in the build tree as in the installed tree.
function(packrnn_include_tree)
  file(MAKE_DIRECTORY "${packrnn_BINARY_DIR}/include/packrnn")
  foreach(entry IN ITEMS runtime kernels layers packrnn.hpp)
    file(CREATE_LINK "${packrnn_SOURCE_DIR}/${entry}"
      "${packrnn_BINARY_DIR}/include/packrnn/${entry}" SYMBOLIC)
  endforeach()
endfunction()

# What every target of ours is compiled with, all of it private to the target.
function(packrnn_compile_options target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
      -Woverloaded-virtual -Wimplicit-fallthrough>
    # One expression must give the same bits wherever the compiler inlines it: we write fused
    # multiply-adds ourselves and the compiler makes none of its own.
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
    # CMake 3.25 knows no C++20 for nvcc. --fmad=false is its -ffp-contract=off. Kernels may call
    # constexpr functions that are written once for host and device.
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --fmad=false --expt-relaxed-constexpr
      -Xcompiler=-Wall,-Wextra ${packrnn_cuda_code}>)
  if(PACKRNN_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
      $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
endfunction()

# packrnn_module(<name> SOURCES a.cpp... PUBLIC_HEADERS a.hpp... [DEPENDS target...]
#   [PRIVATE_DEPENDS target...] [HEADER_DEPENDS target...])
# makes the library packrnn_<name>, its alias packrnn::<name>, an object library that compiles each
# public header alone, and the rules that install and export them. Paths are relative to the module.
# HEADER_DEPENDS are libraries of headers that only our sources include: a user needs nothing of them.
function(packrnn_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" ""
    "SOURCES;PUBLIC_HEADERS;DEPENDS;PRIVATE_DEPENDS;HEADER_DEPENDS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "packrnn_module(${name}): unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target packrnn_${name})

  add_library(${target} ${arg_SOURCES} ${arg_PUBLIC_HEADERS})
  add_library(packrnn::${name} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  packrnn_compile_options(${target})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${packrnn_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(PACKRNN_CUDA)
    set_target_properties(${target} PROPERTIES
      CUDA_COMPILER_LAUNCHER "${packrnn_SOURCE_DIR}/cmake/ptxas_log")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
  endif()
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_PRIVATE_DEPENDS})
  foreach(library IN LISTS arg_HEADER_DEPENDS)
    # Not by linking, which would name the library in the exported targets.
    target_include_directories(${target} SYSTEM PRIVATE
      $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name}
    POSITION_INDEPENDENT_CODE ON
    VERSION ${packrnn_VERSION}
    SOVERSION ${packrnn_VERSION_MAJOR}.${packrnn_VERSION_MINOR})

  # The layering test wants to know which headers a user can reach.
  list(TRANSFORM arg_PUBLIC_HEADERS PREPEND "${name}/" OUTPUT_VARIABLE public)
  set_property(GLOBAL APPEND PROPERTY packrnn_public_headers ${public})

  if(PACKRNN_TESTS)
    packrnn_check_headers(${name} ${arg_PUBLIC_HEADERS})
  endif()

  if(PACKRNN_INSTALL)
    install(TARGETS ${target} EXPORT packrnn-targets)
    foreach(header IN LISTS arg_PUBLIC_HEADERS)
      get_filename_component(folder "${header}" DIRECTORY)
      install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/packrnn/${name}/${folder})
    endforeach()
  endif()
endfunction()

# Each public header must compile alone, and twice in one file.
function(packrnn_check_headers name)
  set(checks "")
  foreach(header IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER "${header}" id)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/header_check/${id}.cpp")
    set(line "#include <packrnn/${name}/${header}>\n")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${line}${line}" @ONLY)
    list(APPEND checks "${file}")
  endforeach()
  if(checks)
    add_library(packrnn_${name}_headers OBJECT ${checks})
    packrnn_compile_options(packrnn_${name}_headers)
    # Only what a user gets: the public side of the module.
    target_link_libraries(packrnn_${name}_headers PRIVATE packrnn::${name})
  endif()
endfunction()
