#include "packrnn/layers/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "packrnn/layers/safetensors.hpp"
#include "packrnn/runtime/error.hpp"

namespace packrnn {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kMaxExtent = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

constexpr std::array<SafeTensorsDtype, 22> kDtypes{{
    {"F32", 32, Dtype::f32}, {"F64", 64, Dtype::f64},
    {"F16", 16, Dtype::f16}, {"BF16", 16, Dtype::bf16},
    {"I32", 32, Dtype::i32}, {"I64", 64, Dtype::i64},
    {"BOOL", 8, {}},         {"U8", 8, {}},
    {"I8", 8, {}},           {"U16", 16, {}},
    {"I16", 16, {}},         {"U32", 32, {}},
    {"U64", 64, {}},         {"C64", 64, {}},
    {"F8_E5M2", 8, {}},      {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},      {"F8_E5M2FNUZ", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},  {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},      {"F4", 4, {}},
}};

// Collects the header from parser events. Events, not a tree: a tree would have dropped duplicate
// keys already, and its size would not be bounded by what is legal here. Every handler refuses what
// the format does not have at that place, so nesting never gets deeper than four.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafeTensorsHeader& header) : header_(header) {}

  const std::string& reason() const { return reason_; }

  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return misplaced(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return misplaced(fmt::format("the number {}", shown(text)));
  }
  bool binary(binary_t&) override { return misplaced("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    switch (place_) {
      case Place::shape:
        if (value > kMaxExtent) return misplaced(fmt::format("the number {}", value));
        entry().extents.push_back(static_cast<std::int64_t>(value));
        return true;
      case Place::offsets:
        if (offsets_ < 2) (offsets_ == 0 ? entry().begin : entry().end) = value;
        ++offsets_;
        return true;
      default:
        return misplaced(fmt::format("the number {}", value));
    }
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header_.metadata[key_] = std::move(value);
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return misplaced("a string");
    const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                    [&](const SafeTensorsDtype& d) { return d.name == value; });
    if (found == kDtypes.end())
      return refuse(fmt::format("tensor {}: unknown dtype {}", name(), shown(value)));
    entry().dtype = &*found;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
      return true;
    }
    if (place_ != Place::top) return misplaced("an object");
    if (key_ == "__metadata__") {
      place_ = Place::metadata;
      return true;
    }
    header_.names.push_back(std::move(key_));
    header_.entries.emplace_back();
    seen_ = {};
    place_ = Place::tensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (std::size_t field = 0; field < kFields.size(); ++field)
        if (!seen_[field])
          return refuse(fmt::format("tensor {} has no \"{}\"", name(), kFields[field]));
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool key(string_t& key) override {
    key_ = std::move(key);
    if (place_ == Place::top && key_ == "__metadata__")
      return std::exchange(has_metadata_, true) ? refuse("\"__metadata__\" appears twice") : true;
    if (place_ == Place::metadata && header_.metadata.contains(key_))
      return refuse(fmt::format("metadata key {} appears twice", shown(key_)));
    if (place_ == Place::tensor) {
      const auto field = std::find(kFields.begin(), kFields.end(), key_);
      if (field == kFields.end())
        return refuse(fmt::format("tensor {} has an unknown field {}", name(), shown(key_)));
      if (std::exchange(seen_[static_cast<std::size_t>(field - kFields.begin())], true))
        return refuse(fmt::format("tensor {}: \"{}\" appears twice", name(), key_));
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") return misplaced("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2)
      return refuse(
          fmt::format("tensor {}: \"data_offsets\" has {} numbers, expected 2", name(), offsets_));
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    // Here and there the message quotes the file, at any length.
    std::string_view text = error.what();
    text = text.substr(0, text.find("; last read"));
    if (const std::size_t id = text.find("] "); id != std::string_view::npos)
      text.remove_prefix(id + 2);
    return refuse(
        fmt::format("the header is not valid JSON at its byte {}: {:.120}", position, text));
  }

 private:
  enum class Place : std::uint8_t { outside, top, metadata, tensor, shape, offsets };
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  SafeTensorsEntry& entry() { return header_.entries.back(); }
  std::string name() const { return shown(header_.names.back()); }

  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  bool misplaced(std::string_view what) {
    switch (place_) {
      case Place::outside:
        return refuse(fmt::format("the header is {}, expected an object", what));
      case Place::top:
        return refuse(fmt::format("the value of {} is {}, expected an object", shown(key_), what));
      case Place::metadata:
        return refuse(fmt::format("the value of metadata key {} is {}, expected a string",
                                  shown(key_), what));
      case Place::tensor:
        return refuse(fmt::format("tensor {}: \"{}\" is {}, expected {}", name(), key_, what,
                                  key_ == "dtype" ? "a string" : "an array"));
      default:
        return refuse(
            fmt::format("tensor {}: \"{}\" holds {}, expected a whole number >= 0 below 2^63",
                        name(), key_, what));
    }
  }

  SafeTensorsHeader& header_;
  Place place_ = Place::outside;
  std::string key_;
  std::array<bool, kFields.size()> seen_{};
  std::size_t offsets_ = 0;
  bool has_metadata_ = false;
  std::string reason_;
};

struct Refuse {
  const std::string& file;

  template <class... Args>
  [[noreturn]] void operator()(fmt::format_string<Args...> reason, Args&&... args) const {
    throw FileError(
        fmt::format("'{}': {}", file, fmt::format(reason, std::forward<Args>(args)...)));
  }
};

