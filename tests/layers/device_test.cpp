// Layers on GPUs: where their weights and results lie, who waits for whom, several contexts and
// devices beside each other, graphs. What a layer computes is tested by the other files of this
// folder, on every device alike; here are the cases that only a GPU has.

#include <algorithm>
#include <optional>
#include <random>
#include <thread>

#include "packrnn/layers/linear.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/graph.hpp"
#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

constexpr const char* kNoGpu = "this is about GPUs, and PACKRNN_DEVICE is the CPU";

std::vector<Device> all_devices() {
  std::vector<Device> list{Device::cpu()};
  for (int i = 0; i < Device::cuda_count(); ++i) list.push_back(Device::cuda(i));
  return list;
}

struct Example {
  ref::Config config;
  Recurrent layer;
  Batch batch;

  explicit Example(Kind kind = Kind::lstm, Dtype dtype = Dtype::f32, int num_layers = 2)
      : config(config_of(kind, 6, 19, num_layers, true)),
        layer(make_layer(config, random_parameters(config), {.dtype = dtype})),
        batch(random_batch(config, {5, 0, 9, 2, 9, 1})) {}

  PackedSequence packed(Dtype dtype = Dtype::f32) const { return packed_of(config, batch, dtype); }
};

// Work that keeps a stream behind the others: streams are done in no order but what was asked for.
void keep_busy(Context& context) {
  for (int i = 0; i < 200; ++i) (void)context.zeros({8}, Dtype::f32);
}

}  // namespace

TEST_CASE("tensors on another device than the context are refused, with what to do") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Example example;
  Context gpu, cpu(Device::cpu(), {.threads = 1});
  const std::string name = gpu.device().name();
  const PackedSequence host = example.packed(), device = to_device(gpu, host);
  const Tensor padded = padded_of(example.config, example.batch, Dtype::f32, 9, false, 0.0);
  const State state = state_of(example.config, example.batch, Dtype::f32);
  const Lengths lengths{5, 0, 9, 2, 9, 1};
  const std::vector<std::string> here{"input", "cpu", name, "context.to_device()"};

  check_refused(
      "packed", [&] { (void)example.layer.forward(gpu, host); }, here);
  check_refused(
      "dense", [&] { (void)example.layer.forward(gpu, padded); }, here);
  check_refused(
      "padded", [&] { (void)example.layer.forward_padded(gpu, padded, lengths); }, here);
  check_refused("state", [&] { (void)example.layer.forward(gpu, device, {.state = state}); },
                {"h_0", "cpu", name, "context.to_device()"});
  check_refused("to the CPU", [&] { (void)example.layer.forward(cpu, device); },
                {"input", "cpu", name, "to_host()"});
  check_refused("pack", [&] { (void)pack_padded_sequence(gpu, padded, lengths); },
                {"padded", "cpu", name});
  check_refused("pad", [&] { (void)pad_packed_sequence(gpu, host); }, {"packed", "cpu", name});
  check_refused("unpack", [&] { (void)unpack_sequence(gpu, host); }, {"packed", "cpu", name});
  check_refused("last", [&] { (void)last_element(gpu, host); }, {"packed", "cpu", name});
  check_refused("mean", [&] { (void)mean_sequences(gpu, host); }, {"packed", "cpu", name});
  const std::vector<TensorView> list{padded};
  check_refused("list", [&] { (void)pack_sequence(gpu, list); }, {"cpu", name});
  const std::vector<const PackedSequence*> both{&device, &host};
  check_refused("concat", [&] { (void)concat_features(gpu, both); }, {"cpu", name});
  check_refused("a function of the host",
                [&] { (void)map_elements<float>(gpu, device, [](float v) { return v; }); },
                {name, "host"});

  // And nothing was harmed.
  const Run got = run(gpu, example.layer, example.config, example.batch);
  const Run expected = run(cpu, example.layer, example.config, example.batch);
  CHECK(first_difference(all_bits(got), all_bits(expected)) == -1);
}

