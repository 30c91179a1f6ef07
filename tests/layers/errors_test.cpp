// Callers' mistakes: refused before anything is changed, with the argument, its value and what was
// expected in the message; the next valid call works.

#include <cmath>
#include <limits>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

Tensor zeros(const Shape& shape, Dtype dtype = Dtype::f32) { return Tensor::zeros(shape, dtype); }

// A valid call before and after the mistakes; nothing may have changed.
template <class Mistakes>
void check_unchanged(Context& context, const Recurrent& layer, const ref::Config& config,
                     Mistakes&& mistakes) {
  const Batch batch = random_batch(config, {3, 5, 1});
  const Run before = run(context, layer, config, batch);
  const std::vector<std::byte> parameters = parameter_bits(layer);
  const std::uint64_t version = layer.parameters().version();
  const std::uint64_t drawn = context.random().position();
  mistakes();
  CHECK(parameter_bits(layer) == parameters);
  CHECK(layer.parameters().version() == version);
  CHECK(context.random().position() == drawn);
  CHECK(first_difference(all_bits(run(context, layer, config, batch)), all_bits(before)) == -1);
}

}  // namespace

TEST_CASE("options out of range are refused by name and value") {
  const auto lstm = [](auto change) {
    return [=] {
      LstmOptions options{.input_size = 3, .hidden_size = 4, .num_layers = 2};
      change(options);
      (void)Lstm(options);
    };
  };
  using O = LstmOptions;
  check_refused("input 0", lstm([](O& o) { o.input_size = 0; }), {"input_size", "0"});
  check_refused("input -3", lstm([](O& o) { o.input_size = -3; }), {"input_size", "-3"});
  check_refused("hidden 0", lstm([](O& o) { o.hidden_size = 0; }), {"hidden_size", "0"});
  check_refused("hidden -1", lstm([](O& o) { o.hidden_size = -1; }), {"hidden_size", "-1"});
  check_refused("layers 0", lstm([](O& o) { o.num_layers = 0; }), {"num_layers", "0"});
  check_refused("layers -2", lstm([](O& o) { o.num_layers = -2; }), {"num_layers", "-2"});
  check_refused("dropout -0.1", lstm([](O& o) { o.dropout = -0.1; }), {"dropout", "-0.1"});
  check_refused("dropout 1.5", lstm([](O& o) { o.dropout = 1.5; }), {"dropout", "1.5"});
  check_refused("dropout NaN", lstm([](O& o) { o.dropout = std::nan(""); }), {"dropout", "nan"});
  check_refused("dropout inf", lstm([](O& o) { o.dropout = INFINITY; }), {"dropout", "inf"});
  check_refused("B63 proj = H", lstm([](O& o) { o.proj_size = 4; }), {"proj_size", "4"});
  check_refused("proj > H", lstm([](O& o) { o.proj_size = 9; }), {"proj_size", "9", "4"});
  check_refused("proj -1", lstm([](O& o) { o.proj_size = -1; }), {"proj_size", "-1"});
  // A size whose product with the gates or the other size overflows is refused, not wrapped.
  for (const int bits : {62, 61, 40, 31}) {
    const std::int64_t huge = std::int64_t{1} << bits;
    const std::string text = std::to_string(huge);
    check_refused("huge hidden", lstm([=](O& o) { o.hidden_size = huge; }), {"hidden_size", text});
    check_refused("huge input", lstm([=](O& o) { o.input_size = huge; }), {"input_size", text});
    check_refused("huge depth", lstm([=](O& o) { o.num_layers = huge; }), {"num_layers", text});
  }
  CHECK_THROWS_AS(lstm([](O& o) { o.input_size = o.hidden_size = 1 << 28; })(), Error);

  check_refused("gru", [] { (void)Gru({.input_size = 0, .hidden_size = 4}); }, {"input_size", "0"});
  check_refused("gru dropout",
                [] { (void)Gru({.input_size = 1, .hidden_size = 4, .dropout = 2.0}); },
                {"dropout", "2"});
  check_refused("rnn", [] { (void)Rnn({.input_size = 3, .hidden_size = -7}); },
                {"hidden_size", "-7"});
  for (const Dtype dtype : {Dtype::i32, Dtype::i64})
    check_refused("integers",
                  [=] { (void)Lstm({.input_size = 3, .hidden_size = 4, .dtype = dtype}); },
                  {"dtype", std::string(packrnn::name_of(dtype))});

  // The limits themselves are legal.
  CHECK_NOTHROW(Lstm({.input_size = 1, .hidden_size = 2, .dropout = 1.0, .proj_size = 1}));
  CHECK_NOTHROW(Rnn({.input_size = 1, .hidden_size = 1, .dropout = 0.0}));
}

