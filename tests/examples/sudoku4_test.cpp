#include "docs/examples/rrn/sudoku4.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn::rrn {
namespace {

/// Whether every row, column and box has each digit, counted apart from the product.
bool is_solved(const Grid& grid) {
  for (std::size_t unit = 0; unit < 4; ++unit) {
    std::set<int> row, column, box;
    for (std::size_t i = 0; i < 4; ++i) {
      row.insert(grid[unit * 4 + i]);
      column.insert(grid[i * 4 + unit]);
      box.insert(grid[(unit / 2 * 2 + i / 2) * 4 + unit % 2 * 2 + i % 2]);
    }
    const std::set<int> digits{1, 2, 3, 4};
    if (row != digits || column != digits || box != digits) return false;
  }
  return true;
}

TEST_CASE("there are 288 solved grids in 12 classes") {
  const std::vector<Grid> grids = solved_grids();
  CHECK(grids.size() == 288);
  CHECK(std::set<Grid>(grids.begin(), grids.end()).size() == 288);
  CHECK(std::ranges::all_of(grids, is_solved));
  std::set<Grid> classes;
  for (const Grid& grid : grids) classes.insert(canonical(grid));
  CHECK(classes.size() == 12);
  CHECK(std::ranges::all_of(classes, [](const Grid& grid) { return canonical(grid) == grid; }));
}

TEST_CASE("a cell hears from the seven cells that share a row, column or box with it") {
  const std::vector<Edge> edges = sudoku_edges();
  CHECK(edges.size() == 112);
  std::vector<std::int64_t> to_first;
  for (const Edge& edge : edges)
    if (edge.to == 0) to_first.push_back(edge.from);
  CHECK(to_first == std::vector<std::int64_t>{1, 2, 3, 4, 5, 8, 12});
}

TEST_CASE("puzzles have one solution, 4 to 10 givens, and classes of their own in each part") {
  const Sudoku4 data = make_sudoku4(7, {.train = 400, .valid = 60, .test = 100});
  const std::vector<Grid> grids = solved_grids();
  std::vector<std::set<Grid>> classes;
  std::set<std::int64_t> counts;
  for (const auto* part : {&data.train, &data.valid, &data.test}) {
    classes.emplace_back();
    for (const Puzzle& puzzle : *part) {
      REQUIRE(is_solved(puzzle.solution));
      REQUIRE(count_solutions(grids, puzzle.givens) == 1);
      for (std::size_t cell = 0; cell < puzzle.givens.size(); ++cell)
        REQUIRE((puzzle.givens[cell] == 0 || puzzle.givens[cell] == puzzle.solution[cell]));
      const auto open = std::ranges::count(puzzle.givens, 0);
      REQUIRE((open >= 6 && open <= 12));
      counts.insert(16 - open);
      classes.back().insert(canonical(puzzle.solution));
    }
  }
  CHECK(counts == std::set<std::int64_t>{4, 5, 6, 7, 8, 9, 10});
  CHECK(classes[0].size() == 9);
  CHECK(classes[1].size() == 1);
  CHECK(classes[2].size() == 2);
  std::set<Grid> all;
  for (const std::set<Grid>& part : classes) all.insert(part.begin(), part.end());
  CHECK(all.size() == 12);
}

TEST_CASE("equal seeds make equal puzzles, others do not") {
  const Sudoku4Sizes few{.train = 20, .valid = 5, .test = 5};
  const auto givens = [&](std::uint64_t seed) {
    std::vector<Grid> all;
    for (const Puzzle& puzzle : make_sudoku4(seed, few).train) all.push_back(puzzle.givens);
    return all;
  };
  CHECK(givens(1) == givens(1));
  CHECK(givens(1) != givens(2));
}

TEST_CASE("a batch has each cell in the row of its node") {
  const Sudoku4 data = make_sudoku4(1, {.train = 3, .valid = 1, .test = 1});
  const std::array<std::uint8_t, kDigits> names{2, 3, 4, 1};
  const std::vector<Puzzle> puzzles{data.train[0], renamed(data.train[1], names)};
  const SudokuBatch batch = make_batch(puzzles);
  REQUIRE(batch.graphs.layout->total() == 32);
  for (std::int64_t g = 0; g < 2; ++g)
    for (std::int64_t cell = 0; cell < kCells; ++cell) {
      const auto row = static_cast<std::size_t>(batch.graphs.layout->row(g, cell));
      const auto own = static_cast<std::size_t>(cell);
      int given = data.train[static_cast<std::size_t>(g)].givens[own];
      int digit = data.train[static_cast<std::size_t>(g)].solution[own];
      if (g == 1) {
        if (given > 0) given = given % 4 + 1;
        digit = digit % 4 + 1;
      }
      CHECK(batch.digits.values<std::int64_t>()[row] == given);
      CHECK(batch.solution.values<std::int64_t>()[row] == digit - 1);
      CHECK(batch.rows.values<std::int64_t>()[row] == cell / 4);
      CHECK(batch.columns.values<std::int64_t>()[row] == cell % 4);
      CHECK(batch.graphs.graph.values<std::int64_t>()[row] == g);
    }
}

}  // namespace
}  // namespace packrnn::rrn