TEST_CASE("results and states are where the context computes, and travel") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Example example;
  Context context;
  const PackedSequence x = to_device(context, example.packed());
  CHECK(x.data().device() == context.device());
  std::vector<Tensor> cells;
  const PackedOutput output = example.layer.forward(context, x, {.cells = &cells});
  CHECK(output.output.data().device() == context.device());
  CHECK(output.output.layout_ptr() == x.layout_ptr());
  CHECK(output.state.h.device() == context.device());
  CHECK(output.state.c.device() == context.device());
  for (const Tensor& layer : cells) CHECK(layer.device() == context.device());
  CHECK(pad_packed_sequence(context, output.output).device() == context.device());

  const State home = to_host(context, output.state), again = to_device(context, home);
  CHECK(home.h.device() == Device::cpu());
  CHECK(again.c.device() == context.device());
  CHECK(same_bits(to_host(context, again), home));
  CHECK_FALSE(to_host(context, State()).h.defined());
}

TEST_CASE("one layer serves the CPU and every GPU at once") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  PACKRNN_ONE_IN(5);
  const Example example(kind, dtype);
  const std::vector<Device> devices = all_devices();
  std::vector<std::vector<SequenceBits>> results(devices.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < devices.size(); ++i)
    threads.emplace_back([&, i] {
      Context context(devices[i], {.threads = 1});
      results[i] = all_bits(run(context, example.layer, example.config, example.batch));
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE(results.size() >= 2);
  for (const std::vector<SequenceBits>& result : results)
    CHECK(first_difference(result, results[0]) == -1);
}

TEST_CASE("a tensor goes from one GPU to another") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  if (Device::cuda_count() < 2) PACKRNN_SKIP("there is only one GPU");
  const Example example;
  Context first(Device::cuda(0)), second(Device::cuda(1));
  const PackedSequence x = to_device(first, example.packed());
  check_refused("other GPU", [&] { (void)example.layer.forward(second, x); },
                {"input", "cuda:0", "cuda:1", "context.to_device()"});
  // A model in two halves: the output of the first is the input of the second.
  const ref::Config upper = config_of(Kind::gru, 38, 8);
  const Recurrent top = make_layer(upper, random_parameters(upper));
  PackedOutput lower = example.layer.forward(first, x);
  second.wait_for(first);
  const PackedSequence moved = to_device(second, lower.output);
  const PackedSequence got = to_host(second, top.forward(second, moved).output);

  Context cpu(Device::cpu(), {.threads = 1});
  const PackedSequence expected =
      top.forward(cpu, example.layer.forward(cpu, example.packed()).output).output;
  CHECK(same_bits(got.data(), expected.data()));
  first.wait_for(second);  // before what it lent is given back
}

TEST_CASE("a second stream waits for weights that the first one is still bringing") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Kind kind = GENERATE(from_range(kKinds));
  const Example example(kind);
  Context cpu(Device::cpu(), {.threads = 1});
  const PackedOutput expected = example.layer.forward(cpu, example.packed());
  Context first, second, third;
  const PackedSequence x = to_device(first, example.packed());
  const PackedSequence y = to_device(second, example.packed());
  const PackedSequence z = to_device(third, example.packed());
  keep_busy(first);
  const PackedOutput a = example.layer.forward(first, x);  // brings the weights, on its stream
  const std::int64_t before = gpu::waits();
  const PackedOutput b = example.layer.forward(second, y);
  const PackedOutput c = example.layer.forward(third, z);
  CHECK(gpu::waits() == before);
  // Each waits for its own stream only, the first one's last.
  for (auto& [context, output] :
       {std::pair<Context&, const PackedOutput&>(third, c), {second, b}, {first, a}}) {
    CHECK(same_bits(to_host(context, output.output).data(), expected.output.data()));
    CHECK(same_bits(to_host(context, output.state), expected.state));
  }
}

TEST_CASE("new weights reach every device, and a running call keeps the old ones") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  Example example;
  const std::vector<ref::Parameter> changed = random_parameters(example.config, 2);
  std::vector<std::optional<Context>> contexts;
  for (const Device device : all_devices()) contexts.emplace_back(Context(device, {.threads = 1}));
  std::vector<PackedOutput> running;
  std::vector<PackedSequence> inputs;
  for (auto& context : contexts) {
    inputs.push_back(host::up(*context, example.packed()));
    running.push_back(example.layer.forward(*context, inputs.back()));
  }
  set_parameters(example.layer, changed);  // while the devices may still be at work
  const Recurrent reference = make_layer(example.config, changed);
  std::vector<PackedOutput> renewed;
  for (std::size_t i = 0; i < contexts.size(); ++i)
    renewed.push_back(example.layer.forward(*contexts[i], inputs[i]));
  Context cpu(Device::cpu(), {.threads = 1});
  const Example old;
  const PackedOutput before = old.layer.forward(cpu, old.packed());
  const PackedOutput after = reference.forward(cpu, example.packed());
  CHECK_FALSE(same_bits(before.output.data(), after.output.data()));
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    CHECK(same_bits(to_host(*contexts[i], running[i].output).data(), before.output.data()));
    CHECK(same_bits(to_host(*contexts[i], renewed[i].output).data(), after.output.data()));
  }
}

