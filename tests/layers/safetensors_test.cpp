#include "packrnn/layers/safetensors.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/layers/safetensors_files.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;
using Catch::StartsWith;

const std::string kGoodHeader =
    "{\"__metadata__\":{\"format\":\"pt\"}," + entry("weight", "F32", "2,3", "0,24") + "," +
    entry("bias", "F16", "3", "24,30") + "," + entry("none", "I64", "0,4", "30,30") + "," +
    entry("scalar", "U8", "", "30,31") + "}";
const std::string kGood = file_with(kGoodHeader, 31);

struct Hostile {
  const char* title;
  std::string file;
  std::string reason;
};

std::vector<Hostile> lengths() {
  const std::string rest = kGood.substr(8);
  constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
  return {
      {"empty file", "", "too short for a safetensors file: 0 bytes"},
      {"seven bytes", std::string(7, '\0'), "too short for a safetensors file: 7 bytes"},
      {"length 0", raw_file(0, rest), "header length 0 is too short"},
      {"length 1", raw_file(1, rest), "header length 1 is too short"},
      {"length 7", raw_file(7, rest), "not valid JSON"},
      {"one byte short", raw_file(kGoodHeader.size() - 1, rest), "not valid JSON"},
      {"one byte long", raw_file(kGoodHeader.size() + 1, rest), "not valid JSON"},
      {"the file's size", raw_file(kGood.size(), rest), "runs past the end of the file"},
      {"one above what is there", raw_file(rest.size() + 1, rest), "runs past the end of the file"},
      {"limit + 1", raw_file(100'000'001, rest), "100000001 is above the limit of 100000000"},
      {"2^63", raw_file(std::uint64_t{1} << 63, rest), "9223372036854775808 is above the limit"},
      {"2^64 - 8", raw_file(kAll - 7, rest), "is above the limit"},
      {"2^64 - 1", raw_file(kAll, rest), "18446744073709551615 is above the limit"},
  };
}

std::vector<Hostile> texts() {
  const std::string good = entry("a", "F32", "1", "0,4");
  const auto whole = [](const std::string& header) { return file_with(header, 4); };
  return {
      {"not JSON", whole("{nonsense}"), "not valid JSON at its byte 3"},
      {"an array", whole("[{}]"), "does not begin with '{'"},
      {"a string", whole("\"text\""), "does not begin with '{'"},
      {"null", whole("null"), "does not begin with '{'"},
      {"leading space", whole(" {" + good + "}"), "does not begin with '{'"},
      {"byte order mark", whole("\xEF\xBB\xBF{" + good + "}"), "does not begin with '{'"},
      {"second value", whole("{" + good + "}{}"), "not valid JSON"},
      {"garbage behind", whole("{" + good + "} x"), "not valid JSON"},
      {"zero byte behind", whole("{" + good + "}" + std::string(4, '\0')), "has a zero byte"},
      {"zero byte hides garbage", whole("{" + good + "}" + std::string(1, '\0') + "garbage"),
       "has a zero byte"},
      {"open object", whole("{" + good), "not valid JSON"},
      {"open string", whole("{\"a"), "not valid JSON"},
      {"trailing comma", whole("{" + good + ",}"), "not valid JSON"},
      {"comment", whole("{/**/" + good + "}"), "not valid JSON"},
      {"control character in a name", whole(object(entry("a\n", "F32", "1", "0,4"))),
       "control character"},
      {"bad escape", whole(object(entry("\\x", "F32", "1", "0,4"))), "not valid JSON"},
      {"lone surrogate", whole(object(entry("\\ud800", "F32", "1", "0,4"))), "not valid JSON"},
      {"invalid UTF-8: lone continuation", whole(object(entry("\x80", "F32", "1", "0,4"))),
       "ill-formed UTF-8"},
      {"invalid UTF-8: cut sequence", whole(object(entry("\xE2\x82", "F32", "1", "0,4"))),
       "ill-formed UTF-8"},
      {"invalid UTF-8: overlong", whole(object(entry("\xC0\xAF", "F32", "1", "0,4"))),
       "ill-formed UTF-8"},
      {"invalid UTF-8: surrogate", whole(object(entry("\xED\xA0\x80", "F32", "1", "0,4"))),
       "ill-formed UTF-8"},
      {"invalid UTF-8 outside a string", whole("{\xFF}"), "not valid JSON"},
  };
}

