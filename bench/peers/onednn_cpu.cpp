// oneDNN's layers on the CPU, padded: every sequence runs to the end of the longest, because its
// primitives know no lengths. Answers the commands that line_server.py explains.
//
// usage: packrnn_onednn_cpu THREADS
#include <fmt/format.h>
#include <omp.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <packrnn/layers/safetensors.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/text.hpp"

namespace packrnn::bench {
namespace {

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

/// The layers of one file, ready to run.
class Stack {
 public:
  Stack(const SafeTensors& file, bool lstm) : file_(file), sizes_(sizes_of(file, lstm)) {
    const Tensor x = file.tensor("x");
    memory source = plain({sizes_.steps, sizes_.batch, sizes_.input}, Tag::tnc);
    std::memcpy(source.get_data_handle(), x.view().raw(), x.view().bytes());
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) source = add(layer, source);
    output_ = source;
  }

  void run() {
    for (Call& call : calls_) call.primitive.execute(stream_, call.arguments);
    stream_.wait();
  }
  std::string_view output() const {
    return {static_cast<const char*>(output_.get_data_handle()), output_.get_desc().get_size()};
  }

 private:
  struct Call {
    dnnl::primitive primitive;
    std::unordered_map<int, memory> arguments;
  };

  static Sizes sizes_of(const SafeTensors& file, bool lstm) {
    const Shape x = file.shape("x");
    Sizes sizes{x[0], x[1], x[2], file.shape("weight_hh_l0")[1], 0, 1, lstm};
    while (file.contains(fmt::format("weight_hh_l{}", sizes.layers))) ++sizes.layers;
    if (file.contains("weight_hh_l0_reverse")) sizes.directions = 2;
    return sizes;
  }

  memory plain(const memory::dims& dims, Tag tag) { return {{dims, kFloat, tag}, engine_}; }

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

  memory add(std::int64_t layer, const memory& source) {
    const std::int64_t H = sizes_.hidden, G = sizes_.gates(), D = sizes_.directions;
    const std::int64_t width = sizes_.input_of(layer);
    const memory::desc none, x = source.get_desc();
    const memory::desc w_ih({1, D, width, G, H}, kFloat, Tag::any);
    const memory::desc w_hh({1, D, H, G, H}, kFloat, Tag::any);
    memory bias = biases(layer), y = plain({sizes_.steps, sizes_.batch, D * H}, Tag::tnc);
    constexpr auto kInference = dnnl::prop_kind::forward_inference;
    const auto direction = D == 2 ? dnnl::rnn_direction::bidirectional_concat
                                  : dnnl::rnn_direction::unidirectional_left2right;
    const auto put = [&](const auto& descriptor, const dnnl::primitive& primitive) {
      calls_.push_back(
          {primitive,
           {{DNNL_ARG_SRC_LAYER, source},
            {DNNL_ARG_WEIGHTS_LAYER,
             weights("weight_ih", layer, width, descriptor.weights_layer_desc())},
            {DNNL_ARG_WEIGHTS_ITER, weights("weight_hh", layer, H, descriptor.weights_iter_desc())},
            {DNNL_ARG_BIAS, bias},
            {DNNL_ARG_DST_LAYER, y}}});
    };
    if (sizes_.lstm) {
      const dnnl::lstm_forward::primitive_desc descriptor(
          {kInference, direction, x, none, none, w_ih, w_hh, bias.get_desc(), y.get_desc(), none,
           none},
          engine_);
      put(descriptor, dnnl::lstm_forward(descriptor));
    } else {
      const dnnl::lbr_gru_forward::primitive_desc descriptor(
          {kInference, direction, x, none, w_ih, w_hh, bias.get_desc(), y.get_desc(), none},
          engine_);
      put(descriptor, dnnl::lbr_gru_forward(descriptor));
    }
    return y;
  }

  const SafeTensors& file_;
  Sizes sizes_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::vector<Call> calls_;
  memory output_;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Server {
 public:
  std::string answer(std::string_view line) {
    const std::string_view command = take_until(line, '\t');
    if (command == "load") {
      const std::string path(take_until(line, '\t'));
      stack_.reset();
      file_ = SafeTensors::open(path);
      stack_.emplace(*file_, line == "lstm");
      return "ready\tpadded";
    }
    if (!stack_) return "failed nothing is loaded";
    take_until(line, '\t');  // there is one variant
    if (command == "run") {
      const int passes = number<int>(line).value_or(1);
      stack_->run();
      const double cpu = cpu_seconds(), wall = wall_seconds();
      for (int i = 0; i < passes; ++i) stack_->run();
      return fmt::format("seconds\t{}\t{}", wall_seconds() - wall, cpu_seconds() - cpu);
    }
    if (command == "output") {
      stack_->run();
      const std::string_view bytes = stack_->output();
      std::ofstream(std::string(line), std::ios::binary)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      return "written";
    }
    return fmt::format("failed there is no command {}", command);
  }

 private:
  std::optional<SafeTensors> file_;
  std::optional<Stack> stack_;
};

void serve(int threads) {
  omp_set_num_threads(threads);
  const dnnl_version_t* version = dnnl_version();
  std::cout << fmt::format("engine oneDNN {}.{}.{}", version->major, version->minor, version->patch)
            << std::endl;
  Server server;
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << server.answer(line) << std::endl;
    } catch (const std::exception& error) {
      std::cout << "failed " << error.what() << std::endl;
    }
  }
}

}  // namespace
}  // namespace packrnn::bench

int main(int argc, char** argv) {
  packrnn::bench::serve(argc > 1 ? std::atoi(argv[1]) : 1);
  return 0;
}