TEST_CASE("B87: a wrong input width is refused") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 50, 16);
  const Recurrent layer = make_layer(config);
  Context context;
  check_unchanged(context, layer, config, [&] {
    for (const std::int64_t I : {300, 49, 51, 1}) {
      const Tensor x = zeros({5, 2, I});
      const std::vector<std::string> parts{"input", "[5, 2, " + std::to_string(I) + "]", "50"};
      check_refused(
          "dense", [&] { (void)host::forward(context, layer, x); }, parts);
      check_refused(
          "padded",
          [&] {
            (void)host::forward_padded(context, layer, x, Lengths{5, 3});
          },
          parts);
      const PackedSequence packed(zeros({4, I}), PackedLayout::make({3, 1}));
      check_refused("packed", [&] { (void)host::forward(context, layer, packed); },
                    {"input", std::to_string(I), "50"});
    }
    check_refused("unbatched",
                  [&] {
                    (void)host::forward(context, layer, zeros({5, 49}));
                  },
                  {"input", "49", "50"});
  });
}

TEST_CASE("B87: no time steps are refused, no sequences are not") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool batch_first = GENERATE(false, true);
  const ref::Config config = config_of(kind, 3, 5, 2, true);
  const Recurrent layer = make_layer(config, {.batch_first = batch_first});
  Context context;
  const std::int64_t F = 2 * config.state_size();
  const auto shape = [&](std::int64_t T, std::int64_t N, std::int64_t width) {
    return batch_first ? Shape{N, T, width} : Shape{T, N, width};
  };
  check_refused("T = 0", [&] { (void)host::forward(context, layer, zeros(shape(0, 2, 3))); },
                {"input", shape(0, 2, 3).str()});
  check_refused("T = 0 unbatched",
                [&] {
                  (void)host::forward(context, layer, zeros({0, 3}));
                },
                {"input", "[0, 3]"});

  const DenseOutput none = host::forward(context, layer, zeros(shape(4, 0, 3)));
  CHECK(none.output.shape() == shape(4, 0, F));
  CHECK(none.state.h.shape() == Shape{4, 0, config.state_size()});
  const DenseOutput no_lengths =
      host::forward_padded(context, layer, zeros(shape(4, 0, 3)), Lengths{});
  CHECK(no_lengths.output.shape() == shape(4, 0, F));

  // With lengths, empty sequences are legal, and so is a batch of nothing else.
  const DenseOutput empty =
      host::forward_padded(context, layer, zeros(shape(4, 2, 3)), Lengths{0, 0});
  CHECK(same_bits(empty.output, zeros(shape(4, 2, F))));
  CHECK(same_bits(empty.state.h, zeros({4, 2, config.state_size()})));
}

TEST_CASE("input of another rank, dtype or device is refused") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 5);
  const Recurrent layer = make_layer(config);
  Context context;
  check_unchanged(context, layer, config, [&] {
    check_refused("undefined", [&] { (void)host::forward(context, layer, TensorView{}); },
                  {"input"});
    check_refused("rank 1", [&] { (void)host::forward(context, layer, zeros({3})); },
                  {"input", "[3]"});
    check_refused("rank 4",
                  [&] {
                    (void)host::forward(context, layer, zeros({2, 2, 2, 3}));
                  },
                  {"input", "[2, 2, 2, 3]"});
    check_refused("lengths need a batch",
                  [&] {
                    (void)host::forward_padded(context, layer, zeros({2, 3}), Lengths{2});
                  },
                  {"input", "[2, 3]"});
    check_refused("undefined, lengths",
                  [&] { (void)host::forward_padded(context, layer, TensorView{}, Lengths{2}); },
                  {"input"});
    check_refused("f64 for f32",
                  [&] {
                    (void)host::forward(context, layer, zeros({2, 2, 3}, Dtype::f64));
                  },
                  {"input", "f64", "f32"});
    check_refused("i64 for f32",
                  [&] {
                    (void)host::forward(context, layer, zeros({2, 2, 3}, Dtype::i64));
                  },
                  {"input", "i64", "f32"});
    const PackedSequence three_dimensional(zeros({4, 1, 3}), PackedLayout::make({3, 1}));
    check_refused("packed rank", [&] { (void)host::forward(context, layer, three_dimensional); },
                  {"input", "[4, 1, 3]"});
    check_refused("no packed sequence",
                  [&] { (void)host::forward(context, layer, PackedSequence()); }, {"input"});
    PackedSequence moved(zeros({4, 3}), PackedLayout::make({3, 1}));
    const PackedSequence target = std::move(moved);
    check_refused("moved from", [&] { (void)host::forward(context, layer, moved); }, {"input"});
    // A view that claims to be on a GPU is refused before it is read.
    int nothing = 0;
    const TensorView elsewhere(&nothing, {2, 2, 3}, Dtype::f32, Device::cuda(7));
    check_refused("device", [&] { (void)layer.forward(context, elsewhere); },
                  {"input", "cuda:7", context.device().name()});
    check_refused("device, lengths",
                  [&] {
                    (void)layer.forward_padded(context, elsewhere, Lengths{2, 1});
                  },
                  {"input", "cuda:7", context.device().name()});
  });
}

