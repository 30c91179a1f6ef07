// The recurrent kernel by itself, on the device under test; its numbers on every instruction set.
// What layers make of it is tested in tests/layers.
#include "packrnn/kernels/recurrent.hpp"

#include <string>
#include <vector>

#include "packrnn/kernels/cpu_target.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/cpu_targets.hpp"
#include "tests/kernels/recurrent_problem.hpp"

using namespace packrnn;
using namespace packrnn::tests;
using Catch::Matchers::Contains;
using kernels::Cell;

TEST_CASE("every cell agrees with the double reference on every instruction set") {
  NEEDS_THE_CPU;
  const auto cell =
      GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto hidden = GENERATE(1, 9, 67);
  const auto reverse = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  // Rows 1 .. 70 live at some step: every tile height, one and two groups, rows and columns.
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < 70; ++n) lengths.push_back((n * 37) % 71);
  const RecurrentProblem problem(
      {cell, 5, hidden, cell == Cell::lstm && hidden > 1 ? hidden / 3 : 0, dtype}, lengths,
      {reverse});
  for_each_cpu_target([&](const std::string& target) {
    const int threads = hidden == 67 ? 2 : 1;
    INFO(target << " " << name_of(cell) << " H " << hidden << " reverse " << reverse);
    Context context(Device::cpu(), {.threads = threads});
    CHECK(problem.error(problem.run(context)) <= 1.0);
  });
}

TEST_CASE("every cell agrees with the double reference on the device") {
  const auto cell =
      GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const auto projection = GENERATE(0, 4);
  const auto states = GENERATE(false, true);
  PACKRNN_ONE_IN(3);
  if (projection > 0 && cell != Cell::lstm) return;
  Context context;
  if (context.device() == Device::cpu() && (dtype == Dtype::f16 || dtype == Dtype::bf16)) return;
  const RecurrentProblem problem({cell, 3, 12, projection, dtype}, {3, 0, 7, 1, 5}, {false, true},
                                 states, states);
  INFO(name_of(cell) << " " << name_of(dtype) << " P " << projection << " states " << states);
  CHECK(problem.error(problem.run(context)) <= 1.0);
}

TEST_CASE("a batch of empty sequences, and no batch at all") {
  Context context;
  const RecurrentProblem empty({Cell::lstm, 3, 4, 0, Dtype::f32}, {0, 0, 0}, {false, true});
  CHECK(empty.error(empty.run(context)) <= 1.0);
  const RecurrentProblem nothing({Cell::gru, 3, 4, 0, Dtype::f32}, {}, {false});
  CHECK(nothing.error(nothing.run(context)) <= 1.0);
}

TEST_CASE("the instruction set in use has a name") {
  for_each_cpu_target([](const std::string& target) {
    CHECK_THAT(kernels::cpu_target(), Contains(target) && Contains("-bit vectors"));
  });
}

TEST_CASE("what will run has a reason") {
  Context context;
  const RecurrentProblem p({Cell::gru, 3, 4, 0, Dtype::f32}, {2, 1});
  CHECK_THAT(kernels::explain_recurrent(context, p.shape, *p.layout, 1),
             Contains("GRU") && Contains("H=4"));
}

TEST_CASE("the recurrent kernel names what does not fit") {
  Context context;
  const Device device = context.device();
  const RecurrentProblem p({Cell::gru, 3, 4, 0, Dtype::f32}, {2, 1}, {false}, false);
  const RecurrentProblem::Direction& w = p.direction[0];
  Tensor panels = context.empty({kernels::recurrent_panel_elements(device, p.shape)}, Dtype::f32);
  CHECK_THROWS_WITH(kernels::pack_recurrent(context, p.shape, {w.w_hh, w.w_hh, {}, {}, {}}, panels),
                    Contains("w_ih has shape [12, 4], expected [12, 3]"));
  kernels::pack_recurrent(context, p.shape, {w.w_ih, w.w_hh, w.b_ih, w.b_hh, {}}, panels);
  Tensor y = context.empty({3, 4}, Dtype::f32), h_n = context.empty({2, 4}, Dtype::f32);
  const Tensor x = context.to_device(p.x), wrong = context.to_device(w.w_hh);
  kernels::RecurrentDirection d{
      .panels = panels, .reverse = false, .h_0 = {}, .c_0 = {}, .h_n = h_n, .c_n = {}};
  const auto forward = [&](const TensorView& input) {
    kernels::recurrent_forward(context, p.shape, *p.layout, input, {&d, 1}, y);
  };
  CHECK_THROWS_WITH(forward(wrong), Contains("x has shape [12, 4], expected [3, 3]"));
  d.c_0 = h_n;
  CHECK_THROWS_WITH(forward(x), Contains("c_0: GRU has no cell state"));
  d.c_0 = {};
  d.h_0 = y;
  CHECK_THROWS_WITH(forward(x), Contains("h_0 has shape [3, 4], expected [2, 4]"));
  d.h_0 = {};
  if (device.type == DeviceType::cuda)
    CHECK_THROWS_WITH(forward(p.x), Contains("x is on cpu, expected cuda:0"));
  CHECK_NOTHROW(forward(x));
  CHECK_THROWS_WITH(kernels::recurrent_panel_elements(device, {Cell::gru, 3, 4, 2, Dtype::f32}),
                    Contains("projection 2 is for an LSTM only"));
  CHECK_THROWS_AS(kernels::recurrent_panel_elements(device, {Cell::gru, 3, 4, 0, Dtype::i32}),
                  Unsupported);
  CHECK_THROWS_AS(
      kernels::recurrent_panel_elements(Device::cpu(), {Cell::gru, 3, 4, 0, Dtype::bf16}),
      Unsupported);
}