TEST_CASE("weights that are replaced stay until every stream is done with them") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Kind kind = GENERATE(from_range(kKinds));
  Example example(kind);
  Linear head({.in_features = 6, .out_features = 5, .seed = 1});
  Context cpu(Device::cpu(), {.threads = 1});
  const PackedOutput expected = example.layer.forward(cpu, example.packed());
  const PackedSequence expected_head = head.forward(cpu, example.packed());
  Context first, second;
  const PackedSequence x = to_device(first, example.packed());
  const PackedSequence y = to_device(second, example.packed());
  (void)to_host(first, example.layer.forward(first, x));  // the weights are there
  (void)to_host(first, head.forward(first, x));
  keep_busy(second);
  const PackedOutput late = example.layer.forward(second, y);
  keep_busy(second);
  const PackedSequence late_head = head.forward(second, y);
  set_parameters(example.layer, random_parameters(example.config, 2));
  head.parameters().set("weight", Tensor::zeros({5, 6}, Dtype::f32));
  (void)example.layer.forward(first, x);  // new weights in place of the old ones
  (void)head.forward(first, x);
  first.synchronize();
  CHECK(same_bits(to_host(second, late.output).data(), expected.output.data()));
  CHECK(same_bits(to_host(second, late_head).data(), expected_head.data()));
}

TEST_CASE("results outlive the layer, the input and the context that made them") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Kind kind = GENERATE(from_range(kKinds));
  PackedOutput output;
  Context reader;
  std::vector<SequenceBits> expected;
  {
    const Example example(kind);
    Context cpu(Device::cpu(), {.threads = 1}), context;
    const PackedSequence x = to_device(context, example.packed());
    output = example.layer.forward(context, x);
    reader.wait_for(context);
    const PackedOutput on_cpu = example.layer.forward(cpu, example.packed());
    expected = all_bits(Run{on_cpu.output.clone(), {on_cpu.state.h.clone(), {}}, {}});
  }
  PackedOutput home = to_host(reader, output);
  home.state.c = {};
  const Run got{std::move(home.output), std::move(home.state), {}};
  CHECK(first_difference(all_bits(got), expected) == -1);
}

TEST_CASE("a stream of pieces keeps its state on the device") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 5, 17, 2);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  const Batch batch = random_batch(config, {11, 4, 0, 7});
  Context context;
  const Run whole = run(context, layer, config, batch);
  State state = to_device(context, state_of(config, batch, dtype));
  std::vector<PackedSequence> pieces;
  for (const auto& [begin, end] : {std::pair{0, 3}, {3, 4}, {4, 11}}) {
    Batch piece;
    for (const ref::Sequence& sequence : batch)
      piece.push_back(steps_of(config, sequence, begin, end));
    const PackedSequence x = to_device(context, packed_of(config, piece, dtype));
    PackedOutput output = layer.forward(context, x, {.state = state});
    state = std::move(output.state);  // never seen by the host
    pieces.push_back(std::move(output.output));
  }
  CHECK(same_bits(to_host(context, state), whole.state));
  const PackedSequence last = to_host(context, pieces.back());
  CHECK(same_bits(last.data().rows(last.layout().row(0, 6), last.layout().row(0, 6) + 1),
                  whole.output.data().rows(whole.output.layout().row(0, 10),
                                           whole.output.layout().row(0, 10) + 1)));
}

