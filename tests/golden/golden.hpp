// Reads the golden files of this folder for tests. It is small and trusting, because the files are
// ours, and it shares nothing with the product's own safetensors reader, which is under test.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace packrnn::golden {

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<double> value;  // row-major; integer tensors are converted
};

struct File {
  std::string name;  // file name without extension, such as lstm_l2_bi_bias
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> names;               // of the tensors, in the order of the file
  std::map<std::string, std::string> metadata;  // README.md lists the keys

  [[nodiscard]] bool has(const std::string& tensor) const { return tensors.contains(tensor); }

  // Throws std::runtime_error naming file and key when there is none.
  [[nodiscard]] const Tensor& at(const std::string& tensor) const {
    const auto found = tensors.find(tensor);
    if (found == tensors.end()) {
      throw std::runtime_error(name + ": no tensor " + tensor);
    }
    return found->second;
  }
  [[nodiscard]] const std::string& text(const std::string& key) const {
    const auto found = metadata.find(key);
    if (found == metadata.end()) {
      throw std::runtime_error(name + ": no metadata " + key);
    }
    return found->second;
  }
  [[nodiscard]] std::int64_t number(const std::string& key) const { return std::stoll(text(key)); }
  [[nodiscard]] bool flag(const std::string& key) const { return number(key) != 0; }

  [[nodiscard]] std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> list;
    std::istringstream stream(text("lengths"));
    for (std::string item; std::getline(stream, item, ',');) {
      list.push_back(std::stoll(item));
    }
    return list;
  }
};

[[nodiscard]] inline File read(const std::filesystem::path& path) {
  static_assert(std::endian::native == std::endian::little);
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  std::uint64_t header_length = 0;
  if (bytes.size() < sizeof(header_length)) {
    throw std::runtime_error("cannot read " + path.string());
  }
  std::memcpy(&header_length, bytes.data(), sizeof(header_length));
  const std::string data = bytes.substr(sizeof(header_length) + header_length);

  File file;
  file.name = path.stem().string();
  // ordered_json keeps the order of the file, which for parameters is PyTorch's.
  const auto header =
      nlohmann::ordered_json::parse(bytes.substr(sizeof(header_length), header_length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      file.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    Tensor tensor;
    tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
    const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
    const bool integer = entry.at("dtype") == "I64";
    if (!integer && entry.at("dtype") != "F64") {
      throw std::runtime_error(file.name + ": unknown dtype of " + name);
    }
    for (std::size_t at = begin; at < end; at += 8) {
      const std::string element = data.substr(at, 8);
      std::int64_t whole = 0;
      double real = 0.0;
      std::memcpy(&whole, element.data(), 8);
      std::memcpy(&real, element.data(), 8);
      tensor.value.push_back(integer ? static_cast<double>(whole) : real);
    }
    file.names.push_back(name);
    file.tensors.emplace(name, std::move(tensor));
  }
  return file;
}

// All files of a folder in the order of their names.
[[nodiscard]] inline std::vector<File> read_all(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<File> files;
  for (const auto& path : paths) {
    files.push_back(read(path));
  }
  return files;
}

// The kinds of file: "" is a layer. All throw when the folder holds none, so that a test which
// loops over them cannot pass by looping over nothing.
[[nodiscard]] inline std::vector<File> select(const std::filesystem::path& folder,
                                              const std::string& kind) {
  std::vector<File> files = read_all(folder);
  std::erase_if(files, [&](const File& file) {
    const auto found = file.metadata.find("kind");
    return (found == file.metadata.end() ? "" : found->second) != kind;
  });
  if (files.empty()) {
    throw std::runtime_error("no golden files in " + folder.string());
  }
  return files;
}
[[nodiscard]] inline std::vector<File> layer_files(const std::filesystem::path& folder) {
  return select(folder, "");
}
[[nodiscard]] inline std::vector<File> pack_files(const std::filesystem::path& folder) {
  return select(folder, "pack");
}
[[nodiscard]] inline std::vector<File> gradient_files(const std::filesystem::path& folder) {
  return select(folder, "gradients");
}

}  // namespace packrnn::golden
