// Weights in a .safetensors file: written, read under a prefix, and what a wrong file is answered.
//
// Such a file comes out of PyTorch by safetensors.torch.save_file(model.state_dict(), path); names
// and shapes are the same here.
#include <algorithm>
#include <cstdio>
#include <packrnn/packrnn.hpp>
#include <string>

int main() {
  using namespace packrnn;
  const char* path = "model.safetensors";
  const Lstm trained({.input_size = 8, .hidden_size = 16, .num_layers = 2, .seed = 1});
  const Linear head({.in_features = 16, .out_features = 3, .seed = 2});

  // [save]
  // One file for the whole model: every part puts its own prefix before its names.
  StateDict all = trained.state_dict("encoder.");
  for (NamedTensor& item : head.state_dict("head.")) all.push_back(std::move(item));
  save_safetensors(path, all, {{"made_by", "load_weights"}});
  // [/save]

  // [load]
  const SafeTensors file = SafeTensors::open(path);  // maps the file, checks its whole header
  Lstm lstm({.input_size = 8, .hidden_size = 16, .num_layers = 2});
  lstm.load(file, "encoder.");  // only names under the prefix are looked at
  Linear scores({.in_features = 16, .out_features = 3});
  scores.load(file.state_dict("head."));
  // [/load]
  std::printf("%s holds %zu tensors; the LSTM took %lld\n", path, file.names().size(),
              static_cast<long long>(lstm.parameters().count()));
  for (std::int64_t i = 0; i < lstm.parameters().count(); ++i)
    if (!std::ranges::equal(lstm.parameters().value(i).values<float>(),
                            trained.parameters().value(i).values<float>()))
      return 1;

  // [strict]
  // Loading is strict: everything that does not fit is listed at once, and nothing has changed.
  Lstm other({.input_size = 8, .hidden_size = 16, .num_layers = 3});
  std::string message;
  try {
    other.load(file, "encoder.");
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  std::printf("a model of three layers: %s\n", message.c_str());

  // strict = false keeps what is missing, and reports it.
  const LoadReport report = other.parameters().load(file.state_dict("encoder."), {.strict = false});
  std::printf("not strict: %zu parameters kept their values\n", report.missing.size());
  // [/strict]
  const bool named = message.find("weight_ih_l2") != std::string::npos;
  return named && report.missing.size() == 4 ? 0 : 1;
}