std::vector<Hostile> structures() {
  const auto tensor = [](const std::string& inner) {
    return file_with("{\"a\":{" + inner + "}}", 4);
  };
  const std::string dtype = "\"dtype\":\"F32\"";
  const std::string shape = "\"shape\":[1]";
  const std::string offsets = "\"data_offsets\":[0,4]";
  const std::string a = entry("a", "F32", "1", "0,4");
  const std::string digits(1'000'000, '9');
  const auto extents = [&](const std::string& text) {
    return tensor(dtype + ",\"shape\":" + text + "," + offsets);
  };
  const auto range = [&](const std::string& text) {
    return tensor(dtype + "," + shape + ",\"data_offsets\":" + text);
  };
  return {
      {"tensor twice", file_with("{" + a + "," + a + "}", 4), "tensor \"a\" appears twice"},
      {"tensor twice, spelled differently",
       file_with("{" + a + "," + entry("\\u0061", "F32", "1", "4,8") + "}", 8),
       "tensor \"a\" appears twice"},
      {"metadata twice", file_with("{\"__metadata__\":{},\"__metadata__\":{}," + a + "}", 4),
       "\"__metadata__\" appears twice"},
      {"metadata key twice", file_with("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}," + a + "}", 4),
       "metadata key \"k\" appears twice"},
      {"dtype twice", tensor(dtype + "," + dtype + "," + shape + "," + offsets),
       "tensor \"a\": \"dtype\" appears twice"},
      {"shape twice", tensor(dtype + "," + shape + "," + shape + "," + offsets),
       "tensor \"a\": \"shape\" appears twice"},
      {"offsets twice", tensor(dtype + "," + shape + "," + offsets + "," + offsets),
       "tensor \"a\": \"data_offsets\" appears twice"},

      {"no dtype", tensor(shape + "," + offsets), "tensor \"a\" has no \"dtype\""},
      {"no shape", tensor(dtype + "," + offsets), "tensor \"a\" has no \"shape\""},
      {"no offsets", tensor(dtype + "," + shape), "tensor \"a\" has no \"data_offsets\""},
      {"nothing", tensor(""), "tensor \"a\" has no"},
      {"extra field", tensor(dtype + "," + shape + "," + offsets + ",\"stride\":[1]"),
       "tensor \"a\" has an unknown field \"stride\""},

      {"tensor is a number", file_with("{\"a\":4}", 4), "the value of \"a\" is the number 4"},
      {"tensor is a string", file_with("{\"a\":\"b\"}", 4), "the value of \"a\" is a string"},
      {"tensor is null", file_with("{\"a\":null}", 4), "the value of \"a\" is null"},
      {"tensor is an array", file_with("{\"a\":[]}", 4), "the value of \"a\" is an array"},
      {"dtype is a number", tensor("\"dtype\":32," + shape + "," + offsets),
       "\"dtype\" is the number 32, expected a string"},
      {"dtype is an array", tensor("\"dtype\":[\"F32\"]," + shape + "," + offsets),
       "\"dtype\" is an array, expected a string"},
      {"dtype is unknown", tensor("\"dtype\":\"F128\"," + shape + "," + offsets),
       "tensor \"a\": unknown dtype \"F128\""},
      {"dtype in small letters", tensor("\"dtype\":\"f32\"," + shape + "," + offsets),
       "unknown dtype \"f32\""},
      {"shape is a number", extents("1"), "\"shape\" is the number 1, expected an array"},
      {"shape is a string", extents("\"1\""), "\"shape\" is a string, expected an array"},
      {"shape is an object", extents("{}"), "\"shape\" is an object, expected an array"},
      {"extent negative", extents("[-1]"), "\"shape\" holds the negative number -1"},
      {"extent minus zero", extents("[-0]"), "\"shape\" holds the negative number 0"},
      {"extent fractional", extents("[1.0]"), "\"shape\" holds the number \"1.0\""},
      {"extent with exponent", extents("[1e0]"), "\"shape\" holds the number \"1e0\""},
      {"extent 2^63", extents("[9223372036854775808]"), "holds the number 9223372036854775808"},
      {"extent 2^64", extents("[18446744073709551616]"), "\"18446744073709551616\""},
      {"extent 1e999", extents("[1e999]"), "number overflow"},
      {"extent of a million digits", extents("[" + digits + "]"), "not valid JSON"},
      {"extent true", extents("[true]"), "\"shape\" holds a boolean"},
      {"extent null", extents("[null]"), "\"shape\" holds null"},
      {"extent is a string", extents("[\"1\"]"), "\"shape\" holds a string"},
      {"extent is an array", extents("[[1]]"), "\"shape\" holds an array"},
      {"extent is an object", extents("[{}]"), "\"shape\" holds an object"},
      {"no offset", range("[]"), "\"data_offsets\" has 0 numbers, expected 2"},
      {"one offset", range("[4]"), "\"data_offsets\" has 1 numbers, expected 2"},
      {"three offsets", range("[0,4,4]"), "\"data_offsets\" has 3 numbers, expected 2"},
      {"offset negative", range("[-4,0]"), "\"data_offsets\" holds the negative number -4"},
      {"offset fractional", range("[0,4.5]"), "\"data_offsets\" holds the number \"4.5\""},
      {"offset 2^64", range("[0,18446744073709551616]"), "\"18446744073709551616\""},

      {"metadata is a string", file_with("{\"__metadata__\":\"pt\"," + a + "}", 4),
       "the value of \"__metadata__\" is a string, expected an object"},
      {"metadata is null", file_with("{\"__metadata__\":null," + a + "}", 4),
       "the value of \"__metadata__\" is null"},
      {"metadata holds a number", file_with("{\"__metadata__\":{\"k\":1}," + a + "}", 4),
       "metadata key \"k\" is the number 1, expected a string"},
      {"metadata holds null", file_with("{\"__metadata__\":{\"k\":null}," + a + "}", 4),
       "metadata key \"k\" is null"},
      {"metadata holds an object", file_with("{\"__metadata__\":{\"k\":{}}," + a + "}", 4),
       "metadata key \"k\" is an object"},

      {"a million brackets", file_with("{\"a\":" + std::string(1'000'000, '['), 4),
       "the value of \"a\" is an array"},
      {"a million braces", file_with("{\"a\":{\"shape\":" + std::string(1'000'000, '{'), 4),
       "\"shape\" is an object"},
      {"a million brackets in a shape",
       file_with("{\"a\":{\"shape\":" + std::string(1'000'000, '['), 4),
       "\"shape\" holds an array"},
      {"a name of a million letters",
       file_with(object(entry(std::string(1'000'000, 'x'), "F32", "2", "0,4")), 4),
       "x...\": its 2 elements of F32 need 8 bytes, but its offsets span 4"},
  };
}