TEST_CASE("lengths on the device: the same results, and nobody waits") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  const bool batch_first = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  if (batch_first && dtype != Dtype::f32) return;  // one dtype is enough for that
  const ref::Config config = config_of(kind, 5, 17, 2, true);
  const Recurrent layer =
      make_layer(config, random_parameters(config), {.dtype = dtype, .batch_first = batch_first});
  Context context;
  for (const Counts& lengths :
       {Counts{3, 6, 0, 8, 3}, Counts{0, 0, 0, 0, 0}, Counts{8, 8, 8, 8, 8}}) {
    CAPTURE(lengths);
    const Batch batch = random_batch(config, lengths);
    const Tensor x =
        context.to_device(padded_of(config, batch, dtype, 8, batch_first, double(NAN)));
    const State state = to_device(context, state_of(config, batch, dtype));
    const Tensor device_lengths =
        context.to_device(Tensor::from(lengths, {static_cast<std::int64_t>(lengths.size())}));
    const DenseOutput expected =
        to_host(context, layer.forward_padded(context, x, lengths, {.state = state}));

    const std::int64_t before = gpu::waits();
    const DenseOutput got =
        layer.forward_padded(context, x, DeviceLengths{device_lengths}, {.state = state});
    const PackedSequence packed = pack_padded_sequence(context, x, DeviceLengths{device_lengths},
                                                       {.batch_first = batch_first});
    const PackedOutput output = layer.forward(context, packed, {.state = state});
    const Tensor last = last_element(context, output.output, -2.0);
    const Tensor mean = mean_sequences(context, output.output, -2.0);
    CHECK(gpu::waits() == before);
    CHECK_FALSE(packed.layout().known());

    const DenseOutput home = to_host(context, got);
    CHECK(same_bits(home.output, expected.output));
    CHECK(same_bits(home.state, expected.state));
    CHECK(same_bits(to_host(context, output.state), expected.state));
    const PackedSequence known = to_host(context, output.output);
    REQUIRE(known.layout().known());
    CHECK(Counts(known.lengths().begin(), known.lengths().end()) == lengths);
    CHECK(same_bits(host::pad_packed_sequence(context, known, {.batch_first = batch_first}),
                    expected.output));
    CHECK(same_bits(context.to_host(last), host::last_element(context, known, -2.0)));
    CHECK(same_bits(context.to_host(mean), host::mean_sequences(context, known, -2.0)));
    CHECK_THROWS_AS(unpack_sequence(context, output.output), Unsupported);
    CHECK_THROWS_AS(packed.lengths(), Unsupported);
  }
}

TEST_CASE("C3 masks follow the sequence id with lengths on the device too") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const ref::Config config = config_of(Kind::gru, 3, 6, 2, true);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dropout = 0.5});
  const Counts lengths{2, 5, 0, 4}, ids{70, -3, 5, std::int64_t{1} << 40};
  const Batch batch = random_batch(config, lengths, 1, false);
  Context context;
  const Tensor x = context.to_device(padded_of(config, batch, Dtype::f32, 5, false, 0.0));
  const Tensor there = context.to_device(Tensor::from(lengths, {4}));
  const auto output = [&](const PackedSequence& packed) {
    context.random().reseed(4);
    return to_host(context, layer.forward(context, packed, {.training = true}).output);
  };
  const PackedSequence known =
      output(pack_padded_sequence(context, x, lengths, {.sequence_ids = ids}));
  const PackedSequence unknown =
      output(pack_padded_sequence(context, x, DeviceLengths{there}, {.sequence_ids = ids}));
  const PackedSequence unnamed = output(pack_padded_sequence(context, x, DeviceLengths{there}));
  CHECK(same_bits(unknown.data(), known.data()));
  CHECK_FALSE(same_bits(unnamed.data(), known.data()));
  const auto names = unknown.layout().sequence_ids();
  CHECK(Counts(names.begin(), names.end()) == ids);
  check_refused(
      "count",
      [&] {
        (void)pack_padded_sequence(context, x, DeviceLengths{there}, {.sequence_ids = {1, 2}});
      },
      {"sequence_ids", "2", "4"});
  check_refused("order",
                [&] {
                  (void)pack_padded_sequence(context, x, DeviceLengths{there},
                                             {.enforce_sorted = true});
                  context.synchronize();
                },
                {"lengths[", "after", "enforce_sorted"});
}

