// oneDNN's layers on the CPU, padded: every sequence runs to the end of the longest, because its
// primitives know no lengths. Answers the commands that line_server.py explains.
//
// usage: packrnn_onednn_cpu THREADS
#include <fmt/format.h>
#include <omp.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <packrnn/layers/safetensors.hpp>
#include <string>
#include <vector>

#include "bench/peers/onednn_stack.hpp"
#include "bench/peers/onednn_training.hpp"
#include "bench/text.hpp"

namespace packrnn::bench {
namespace {

/// Forward only.
class ForwardStack final : public OnednnStack {
 public:
  ForwardStack(const SafeTensors& file, bool lstm) : OnednnStack(file, lstm) {
    memory source = values("x", sizes_.input);
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) source = add(layer, source);
    output_ = source;
  }

  void run() override {
    for (Call& call : calls_) call.primitive.execute(stream_, call.arguments);
    stream_.wait();
  }
  std::string output() const override { return bytes(output_); }

 private:
  memory add(std::int64_t layer, const memory& source) {
    const std::int64_t H = sizes_.hidden, G = sizes_.gates(), D = sizes_.directions;
    const std::int64_t width = sizes_.input_of(layer);
    const memory::desc none, x = source.get_desc();
    const memory::desc w_ih({1, D, width, G, H}, kFloat, Tag::any);
    const memory::desc w_hh({1, D, H, G, H}, kFloat, Tag::any);
    memory bias = biases(layer), y = plain({sizes_.steps, sizes_.batch, D * H}, Tag::tnc);
    constexpr auto kInference = dnnl::prop_kind::forward_inference;
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
          {kInference, direction(), x, none, none, w_ih, w_hh, bias.get_desc(), y.get_desc(), none,
           none},
          engine_);
      put(descriptor, dnnl::lstm_forward(descriptor));
    } else {
      const dnnl::lbr_gru_forward::primitive_desc descriptor(
          {kInference, direction(), x, none, w_ih, w_hh, bias.get_desc(), y.get_desc(), none},
          engine_);
      put(descriptor, dnnl::lbr_gru_forward(descriptor));
    }
    return y;
  }

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
      const bool lstm = line == "lstm";
      if (file_->contains("dy"))
        stack_ = std::make_unique<TrainingStack>(*file_, lstm);
      else
        stack_ = std::make_unique<ForwardStack>(*file_, lstm);
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
      const std::string bytes = stack_->output();
      std::ofstream(std::string(line), std::ios::binary)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      return "written";
    }
    return fmt::format("failed there is no command {}", command);
  }

 private:
  std::optional<SafeTensors> file_;
  std::unique_ptr<OnednnStack> stack_;
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