std::vector<Hostile> extents_and_offsets() {
  const auto one = [](const std::string& shape, const std::string& offsets, std::size_t bytes = 8,
                      const std::string& dtype = "F32") {
    return file_with(object(entry("a", dtype, shape, offsets)), bytes);
  };
  const auto two = [](const std::string& first, const std::string& second, std::size_t bytes) {
    return file_with(object(entry("a", "F32", "1", first) + "," + entry("b", "F32", "1", second)),
                     bytes);
  };
  return {
      {"end past the data", one("3", "0,12"), "its data ends at byte 12, but the file has 8"},
      {"end far past the data", one("2", "0,18446744073709551615"),
       "its data ends at byte 18446744073709551615"},
      {"begin past the data", one("0", "9,9"), "its data ends at byte 9"},
      {"begin after end", one("2", "8,0"), "its data begins at 8 and ends before, at 0"},
      {"begin after end, by wrapping", one("2", "18446744073709551615,7"), "ends before, at 7"},
      {"too few bytes", one("3", "0,8"), "its 3 elements of F32 need 12 bytes"},
      {"too many bytes", one("1", "0,8"), "its 1 elements of F32 need 4 bytes"},
      {"another dtype's size", one("2", "0,8", 8, "F64"), "its 2 elements of F64 need 16 bytes"},
      {"no extent, no bytes", one("", "0,0", 0), "its 1 elements of F32 need 4 bytes"},
      {"half a byte", one("3", "0,1", 1, "F4"), "its 3 elements of F4 do not fill whole bytes"},
      {"a shape that wraps to 2", one("9223372036854775807,2,2,2", "0,8"), "too many elements"},
      {"a shape that wraps to 0", one("4294967296,4294967296", "0,0", 0), "too many elements"},
      {"bytes that wrap to 0", one("4611686018427387904", "0,0", 0), "have too many bytes"},
      {"a zero does not hide an overflow", one("0,4294967296,4294967296", "0,0", 0),
       "too many elements"},
      {"more than any memory", one("1000000000000", "0,4000000000000"),
       "ends at byte 4000000000000, but the file has 8"},
      {"the same bytes", two("0,4", "0,4", 4), "tensor \"b\" overlaps another"},
      {"half overlap", two("0,4", "2,6", 6), "tensor \"b\" overlaps another: it begins at 2"},
      {"nothing, within another",
       file_with(object(entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "0", "2,2")), 4),
       "tensor \"b\" overlaps another"},
      {"hole at the start", one("1", "4,8"), "a hole of 4 bytes before tensor \"a\""},
      {"hole between", two("0,4", "8,12", 12), "a hole of 4 bytes before tensor \"b\""},
      {"trailing bytes", one("1", "0,4"), "4 bytes follow the last tensor"},
      {"trailing bytes without tensors", file_with("{}", 5), "5 bytes follow the last tensor"},
      {"trailing bytes after nothing", one("0", "0,0", 1), "1 bytes follow the last tensor"},
  };
}