TEST_CASE("layers of 16-bit dtypes exist everywhere, and on the CPU say where they run") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::bf16, Dtype::f16);
  const ref::Config config = config_of(kind, 3, 5, 2);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  CHECK(layer.parameters().value(0).dtype() == dtype);
  Context context(Device::cpu(), {.threads = 1});
  const Tensor x = zeros({2, 2, 3}, dtype);
  const PackedSequence packed(zeros({4, 3}, dtype), PackedLayout::make({3, 1}));
  const auto message = [&](auto call) {
    try {
      call();
    } catch (const Unsupported& error) {
      return std::string(error.what());
    }
    return std::string("(nothing was thrown)");
  };
  for (const std::string& text :
       {message([&] { (void)layer.forward(context, x); }),
        message([&] { (void)layer.forward(context, packed); }), message([&] {
          (void)layer.forward_padded(context, x, Lengths{2, 1});
        })}) {
    CAPTURE(text);
    CHECK(text.find(packrnn::name_of(dtype)) != std::string::npos);
    CHECK(text.find("GPU") != std::string::npos);
    CHECK(text.find("f32") != std::string::npos);
  }
}

TEST_CASE("weights stored in 16 bits are for the CPU, and a GPU says what it has instead") {
  const Lstm layer(
      {.input_size = 3, .hidden_size = 5, .weight_storage = packrnn::WeightStorage::bf16});
  Context context;
  const Tensor x = context.to_device(zeros({2, 2, 3}));
  std::string message;
  try {
    (void)layer.forward(context, x);
  } catch (const Unsupported& error) {
    message = error.what();
  }
  CAPTURE(message);
  CHECK(message.empty() == !on_device());
  if (!on_device()) return;
  CHECK(message.find("bf16") != std::string::npos);
  CHECK(message.find("CPU") != std::string::npos);
}

TEST_CASE("B02: lengths that do not fit the batch are refused") {
  const bool batch_first = GENERATE(false, true);
  const ref::Config config = config_of(Kind::gru, 3, 5);
  const Recurrent layer = make_layer(config, {.batch_first = batch_first});
  Context context;
  const Tensor x = zeros(batch_first ? Shape{3, 4, 3} : Shape{4, 3, 3});
  check_unchanged(context, layer, config, [&] {
    check_refused("too few",
                  [&] {
                    (void)host::forward_padded(context, layer, x, Lengths{4, 2});
                  },
                  {"2", "3"});
    check_refused("too many",
                  [&] {
                    (void)host::forward_padded(context, layer, x, Lengths{4, 2, 1, 1, 1});
                  },
                  {"5", "3"});
    check_refused("beyond T",
                  [&] {
                    (void)host::forward_padded(context, layer, x, Lengths{4, 7, 1});
                  },
                  {"7", "4"});
    check_refused("negative",
                  [&] {
                    (void)host::forward_padded(context, layer, x, Lengths{4, -1, 1});
                  },
                  {"-1"});
  });
}

