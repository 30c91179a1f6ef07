#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "docs/examples/rrn/draws.hpp"
#include "docs/examples/rrn/sudoku4.hpp"
using namespace packrnn;
using namespace packrnn::rrn;
int main(int argc, char** argv) {
  int updates = argc > 1 ? atoi(argv[1]) : 100;
  std::uint64_t seed = argc > 2 ? atoi(argv[2]) : 1;
  auto variant = argc > 3 ? Variant::article : Variant::paper;
  auto t0 = std::chrono::steady_clock::now();
  auto sec = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
  };
  Sudoku4 data = make_sudoku4(seed);
  fmt::print("data {:.2f}s\n", sec());
  Context c(Device::cpu(), {.threads = 1});
  Making making{.generator = Generator(seed)};
  SudokuModel model(making, 32, variant);
  auto models = model.models();
  std::int64_t n = 0;
  for (auto* p : parameters_of(models))
    for (int i = 0; i < p->count(); ++i) n += p->value(i).elements();
  fmt::print("{} parameters\n", n);
  Adam adam(parameters_of(models), {.learning_rate = 2e-3});
  auto eval = [&](const std::vector<Puzzle>& ps, int steps) {
    std::vector<double> whole(steps), cells(steps);
    for (std::size_t a = 0; a < ps.size(); a += 50) {
      auto part = std::span(ps).subspan(a, std::min<std::size_t>(50, ps.size() - a));
      auto b = make_batch(part);
      Tape tape(c, {.training = false});
      auto s = model.scores(tape, b, steps);
      for (int t = 0; t < steps; ++t) {
        auto best = argmax(c, s[t].value());
        for (std::size_t g = 0; g < part.size(); ++g) {
          int right = 0;
          for (int k = 0; k < 16; ++k) {
            auto r = b.graphs.layout->row(g, k);
            right += best.values<std::int64_t>()[r] == b.solution.values<std::int64_t>()[r];
          }
          cells[t] += right;
          whole[t] += right == 16;
        }
      }
    }
    for (int t = 0; t < steps; ++t)
      fmt::print(" {:.4f}/{:.3f}", cells[t] / 16 / ps.size(), whole[t] / ps.size());
    fmt::print("\n");
  };
  t0 = std::chrono::steady_clock::now();
  for (int u = 0; u < updates; ++u) {
    Draws draws(seed, u + 1);
    std::vector<Puzzle> ps;
    for (int i = 0; i < 32; ++i) {
      std::array<std::uint8_t, 4> names{1, 2, 3, 4};
      draws.shuffle(std::span<std::uint8_t>(names));
      ps.push_back(renamed(draws.of(std::span<const Puzzle>(data.train)), names));
    }
    auto b = make_batch(ps);
    adam.zero_gradients();
    Tape tape(c);
    auto s = model.scores(tape, b, 6);
    auto loss = mean_cross_entropy(tape, s, b.solution);
    float l = loss.value().values<float>()[0];
    tape.backward(loss);
    adam.step(c);
    if ((u + 1) % 50 == 0) fmt::print("{} loss {:.4f} {:.1f}s\n", u + 1, l, sec());
    if ((u + 1) % 150 == 0 || u + 1 == updates) {
      eval(data.valid, 6);
    }
  }
  eval(data.test, 12);
}