void check_all(const std::vector<Hostile>& corpus) {
  for (const Hostile& hostile : corpus) {
    INFO(hostile.title);
    const std::string message = refusal(hostile.file);
    CHECK_THAT(message, StartsWith("'some.safetensors': ") && Contains(hostile.reason));
    CHECK(message.size() < 400);
  }
}

// A file whose eight bytes of data are all `letter`, so that a test sees which one it has got.
std::string version_file(char letter) {
  std::string header = object(entry("v", "I32", "2", "0,8"));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return raw_file(header.size(), header + std::string(8, letter));
}

TEST_CASE("B79: header lengths that lie are refused") { check_all(lengths()); }

TEST_CASE("B79: headers that are not JSON are refused") { check_all(texts()); }

TEST_CASE("B79: headers of another structure are refused") { check_all(structures()); }

TEST_CASE("B79: shapes and offsets that lie are refused") { check_all(extents_and_offsets()); }

TEST_CASE("B79: a good file cut at every byte is refused") {
  REQUIRE(refusal(kGood).empty());
  for (std::size_t size = 0; size < kGood.size(); ++size) {
    INFO("cut to " << size << " of " << kGood.size() << " bytes");
    CHECK_THAT(refusal(kGood.substr(0, size)), StartsWith("'some.safetensors': "));
  }
}

TEST_CASE("B79: no single damaged byte gets past the checks unseen") {
  // Either refused, or everything that is then promised can be read without leaving the file.
  for (std::size_t i = 0; i < 8 + kGoodHeader.size(); ++i) {
    for (const unsigned char flip : {0x01, 0x04, 0x10, 0x20, 0x80}) {
      std::string file = kGood;
      file[i] = static_cast<char>(static_cast<unsigned char>(file[i]) ^ flip);
      try {
        const SafeTensors damaged = parse(file);
        for (const std::string& name : damaged.names())
          if (damaged.dtype(name))
            CHECK(damaged.tensor(name).elements() == damaged.shape(name).elements());
      } catch (const FileError&) {
      }
    }
  }
}

