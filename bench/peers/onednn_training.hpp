// A step of training by oneDNN: forward, and backward from a given dy. Weights and their gradients
// are kept in one plain form, in which an optimizer would add them; the forms that the primitives
// want are made anew in every step, as weights that have changed need it.
#pragma once

#include <cstring>
#include <initializer_list>

#include "bench/peers/onednn_stack.hpp"

namespace packrnn::bench {

class TrainingStack final : public OnednnStack {
 public:
  TrainingStack(const SafeTensors& file, bool lstm) : OnednnStack(file, lstm) {
    const std::int64_t width = sizes_.directions * sizes_.hidden;
    Flow flow{values("x", sizes_.input),
              plain({sizes_.steps, sizes_.batch, sizes_.input}, Tag::tnc)};
    dx_ = flow.gradient;
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      const Flow next{plain({sizes_.steps, sizes_.batch, width}, Tag::tnc),
                      layer + 1 < sizes_.layers
                          ? plain({sizes_.steps, sizes_.batch, width}, Tag::tnc)
                          : values("dy", width)};
      add(layer, flow, next);
      flow = next;
    }
  }

  void run() override {
    // The primitives add to the gradients of weights.
    for (const Gradients& of : gradients_)
      for (const memory& part : {of.w_ih, of.w_hh, of.bias})
        std::memset(part.get_data_handle(), 0, part.get_desc().get_size());
    for (Call& call : forward_) call.primitive.execute(stream_, call.arguments);
    for (auto layer = backward_.rbegin(); layer != backward_.rend(); ++layer)
      for (Call& call : *layer) call.primitive.execute(stream_, call.arguments);
    stream_.wait();
  }

  std::string output() const override {
    std::string result = bytes(dx_);
    for (const Gradients& of : gradients_)
      for (std::int64_t d = 0; d < sizes_.directions; ++d) {
        append_weights(result, of.w_ih, d);
        append_weights(result, of.w_hh, d);
        append_bias(result, of.bias, d, false);
        append_bias(result, of.bias, d, true);
      }
    return result;
  }

 private:
  /// Values between two layers, [T, N, width], and the gradient that comes back there.
  struct Flow {
    memory value, gradient;
  };
  struct Gradients {
    memory w_ih, w_hh, bias;  // of one layer
  };

  /// The weights in the form that is wanted, which a call puts there.
  memory ready(const memory& weights, const memory::desc& wanted, std::vector<Call>& calls) {
    if (weights.get_desc() == wanted) return weights;
    const memory to(wanted, engine_);
    calls.push_back({dnnl::reorder(weights, to), {{DNNL_ARG_FROM, weights}, {DNNL_ARG_TO, to}}});
    return to;
  }

  void add(std::int64_t layer, const Flow& in, const Flow& out) {
    const std::int64_t H = sizes_.hidden, G = sizes_.gates(), D = sizes_.directions;
    const std::int64_t width = sizes_.input_of(layer);
    const memory::desc x = in.value.get_desc(), y = out.value.get_desc(), none;
    const memory::desc w_ih({1, D, width, G, H}, kFloat, Tag::ldigo);
    const memory::desc w_hh({1, D, H, G, H}, kFloat, Tag::ldigo);
    const memory::desc any_ih({1, D, width, G, H}, kFloat, Tag::any);
    const memory::desc any_hh({1, D, H, G, H}, kFloat, Tag::any);
    const memory bias = biases(layer);
    const memory::desc b = bias.get_desc();
    constexpr auto kTraining = dnnl::prop_kind::forward_training;
    constexpr auto kBackward = dnnl::prop_kind::backward;
    if (sizes_.lstm) {
      using Forward = dnnl::lstm_forward;
      using Backward = dnnl::lstm_backward;
      // Without states, though they are zeros, 2.6 computes a wrong gradient of weight_hh.
      const memory::desc h({1, D, sizes_.batch, H}, kFloat, Tag::ldnc);
      const Forward::primitive_desc forward(
          {kTraining, direction(), x, h, h, any_ih, any_hh, b, y, h, h}, engine_);
      const Backward::primitive_desc backward(
          {kBackward, direction(), x, h, h,    any_ih, any_hh, b, y, h,
           h,         x,           h, h, w_ih, w_hh,   b,      y, h, h},
          engine_, forward);
      put<Forward, Backward>(layer, forward, backward, bias, in, out, h);
    } else {
      using Forward = dnnl::lbr_gru_forward;
      using Backward = dnnl::lbr_gru_backward;
      const Forward::primitive_desc forward(
          {kTraining, direction(), x, none, any_ih, any_hh, b, y, none}, engine_);
      const Backward::primitive_desc backward({kBackward, direction(), x, none, any_ih, any_hh, b,
                                               y, none, x, none, w_ih, w_hh, b, y, none},
                                              engine_, forward);
      put<Forward, Backward>(layer, forward, backward, bias, in, out);
    }
  }