TEST_CASE("wrong lengths on the device are found there, and the next call works") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const ref::Config config = config_of(Kind::lstm, 3, 5);
  const Recurrent layer = make_layer(config, random_parameters(config));
  Context context;
  const Tensor x = context.zeros({4, 3, 3}, Dtype::f32);
  const auto call = [&](const std::vector<std::int64_t>& lengths, std::int64_t most_rows = -1) {
    const Tensor there = context.to_device(Tensor::from(lengths, {3}));
    return to_host(context, layer.forward_padded(context, x, DeviceLengths{there, most_rows}, {}));
  };
  check_refused("negative", [&] { (void)call({2, -1, 4}); }, {"lengths[1]", "-1"});
  check_refused("beyond T", [&] { (void)call({2, 1, 7}); }, {"lengths[2]", "7", "4"});
  check_refused("more rows", [&] { (void)call({4, 4, 4}, 11); }, {"12", "11"});
  const Tensor two = context.zeros({2}, Dtype::i64), real = context.zeros({3}, Dtype::f32);
  const Tensor host_lengths = Tensor::zeros({3}, Dtype::i64);
  const auto pack = [&](const TensorView& lengths) {
    return [&, lengths] { (void)pack_padded_sequence(context, x, DeviceLengths{lengths}); };
  };
  check_refused("count", pack(two), {"2", "3"});
  check_refused("on the host", pack(host_lengths), {"lengths", "cpu", context.device().name()});
  check_refused("undefined", pack(TensorView{}), {"lengths"});
  CHECK(same_bits(
      call({2, 1, 4}).output,
      host::forward_padded(context, layer, Tensor::zeros({4, 3, 3}, Dtype::f32), Lengths{2, 1, 4})
          .output));
  CHECK(same_bits(call({2, 1, 4}, 7).output, call({2, 1, 4}).output));
}

TEST_CASE("one captured graph serves any lengths up to its capacity") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 5, 17, 2, true);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  Context context;
  const std::int64_t T = 7, N = 4;
  Tensor x = context.zeros({T, N, 5}, dtype), lengths = context.zeros({N}, Dtype::i64);
  DenseOutput output;
  const auto body = [&] { output = layer.forward_padded(context, x, DeviceLengths{lengths}); };
  check_refused("no weights yet", [&] { (void)capture(context, body); }, {"before a capture"});
  body();
  Graph graph = capture(context, body);
  std::mt19937 generator(3);
  for (int round = 0; round < 4; ++round) {
    const Counts these = round == 0 ? Counts(4, 0) : random_lengths(generator, N, 0, T);
    const Batch batch = random_batch(config, these, static_cast<unsigned>(round) + 1, false);
    const Tensor input = padded_of(config, batch, dtype, T, false, 0.0);
    context.copy(input, x);
    context.copy(Tensor::from(these, {N}), lengths);
    const std::int64_t before = gpu::waits();
    graph.launch(context);
    CHECK(gpu::waits() == before);
    const DenseOutput got = to_host(context, output);
    const DenseOutput expected = host::forward_padded(context, layer, input, these);
    CHECK(same_bits(got.output, expected.output));
    CHECK(same_bits(got.state, expected.state));
  }
}

TEST_CASE("out of memory on the device leaves layer and context usable") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Example example;
  Context context;
  const Run before = run(context, example.layer, example.config, example.batch);
  // 2^20 rows of 2^20 floats: 4 TiB, of one small table and a few indices.
  const Embedding wide({.num_embeddings = 1, .embedding_dim = std::int64_t{1} << 20});
  const Tensor indices = context.zeros({std::int64_t{1} << 20}, Dtype::i32);
  CHECK_THROWS_AS(wide.forward(context, indices), OutOfMemory);
  const PackedSequence packed = to_device(context, before.output);
  CHECK_THROWS_AS(pad_packed_sequence(context, packed, {.total_length = std::int64_t{1} << 36}),
                  OutOfMemory);
  CHECK_THROWS_AS(context.empty({std::int64_t{1} << 42}, Dtype::f64), OutOfMemory);
  CHECK(first_difference(all_bits(run(context, example.layer, example.config, example.batch)),
                         all_bits(before)) == -1);
  const Tensor one = context.zeros({1}, Dtype::i32);
  CHECK(wide.forward(context, one).shape() == Shape{1, std::int64_t{1} << 20});
}

TEST_CASE("an index out of range is reported when the host waits, once") {
  if (!on_device()) PACKRNN_SKIP(kNoGpu);
  const Embedding layer({.num_embeddings = 4, .embedding_dim = 2});
  Context context;
  const Tensor bad = context.to_device(Tensor::from<std::int64_t>({1, 9, 2}, {3}));
  const Tensor good = context.to_device(Tensor::from<std::int64_t>({1, 3, 2}, {3}));
  const Tensor rows = layer.forward(context, bad);  // does not look
  check_refused("index", [&] { context.synchronize(); }, {"index 1", "9", "less than 4"});
  CHECK_NOTHROW(context.synchronize());
  (void)rows;
  const Tensor expected = Tensor::copy_of(layer.parameters().value("weight").rows(3, 4));
  CHECK(same_bits(context.to_host(layer.forward(context, good)).view().rows(1, 2), expected));
}
