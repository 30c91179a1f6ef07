// What a stack of oneDNN's layers is made of: sizes, and PyTorch's parameters in oneDNN's forms.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <packrnn/layers/safetensors.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace packrnn::bench {

using dnnl::memory;
using Tag = memory::format_tag;
constexpr auto kFloat = memory::data_type::f32;

struct Sizes {
  std::int64_t steps, batch, input, hidden, layers, directions;
  bool lstm;

  std::int64_t gates() const { return lstm ? 4 : 3; }
  std::int64_t biases() const { return 4; }  // a GRU that resets after the product has b_hn apart
  std::int64_t input_of(std::int64_t layer) const {
    return layer == 0 ? input : directions * hidden;
  }
};

/// The layers of one file, padded, ready to run.
class OnednnStack {
 public:
  OnednnStack(const SafeTensors& file, bool lstm) : file_(file), sizes_(sizes_of(file, lstm)) {}
  virtual ~OnednnStack() = default;
  OnednnStack(const OnednnStack&) = delete;
  OnednnStack& operator=(const OnednnStack&) = delete;

  virtual void run() = 0;
  /// Of the last run: the bytes that line_server.py asks for.
  virtual std::string output() const = 0;

 protected:
  struct Call {
    dnnl::primitive primitive;
    std::unordered_map<int, memory> arguments;
  };

  static std::string bytes(const memory& from) {
    return {static_cast<const char*>(from.get_data_handle()), from.get_desc().get_size()};
  }
  dnnl::rnn_direction direction() const {
    return sizes_.directions == 2 ? dnnl::rnn_direction::bidirectional_concat
                                  : dnnl::rnn_direction::unidirectional_left2right;
  }
  static Sizes sizes_of(const SafeTensors& file, bool lstm) {
    const Shape x = file.shape("x");
    Sizes sizes{x[0], x[1], x[2], file.shape("weight_hh_l0")[1], 0, 1, lstm};
    while (file.contains(fmt::format("weight_hh_l{}", sizes.layers))) ++sizes.layers;
    if (file.contains("weight_hh_l0_reverse")) sizes.directions = 2;
    return sizes;
  }

  memory plain(const memory::dims& dims, Tag tag) { return {{dims, kFloat, tag}, engine_}; }
  /// [T, N, width] as it is in the file.
  memory values(const char* name, std::int64_t width) {
    const Tensor from = file_.tensor(name);
    memory to = plain({sizes_.steps, sizes_.batch, width}, Tag::tnc);
    std::memcpy(to.get_data_handle(), from.view().raw(), from.view().bytes());
    return to;
  }

  Tensor parameter(const char* name, std::int64_t layer, std::int64_t direction) const {
    return file_.tensor(fmt::format("{}_l{}{}", name, layer, direction == 1 ? "_reverse" : ""));
  }
  /// oneDNN's gates in PyTorch's order: i f c o; u r o.
  std::int64_t gate(std::int64_t g) const {
    constexpr std::int64_t kGru[] = {1, 0, 2};
    return sizes_.lstm ? g : kGru[g];
  }

  /// [1, D, width, G, H] from PyTorch's [G*H, width], in whatever form the primitive wants.
  memory weights(const char* name, std::int64_t layer, std::int64_t width,
                 const memory::desc& wanted) {
    const std::int64_t H = sizes_.hidden, G = sizes_.gates(), D = sizes_.directions;
    memory from = plain({1, D, width, G, H}, Tag::ldgoi), to(wanted, engine_);
    auto* target = static_cast<float*>(from.get_data_handle());
    for (std::int64_t d = 0; d < D; ++d) {
      const Tensor values = parameter(name, layer, d);
      for (std::int64_t g = 0; g < G; ++g, target += H * width)
        std::memcpy(target, values.view().data<float>() + gate(g) * H * width,
                    static_cast<std::size_t>(H * width) * sizeof(float));
    }
    dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
    return to;
  }

  memory biases(std::int64_t layer) {
    const std::int64_t H = sizes_.hidden, D = sizes_.directions;
    memory result = plain({1, D, sizes_.biases(), H}, Tag::ldgo);
    auto* target = static_cast<float*>(result.get_data_handle());
    for (std::int64_t d = 0; d < D; ++d) {
      const Tensor of_input = parameter("bias_ih", layer, d), of_h = parameter("bias_hh", layer, d);
      const float *ih = of_input.view().data<float>(), *hh = of_h.view().data<float>();
      for (std::int64_t g = 0; g < sizes_.biases(); ++g)
        for (std::int64_t j = 0; j < H; ++j) {
          const bool apart = !sizes_.lstm && g >= 2;
          *target++ =
              apart ? (g == 2 ? ih : hh)[2 * H + j] : ih[gate(g) * H + j] + hh[gate(g) * H + j];
        }
    }
    return result;
  }

  const SafeTensors& file_;
  Sizes sizes_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
};

}  // namespace packrnn::bench