// Why the entry cannot be what it says, or nothing.
std::string flaw(const SafeTensorsEntry& entry, std::uint64_t data_bytes) {
  if (entry.begin > entry.end)
    return fmt::format("its data begins at {} and ends before, at {}", entry.begin, entry.end);
  if (entry.end > data_bytes)
    return fmt::format("its data ends at byte {}, but the file has {} bytes of data", entry.end,
                       data_bytes);
  // Zero extents are left out, so that whether a shape is too large does not depend on their place.
  std::uint64_t volume = 1;
  bool empty = false;
  for (const std::int64_t extent : entry.extents) {
    if (extent == 0)
      empty = true;
    else if (volume > kMaxExtent / static_cast<std::uint64_t>(extent))
      return fmt::format("its shape [{}...] has too many elements", entry.extents.front());
    else
      volume *= static_cast<std::uint64_t>(extent);
  }
  const std::uint64_t elements = empty ? 0 : volume;
  if (elements > std::numeric_limits<std::uint64_t>::max() / entry.dtype->bits)
    return fmt::format("its {} elements of {} have too many bytes", elements, entry.dtype->name);
  const std::uint64_t bits = elements * entry.dtype->bits;
  if (bits % 8 != 0)
    return fmt::format("its {} elements of {} do not fill whole bytes", elements,
                       entry.dtype->name);
  if (bits / 8 != entry.end - entry.begin)
    return fmt::format("its {} elements of {} need {} bytes, but its offsets span {}", elements,
                       entry.dtype->name, bits / 8, entry.end - entry.begin);
  return {};
}

// Why the entries together do not fill the data exactly, or nothing.
std::string layout_flaw(const SafeTensorsHeader& header, std::uint64_t data_bytes) {
  std::vector<std::size_t> order(header.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const SafeTensorsEntry& left = header.entries[a];
    const SafeTensorsEntry& right = header.entries[b];
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  std::uint64_t filled = 0;
  for (const std::size_t i : order) {
    const SafeTensorsEntry& entry = header.entries[i];
    if (entry.begin < filled)
      return fmt::format("tensor {} overlaps another: it begins at {}, before {}",
                         shown(header.names[i]), entry.begin, filled);
    if (entry.begin > filled)
      return fmt::format("the data has a hole of {} bytes before tensor {}", entry.begin - filled,
                         shown(header.names[i]));
    filled = entry.end;
  }
  if (filled != data_bytes)
    return fmt::format("{} bytes follow the last tensor", data_bytes - filled);
  return {};
}

// Sorting finds duplicates in n log n whatever the names are; a hash table would not.
std::vector<std::size_t> sorted_by_name(const std::vector<std::string>& names) {
  std::vector<std::size_t> order(names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return names[a] < names[b]; });
  return order;
}

}  // namespace

std::size_t SafeTensorsHeader::find(std::string_view name) const noexcept {
  const auto found =
      std::lower_bound(by_name.begin(), by_name.end(), name,
                       [&](std::size_t i, std::string_view wanted) { return names[i] < wanted; });
  return found != by_name.end() && names[*found] == name ? *found : names.size();
}

std::string_view safetensors_name(Dtype dtype) {
  for (const SafeTensorsDtype& known : kDtypes)
    if (known.ours == dtype) return known.name;
  return "";
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::size_t kept = std::min(text.size(), kLongest);
  // Not in the middle of a UTF-8 sequence.
  while (kept < text.size() && kept > 0 &&
         (static_cast<unsigned char>(text[kept]) & 0xC0U) == 0x80U)
    --kept;
  std::string result = "\"";
  for (const char c : text.substr(0, kept)) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7F)
      result += fmt::format("\\x{:02x}", code);
    else
      result += c;
  }
  return result + (kept < text.size() ? "...\"" : "\"");
}

SafeTensorsHeader read_safetensors_header(std::span<const std::byte> file,
                                          const std::string& name) {
  const Refuse refuse{name};
  if (file.size() < kLengthBytes)
    refuse("too short for a safetensors file: {} bytes, at least 8 expected", file.size());
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  // Against the limit first: after that, 8 + length cannot wrap.
  if (length > SafeTensors::kMaxHeaderBytes)
    refuse("header length {} is above the limit of {}", length, SafeTensors::kMaxHeaderBytes);
  if (length > file.size() - kLengthBytes)
    refuse("header length {} runs past the end of the file of {} bytes", length, file.size());
  if (length < 2) refuse("header length {} is too short for a JSON object", length);

  const auto* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  const std::string_view json(text, length);
  // The parser would skip a byte order mark, and take a zero byte for the end of its input.
  if (json.front() != '{') refuse("the header does not begin with '{{'");
  if (json.find('\0') != std::string_view::npos)
    refuse("the header is not valid JSON: it has a zero byte");

  SafeTensorsHeader header;
  HeaderReader reader(header);
  if (!nlohmann::json::sax_parse(json.data(), json.data() + json.size(), &reader))
    refuse("{}", reader.reason());

  header.by_name = sorted_by_name(header.names);
  for (std::size_t i = 1; i < header.by_name.size(); ++i) {
    const std::string& current = header.names[header.by_name[i]];
    if (current == header.names[header.by_name[i - 1]])
      refuse("tensor {} appears twice", shown(current));
  }
  header.data_begin = kLengthBytes + length;
  const std::uint64_t data_bytes = file.size() - header.data_begin;
  for (std::size_t i = 0; i < header.entries.size(); ++i)
    if (const std::string problem = flaw(header.entries[i], data_bytes); !problem.empty())
      refuse("tensor {}: {}", shown(header.names[i]), problem);
  if (const std::string problem = layout_flaw(header, data_bytes); !problem.empty())
    refuse("{}", problem);
  return header;
}

}  // namespace packrnn
