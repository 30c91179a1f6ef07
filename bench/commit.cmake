# Run at build time: writes OUTPUT with the commit that SOURCE_DIR is at.
find_package(Git QUIET)
set(commit "")
if(Git_FOUND)
  execute_process(
    COMMAND "${GIT_EXECUTABLE}" -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit unknown)
endif()
file(WRITE "${OUTPUT}" "#include \"bench/commit.hpp\"

namespace packrnn::bench {

const std::string_view kCommit = \"${commit}\";

}  // namespace packrnn::bench
")