TEST_CASE("B79: legal borders") {
  SECTION("no tensors") {
    CHECK(parse(file_with("{}", 0)).names().empty());
    CHECK(parse(file_with("{}     ", 0)).names().empty());  // header length 7
    CHECK(parse(file_with("{\"__metadata__\":{}}", 0)).state_dict().empty());
  }
  SECTION("a zero dimension anywhere") {
    const SafeTensors file =
        parse(file_with(object(entry("a", "F32", "0", "0,0") + "," + entry("b", "F32", "2", "0,8") +
                               "," + entry("c", "F64", "3,0,2", "8,8")),
                        8));
    CHECK(file.tensor("a").elements() == 0);
    CHECK(file.tensor("b").elements() == 2);
    CHECK(file.tensor("c").shape() == Shape{3, 0, 2});
    CHECK(file.tensor("c", Dtype::f32).dtype() == Dtype::f32);
  }
  SECTION("a scalar") {
    const SafeTensors file = parse(file_with(object(entry("a", "F32", "", "0,4")), 4));
    CHECK(file.shape("a").rank() == 0);
    CHECK(file.tensor("a").elements() == 1);
  }
  SECTION("the data in another order than the header") {
    const SafeTensors file = parse(file_with(
        object(entry("late", "F32", "1", "4,8") + "," + entry("early", "F32", "1", "0,4")), 8));
    CHECK(file.names() == std::vector<std::string>{"late", "early"});
  }
  SECTION("fields in another order, space between, escapes in names") {
    const SafeTensors file =
        parse(file_with("{ \"\\u00e9\\\"\\u0000\" : {\"data_offsets\": [0, 4],"
                        "\n\t\"shape\":[ 1 ] , \"dtype\":\"F32\" } }  ",
                        4));
    CHECK(file.names().front() == std::string("\xC3\xA9\"\0", 4));
  }
  SECTION("empty name") {
    CHECK(parse(file_with(object(entry("", "F32", "1", "0,4")), 4)).contains(""));
  }
}

TEST_CASE("B79: hundreds of thousands of tensors cost what their header costs") {
  constexpr std::size_t kCount = 300'000;
  std::string header = "{";
  for (std::size_t i = 0; i < kCount; ++i)
    header += entry(std::to_string(i), "F32", "0", "0,0") + ",";
  header.pop_back();
  const SafeTensors file = parse(file_with(header + "}", 0));
  CHECK(file.names().size() == kCount);
  CHECK(file.contains("299999"));
  CHECK_FALSE(file.contains("300000"));
  CHECK_THAT(refusal(file_with(header + "," + entry("7", "F32", "0", "0,0") + "}", 0)),
             Contains("tensor \"7\" appears twice"));
}

TEST_CASE("what a file says is there to read") {
  const SafeTensors file = parse(kGood);
  CHECK(file.names() == std::vector<std::string>{"weight", "bias", "none", "scalar"});
  CHECK(file.contains("bias"));
  CHECK_FALSE(file.contains("bia"));
  CHECK_FALSE(file.contains("__metadata__"));
  CHECK(file.dtype("weight") == Dtype::f32);
  CHECK(file.dtype_name("bias") == "F16");
  CHECK(file.shape("weight") == Shape{2, 3});
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK_THROWS_WITH(file.tensor("wait"), Contains("\"wait\"") && Contains("\"weight\", \"bias\""));
  CHECK_THROWS_AS(file.shape("wait"), InvalidArgument);
  CHECK_THROWS_AS(file.dtype("wait"), InvalidArgument);
}

TEST_CASE("a dtype that packrnn has not is refused only when asked for") {
  const char* names[] = {"BOOL", "U8",      "I8",      "U16",         "I16",         "U32",
                         "U64",  "F8_E5M2", "F8_E4M3", "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0",
                         "C64",  "F4",      "F6_E2M3", "F6_E3M2"};
  const std::size_t bytes[] = {4, 4, 4, 8, 8, 16, 32, 4, 4, 4, 4, 4, 32, 2, 3, 3};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    INFO(names[i]);
    const std::size_t all = bytes[i] + 2;
    const std::string first = "0," + std::to_string(bytes[i]);
    const std::string second = first.substr(2) + "," + std::to_string(all);
    const std::string entries =
        entry("a", names[i], "4", first) + "," + entry("b", "BF16", "1", second);
    const SafeTensors file = parse(file_with(object(entries), all));
    CHECK(file.dtype("a") == std::nullopt);
    CHECK(file.dtype_name("a") == names[i]);
    CHECK(file.shape("a") == Shape{4});
    CHECK(file.tensor("b").elements() == 1);
    CHECK_THROWS_AS(file.tensor("a"), Unsupported);
    CHECK_THROWS_WITH(file.tensor("a", Dtype::f32), Contains("\"a\"") && Contains(names[i]));
    CHECK_THROWS_AS(file.state_dict(), Unsupported);
    CHECK(file.state_dict("b").size() == 1);
  }
}