TEST_CASE("B05: states of another layout, dtype or device are refused") {
  const ref::Config config = config_of(Kind::lstm, 20, 30);
  const Recurrent layer = make_layer(config);
  Context context;
  const Tensor x = zeros({100, 1, 20});
  const Tensor good = zeros({1, 1, 30}), swapped = zeros({1, 100, 30});
  const auto with = [&](TensorView h, TensorView c) {
    return [&layer, &context, &x, h, c] {
      (void)host::forward(context, layer, x, {.state = StateView(h, c)});
    };
  };
  const Tensor f64 = zeros({1, 1, 30}, Dtype::f64), two = zeros({1, 2, 30});
  const Tensor flat = zeros({1, 30}), narrow = zeros({1, 1, 29}), deep = zeros({2, 1, 30});
  int nothing = 0;
  const TensorView gpu(&nothing, {1, 1, 30}, Dtype::f32, Device::cuda(7));
  check_unchanged(context, layer, config, [&] {
    check_refused("time for batch", with(swapped, swapped), {"h_0", "[1, 100, 30]", "[1, 1, 30]"});
    check_refused("c_0 of it", with(good, swapped), {"c_0", "[1, 100, 30]", "[1, 1, 30]"});
    check_refused("f64", with(f64, f64), {"h_0", "f64", "f32"});
    check_refused("c_0 f64", with(good, f64), {"c_0", "f64", "f32"});
    check_refused("h_0 alone", with(good, {}), {"h_0", "c_0"});
    check_refused("c_0 alone", with({}, good), {"h_0", "c_0"});
    check_refused("c_0 of another batch", with(good, two), {"c_0", "[1, 2, 30]", "[1, 1, 30]"});
    check_refused("rank", with(flat, flat), {"h_0", "[1, 30]", "[1, 1, 30]"});
    check_refused("width", with(narrow, good), {"h_0", "[1, 1, 29]", "[1, 1, 30]"});
    check_refused("layers", with(deep, deep), {"h_0", "[2, 1, 30]", "[1, 1, 30]"});
    const Tensor on_context = context.to_device(x);
    check_refused("device",
                  [&] { (void)layer.forward(context, on_context, {.state = StateView(gpu, gpu)}); },
                  {"h_0", "cuda:7", context.device().name()});
    // Unbatched input wants states without a batch, and only those.
    const Tensor one = zeros({100, 20});
    check_refused(
        "batched state",
        [&] { (void)host::forward(context, layer, one, {.state = StateView(good, good)}); },
        {"h_0", "[1, 1, 30]", "[1, 30]"});
    CHECK_NOTHROW(host::forward(context, layer, one, {.state = StateView(flat, flat)}));
  });
}

TEST_CASE("B47: one row of state is not spread over a batch in silence") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 5);
  const Recurrent layer = make_layer(config);
  Context context;
  const Tensor h = zeros({1, 1, config.state_size()}), c = zeros({1, 1, 5});
  const StateView state(h, config.cell == ref::Cell::lstm ? c.view() : TensorView());
  check_refused("one row",
                [&] {
                  (void)host::forward(context, layer, zeros({4, 3, 3}), {.state = state});
                },
                {"h_0", h.shape().str(), Shape{1, 3, config.state_size()}.str()});
}

TEST_CASE("B63: the projected state is narrower than the cell state") {
  const ref::Config config = config_of(Kind::lstm_proj, 3, 6);  // projects to 3
  const Recurrent layer = make_layer(config);
  Context context;
  const Tensor x = zeros({4, 2, 3}), narrow = zeros({1, 2, 3}), wide = zeros({1, 2, 6});
  check_unchanged(context, layer, config, [&] {
    check_refused(
        "c_0 as narrow as h_0",
        [&] { (void)host::forward(context, layer, x, {.state = StateView(narrow, narrow)}); },
        {"c_0", "[1, 2, 3]", "[1, 2, 6]"});
    check_refused("h_0 as wide as c_0",
                  [&] { (void)host::forward(context, layer, x, {.state = StateView(wide, wide)}); },
                  {"h_0", "[1, 2, 6]", "[1, 2, 3]"});
    CHECK_NOTHROW(host::forward(context, layer, x, {.state = StateView(narrow, wide)}));
  });
}

TEST_CASE("B04: states in batch-first order are refused, never reinterpreted") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 5, 2, true);  // L*D = 4
  const Recurrent layer = make_layer(config);
  const std::int64_t S = config.state_size();
  Context context;
  check_unchanged(context, layer, config, [&] {
    const PackedSequence x = packed_of(config, random_batch(config, {2, 3, 1}), Dtype::f32);
    const Tensor usual = zeros({4, 3, S}), in_front = zeros({3, 4, S});
    const Tensor c_usual = zeros({4, 3, 5}), c_in_front = zeros({3, 4, 5});
    const bool lstm = config.cell == ref::Cell::lstm;
    const StateView a(usual, lstm ? c_usual.view() : TensorView());
    const StateView b(in_front, lstm ? c_in_front.view() : TensorView());
    check_refused("batch in front", [&] { (void)host::forward(context, layer, x, {.state = b}); },
                  {"h_0", in_front.shape().str(), usual.shape().str()});
    check_refused(
        "batch not in front",
        [&] { (void)host::forward(context, layer, x, {.state = a, .state_batch_first = true}); },
        {"h_0", usual.shape().str(), in_front.shape().str()});
    CHECK_NOTHROW(host::forward(context, layer, x, {.state = a}));
    CHECK_NOTHROW(host::forward(context, layer, x, {.state = b, .state_batch_first = true}));
  });
}