  memory zeros(const memory::desc& desc) {
    memory result(desc, engine_);
    std::memset(result.get_data_handle(), 0, desc.get_size());
    return result;
  }

  template <class Forward, class Backward>
  void put(std::int64_t layer, const typename Forward::primitive_desc& forward,
           const typename Backward::primitive_desc& backward, const memory& bias, const Flow& in,
           const Flow& out, const memory::desc& state = {}) {
    const Gradients of{{backward.diff_weights_layer_desc(), engine_},
                       {backward.diff_weights_iter_desc(), engine_},
                       {backward.diff_bias_desc(), engine_}};
    const memory w_ih = weights("weight_ih", layer, sizes_.input_of(layer), of.w_ih.get_desc());
    const memory w_hh = weights("weight_hh", layer, sizes_.hidden, of.w_hh.get_desc());
    const memory workspace(forward.workspace_desc(), engine_);
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC_LAYER, in.value},
        {DNNL_ARG_WEIGHTS_LAYER, ready(w_ih, forward.weights_layer_desc(), forward_)},
        {DNNL_ARG_WEIGHTS_ITER, ready(w_hh, forward.weights_iter_desc(), forward_)},
        {DNNL_ARG_BIAS, bias},
        {DNNL_ARG_DST_LAYER, out.value},
        {DNNL_ARG_WORKSPACE, workspace}};
    const auto add_states = [&](const std::initializer_list<int>& names) {
      if (!state.is_zero())
        for (const int name : names) arguments.insert({name, zeros(state)});
    };
    add_states({DNNL_ARG_SRC_ITER, DNNL_ARG_SRC_ITER_C, DNNL_ARG_DST_ITER, DNNL_ARG_DST_ITER_C});
    forward_.push_back({Forward(forward), arguments});

    std::vector<Call>& back = backward_.emplace_back();
    arguments[DNNL_ARG_WEIGHTS_LAYER] = ready(w_ih, backward.weights_layer_desc(), back);
    arguments[DNNL_ARG_WEIGHTS_ITER] = ready(w_hh, backward.weights_iter_desc(), back);
    arguments.insert({{DNNL_ARG_DIFF_SRC_LAYER, in.gradient},
                      {DNNL_ARG_DIFF_WEIGHTS_LAYER, of.w_ih},
                      {DNNL_ARG_DIFF_WEIGHTS_ITER, of.w_hh},
                      {DNNL_ARG_DIFF_BIAS, of.bias},
                      {DNNL_ARG_DIFF_DST_LAYER, out.gradient}});
    add_states({DNNL_ARG_DIFF_SRC_ITER, DNNL_ARG_DIFF_SRC_ITER_C, DNNL_ARG_DIFF_DST_ITER,
                DNNL_ARG_DIFF_DST_ITER_C});
    back.push_back({Backward(backward), arguments});
    gradients_.push_back(of);
  }

  static void append(std::string& result, const std::vector<float>& values) {
    result.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }

  /// PyTorch's [G*H, width] of one direction of [1, D, width, G, H].
  void append_weights(std::string& result, const memory& from, std::int64_t direction) const {
    const std::int64_t H = sizes_.hidden, G = sizes_.gates();
    const std::int64_t width = from.get_desc().dims()[2];
    const float* source =
        static_cast<const float*>(from.get_data_handle()) + direction * width * G * H;
    std::vector<float> values(static_cast<std::size_t>(width * G * H));
    for (std::int64_t i = 0; i < width; ++i)
      for (std::int64_t g = 0; g < G; ++g)
        for (std::int64_t j = 0; j < H; ++j)
          values[static_cast<std::size_t>((gate(g) * H + j) * width + i)] = *source++;
    append(result, values);
  }

  /// PyTorch's bias_ih or bias_hh: the same gradient, but for the part of a GRU's that lies apart.
  void append_bias(std::string& result, const memory& from, std::int64_t direction,
                   bool of_h) const {
    const std::int64_t H = sizes_.hidden, G = sizes_.gates();
    const float* source =
        static_cast<const float*>(from.get_data_handle()) + direction * sizes_.biases() * H;
    std::vector<float> values(static_cast<std::size_t>(G * H));
    for (std::int64_t g = 0; g < G; ++g) {
      const std::int64_t place = !sizes_.lstm && g == 2 && of_h ? 3 : g;
      std::memcpy(values.data() + gate(g) * H, source + place * H,
                  static_cast<std::size_t>(H) * sizeof(float));
    }
    append(result, values);
  }

  std::vector<Call> forward_;
  std::vector<std::vector<Call>> backward_;  // by layer; the last goes first
  std::vector<Gradients> gradients_;         // by layer
  memory dx_;
};

}  // namespace packrnn::bench