TEST_CASE("more dimensions than a Shape has are refused only when asked for") {
  const SafeTensors file =
      parse(file_with(object(entry("a", "F32", "1,1,1,1,1,1,1,1,1", "0,4") + "," +
                             entry("b", "F32", "1,1,1,1,1,1,1,1", "4,8")),
                      8));
  CHECK(file.dtype("a") == Dtype::f32);
  CHECK_THROWS_AS(file.shape("a"), Unsupported);
  CHECK_THROWS_WITH(file.tensor("a"), Contains("9 dimensions"));
  CHECK(file.shape("b").rank() == 8);
}

TEST_CASE("tensors share the file when they can and are copied when it is not aligned") {
  const std::string header = object(entry("a", "F32", "2", "0,8"));
  const std::string padded = header + std::string(8 - header.size() % 8, ' ');
  for (std::size_t shift = 0; shift < 8; ++shift) {
    INFO("shifted by " << shift);
    const SafeTensors file = parse(file_with(padded + std::string(shift, ' '), 8));
    const Tensor a = file.tensor("a");
    const Tensor b = file.tensor("a");
    CHECK((a.view().raw() == b.view().raw()) == (shift % 4 == 0));
    CHECK(reinterpret_cast<std::uintptr_t>(a.view().raw()) % 4 == 0);
    std::uint32_t bits = 0;
    std::memcpy(&bits, a.view().raw(), 4);
    CHECK(bits == 0x04030201U);
    CHECK(file.tensor("a", Dtype::f64).values<double>()[1] ==
          static_cast<double>(a.values<float>()[1]));
  }
}

TEST_CASE("asking for another dtype converts") {
  std::string file =
      file_with(object(entry("half", "F16", "2", "0,4") + "," + entry("brain", "BF16", "2", "4,8") +
                       "," + entry("whole", "I32", "1", "8,12")),
                12);
  const std::uint16_t values[] = {0x3C00, 0xC000, 0x3F80, 0xC000};  // 1, -2; 1, -2
  const std::int32_t whole = 1 << 20;
  std::memcpy(file.data() + file.size() - 12, values, 8);
  std::memcpy(file.data() + file.size() - 4, &whole, 4);
  const SafeTensors tensors = parse(file);
  for (const char* name : {"half", "brain"}) {
    const Tensor converted = tensors.tensor(name, Dtype::f32);
    CHECK(converted.values<float>()[0] == 1.0F);
    CHECK(converted.values<float>()[1] == -2.0F);
    CHECK_THROWS_AS(tensors.tensor(name, Dtype::i32), InvalidArgument);
  }
  CHECK(tensors.tensor("whole", Dtype::i32).values<std::int32_t>()[0] == whole);
  CHECK(tensors.tensor("whole", Dtype::i64).values<std::int64_t>()[0] == whole);
}

TEST_CASE("a state dict has the names of a prefix, in order, the prefix taken off") {
  const std::string header =
      object(entry("encoder.b", "F32", "1", "4,8") + "," + entry("decoder.b", "U8", "4", "0,4") +
             "," + entry("encoder.a", "F32", "1", "8,12"));
  const StateDict state = parse(file_with(header, 12)).state_dict("encoder.");
  REQUIRE(state.size() == 2);
  CHECK(state[0].name == "b");
  CHECK(state[1].name == "a");
  CHECK(parse(file_with(header, 12)).state_dict("nobody.").empty());
}

TEST_CASE("a mapped file outlives its object, its name and its content") {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  write_file(path, version_file('A'));
  Tensor tensor;
  {
    std::optional<SafeTensors> file = SafeTensors::open(path);
    const SafeTensors copy = *file;
    file.reset();
    tensor = copy.tensor("v");
  }
  write_file(folder / "new", version_file('B'));
  std::filesystem::rename(folder / "new", path);
  CHECK(tensor.values<std::int32_t>()[1] == 0x41414141);
  CHECK(SafeTensors::open(path).tensor("v").values<std::int32_t>()[1] == 0x42424242);
  std::filesystem::remove(path);
  CHECK(tensor.values<std::int32_t>()[0] == 0x41414141);
}