TEST_CASE("only an LSTM has cell states") {
  const Kind kind = GENERATE(Kind::gru, Kind::gru_reset_before, Kind::rnn_tanh, Kind::rnn_relu);
  const ref::Config config = config_of(kind, 3, 5);
  const Recurrent layer = make_layer(config);
  Context context;
  check_unchanged(context, layer, config, [&] {
    const Tensor x = zeros({4, 2, 3}), state = zeros({1, 2, 5});
    check_refused(
        "c_0", [&] { (void)host::forward(context, layer, x, {.state = StateView(state, state)}); },
        {"c_0", "LSTM"});
    check_refused("c_0 alone",
                  [&] { (void)host::forward(context, layer, x, {.state = StateView({}, state)}); },
                  {"c_0"});
    std::vector<Tensor> cells(1);
    check_refused("cells", [&] { (void)host::forward(context, layer, x, {.cells = &cells}); },
                  {"cells", "LSTM"});
    CHECK(cells.size() == 1);
  });
}

TEST_CASE("a refused call leaves the vector for cell states as it was") {
  const ref::Config config = config_of(Kind::lstm, 3, 5);
  const Recurrent layer = make_layer(config);
  Context context;
  std::vector<Tensor> cells;
  cells.push_back(zeros({7}));
  const Tensor state = zeros({1, 9, 5});
  check_refused("state",
                [&] {
                  (void)host::forward(context, layer, zeros({4, 2, 3}),
                                      {.state = StateView(state, state), .cells = &cells});
                },
                {"h_0"});
  REQUIRE(cells.size() == 1);
  CHECK(cells[0].shape() == Shape{7});
}

TEST_CASE("B08: a state carried from another batch size is refused") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 5, 2);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters);
  Context context;
  std::vector<Run> runs;
  for (const Counts& lengths :
       {Counts{5, 2, 4, 1}, Counts{3, 3, 1}, Counts{4}, Counts{5, 2, 4, 1}}) {
    const Batch batch = random_batch(config, lengths);
    if (!runs.empty()) {
      const State& carried = runs.back().state;
      const auto N = static_cast<std::int64_t>(lengths.size());
      check_refused("carried",
                    [&] {
                      (void)host::forward(context, layer, packed_of(config, batch, Dtype::f32),
                                          {.state = carried});
                    },
                    {"h_0", carried.h.shape().str(), Shape{2, N, config.state_size()}.str()});
    }
    runs.push_back(run(context, layer, config, batch));
    check_run(config, parameters, batch, runs.back());
  }
  CHECK(first_difference(all_bits(runs[3]), all_bits(runs[0])) == -1);
}

TEST_CASE("B62, B78: a failed load leaves the layer as it was") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 4, 4, 2, true);
  Recurrent layer = make_layer(config, random_parameters(config, 1));
  const Recurrent source = make_layer(config, random_parameters(config, 2));
  Context context;
  check_unchanged(context, layer, config, [&] {
    StateDict missing = source.state_dict();
    std::erase_if(missing, [](const NamedTensor& t) { return t.name.ends_with("_reverse"); });
    check_refused("missing", [&] { layer.load(missing); },
                  {"weight_ih_l0_reverse", "weight_hh_l1_reverse", "bias_hh_l1_reverse"});
    StateDict extra = source.state_dict();
    extra.push_back({"weight_ih_l2", zeros({4, 4})});
    check_refused("extra", [&] { layer.load(extra); }, {"weight_ih_l2"});
    StateDict misshaped = source.state_dict();
    misshaped[0].tensor = zeros({misshaped[0].tensor.size(1), misshaped[0].tensor.size(0), 1});
    check_refused("shape", [&] { layer.load(misshaped); }, {misshaped[0].name, "1]"});
    check_refused("prefix", [&] { layer.load(source.state_dict("module.")); },
                  {"module.weight_ih_l0", "weight_ih_l0"});
  });

  // Biases for a layer that has none.
  const ref::Config bare_config = config_of(kind, 4, 4, 2, true, false);
  Recurrent bare = make_layer(bare_config);
  check_unchanged(context, bare, bare_config, [&] {
    check_refused("biases", [&] { bare.load(source.state_dict()); },
                  {"bias_ih_l0", "bias_hh_l1_reverse"});
  });

  // And then it works.
  layer.load(source.state_dict("module."), {.prefix = "module."});
  CHECK(parameter_bits(layer) == parameter_bits(source));
}
