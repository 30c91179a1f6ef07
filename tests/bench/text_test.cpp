#include "bench/text.hpp"

#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <packrnn/runtime/error.hpp>
#include <string>

#include "bench/data.hpp"
#include "bench/temporary_folder.hpp"
#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

using Catch::Matchers::Contains;

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// More than one piece of read_text().
std::string long_text() {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += std::to_string(i * 7919 % 104'729) + "\n";
  return text;
}

TEST_CASE("a text is the same plain and compressed") {
  const TemporaryFolder folder("text_test");
  const std::string text = long_text();
  write(folder.path() / "plain", text);
  const gzFile file = gzopen((folder.path() / "text.gz").c_str(), "wb");
  REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) ==
          static_cast<int>(text.size()));
  REQUIRE(gzclose(file) == Z_OK);
  write(folder.path() / "empty", "");
  REQUIRE(std::filesystem::file_size(folder.path() / "text.gz") < text.size() / 2);
  CHECK(read_text(folder.path() / "plain", text.size()) == text);
  CHECK(read_text(folder.path() / "text.gz", text.size()) == text);
  CHECK(read_text(folder.path() / "empty", 0).empty());

  // What it would become counts, not what the file takes.
  CHECK_THROWS_WITH(read_text(folder.path() / "plain", text.size() - 1), Contains("more than"));
  CHECK_THROWS_WITH(read_text(folder.path() / "text.gz", text.size() - 1), Contains("more than"));
}

TEST_CASE("a compressed text that is cut or changed is refused") {
  const TemporaryFolder folder("text_test");
  const auto path = folder.path() / "text.gz";
  const gzFile file = gzopen(path.c_str(), "wb");
  const std::string text = long_text();
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const std::string whole = read_text(path, text.size());
  const std::uintmax_t size = std::filesystem::file_size(path);

  std::filesystem::resize_file(path, size / 2);
  CHECK_THROWS_AS(read_text(path, text.size()), FileError);
  CHECK_THROWS_WITH(read_text(path, text.size()), Contains("text.gz: damaged after"));
  CHECK_THROWS_AS(read_text(folder.path(), 10), FileError);
  CHECK_THROWS_WITH(read_text(folder.path() / "absent", 10), Contains("no readable file"));
}

TEST_CASE("data are found in the named folder or the set's own below it, and only all of them") {
  const TemporaryFolder folder("text_test");
  const char* const before = std::getenv("PACKRNN_DATA_DIR");
  const std::string kept = before != nullptr ? before : "";
  setenv("PACKRNN_DATA_DIR", folder.path().c_str(), 1);
  std::filesystem::create_directory(folder.path() / "Set");
  write(folder.path() / "Set/a", "1");
  CHECK(find_data("Set", {"a"}) == folder.path() / "Set");
  CHECK_FALSE(find_data("Set", {"a", "b"}));
  CHECK_FALSE(find_data("Other", {"a"}));
  write(folder.path() / "a", "1");
  CHECK(find_data("Other", {"a"}) == folder.path());
  CHECK_THAT(data_missing("b", "ask for it"),
             Contains("no b in " + folder.path().string()) && Contains("ask for it"));
  if (before != nullptr)
    setenv("PACKRNN_DATA_DIR", kept.c_str(), 1);
  else
    unsetenv("PACKRNN_DATA_DIR");
}

}  // namespace
}  // namespace packrnn::bench