TEST_CASE("writing into a mapped tensor does not reach the file") {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  write_file(path, version_file('A'));
  Tensor tensor = SafeTensors::open(path).tensor("v");
  tensor.values<std::int32_t>()[0] = 7;
  CHECK(tensor.values<std::int32_t>()[0] == 7);
  CHECK(read_file(path) == version_file('A'));
  CHECK(SafeTensors::open(path).tensor("v").values<std::int32_t>()[0] == 0x41414141);
}

TEST_CASE("what is no readable file is refused with its name, at once") {
  const TemporaryFolder folder;
  const auto refused = [](const std::filesystem::path& path, const std::string& reason) {
    INFO(path);
    CHECK_THROWS_AS(SafeTensors::open(path), FileError);
    CHECK_THROWS_WITH(SafeTensors::open(path), Contains(path.string()) && Contains(reason));
  };
  refused(folder / "missing", "No such file");
  refused(folder.path(), "is a folder");
  refused("/dev/zero", "is not a regular file");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  refused(folder / "pipe", "is not a regular file");  // and does not wait for a writer
  std::filesystem::create_symlink(folder / "missing", folder / "link");
  refused(folder / "link", "No such file");
  std::filesystem::create_symlink(folder / "loop", folder / "loop");
  refused(folder / "loop", "symbolic links");
  write_file(folder / "empty", "");
  refused(folder / "empty", "0 bytes");
  write_file(folder / "short", kGood.substr(0, kGood.size() - 1));
  refused(folder / "short", "but the file has 30 bytes of data");
  CHECK_THROWS_AS(SafeTensors::open(std::string("a\0b", 3)), FileError);
  write_file(folder / "secret", kGood);
  ::chmod((folder / "secret").c_str(), 0);
  if (::geteuid() != 0)  // root may read it all the same
    refused(folder / "secret", "Permission denied");
}

TEST_CASE("a header above the limit is refused even when it is there") {
  const TemporaryFolder folder;
  const auto path = folder / "large";
  write_file(path, raw_file(SafeTensors::kMaxHeaderBytes + 1, "{}"));
  std::filesystem::resize_file(path, SafeTensors::kMaxHeaderBytes + 100);  // sparse
  CHECK_THROWS_WITH(SafeTensors::open(path), Contains("100000001 is above the limit"));
}

TEST_CASE("a file of many gigabytes opens without being read") {
  const TemporaryFolder folder;
  const auto path = folder / "large";
  std::string header = object(entry("a", "F32", "16,1024,1024,1024", "0,68719476736"));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  write_file(path, raw_file(header.size(), header));
  std::error_code error;
  std::filesystem::resize_file(path, 8 + header.size() + 68719476736, error);
  if (error) PACKRNN_SKIP("the temporary folder cannot hold a sparse file of 64 GiB");
  const Tensor a = SafeTensors::open(path).tensor("a");
  CHECK(a.elements() == std::int64_t{1} << 34);
  CHECK(a.values<float>()[a.values<float>().size() - 1] == 0.0F);
}

TEST_CASE("a file made by the Python package is read") {
  const SafeTensors file =
      SafeTensors::open(PACKRNN_SOURCE_DIR "/tests/fuzz/corpus/safetensors/python.safetensors");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "np"}});
  CHECK(file.names().size() == 6);
  CHECK(file.shape("lstm.weight_ih_l0") == Shape{2, 3});
  const Tensor weight = file.tensor("lstm.weight_ih_l0");
  for (std::size_t i = 0; i < 6; ++i)
    CHECK(weight.values<float>()[i] == static_cast<float>(i) * 0.5F);
  CHECK(file.tensor("lstm.bias_ih_l0", Dtype::f32).values<float>()[1] == -1.5F);
  CHECK(file.tensor("double").values<double>()[0] == 0.1);
  CHECK(file.tensor("steps").values<std::int64_t>()[0] == -(std::int64_t{1} << 40));
  CHECK(file.shape("none") == Shape{0, 3});
  CHECK(file.dtype_name("mask") == "BOOL");
}

}  // namespace
}  // namespace packrnn::tests
