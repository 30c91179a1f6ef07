#include "docs/examples/rrn/sudoku4.hpp"

#include <algorithm>
#include <numeric>

#include "docs/examples/rrn/draws.hpp"

namespace packrnn::rrn {
namespace {

constexpr std::int64_t kSide = 4, kBox = 2, kEmbedding = 16;
constexpr std::size_t kFewestGivens = 4, kMostGivens = 10;

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

bool share_unit(std::int64_t a, std::int64_t b) {
  const std::int64_t row_a = a / kSide, row_b = b / kSide, column_a = a % kSide,
                     column_b = b % kSide;
  return row_a == row_b || column_a == column_b ||
         (row_a / kBox == row_b / kBox && column_a / kBox == column_b / kBox);
}

void solve(Grid& grid, std::int64_t cell, std::vector<Grid>& found) {
  if (cell == kCells) {
    found.push_back(grid);
    return;
  }
  for (std::uint8_t digit = 1; digit <= kDigits; ++digit) {
    bool fits = true;
    for (std::int64_t before = 0; before < cell; ++before)
      fits = fits && !(grid[at(before)] == digit && share_unit(before, cell));
    if (!fits) continue;
    grid[at(cell)] = digit;
    solve(grid, cell + 1, found);
  }
}

Grid renamed(Grid grid, const std::array<std::uint8_t, kDigits>& names) {
  for (std::uint8_t& digit : grid)
    if (digit > 0) digit = names[digit - 1U];
  return grid;
}

/// Opens cells in any order while the solution stays the only one, down to a random number.
Puzzle make_puzzle(std::span<const Grid> solved, const Grid& solution, Draws& draws) {
  std::array<std::size_t, kCells> order{};
  std::iota(order.begin(), order.end(), std::size_t{0});
  draws.shuffle(std::span<std::size_t>(order));
  const std::size_t wanted = draws.between(kFewestGivens, kMostGivens);
  Puzzle puzzle{solution, solution};
  std::size_t givens = kCells;
  for (const std::size_t cell : order) {
    if (givens == wanted) break;
    puzzle.givens[cell] = 0;
    if (count_solutions(solved, puzzle.givens) == 1)
      --givens;
    else
      puzzle.givens[cell] = solution[cell];
  }
  return puzzle;
}

Tensor indices(std::int64_t count) { return Tensor::empty({count}, Dtype::i64); }

}  // namespace

std::vector<Edge> sudoku_edges() {
  std::vector<Edge> edges;
  for (std::int64_t to = 0; to < kCells; ++to)
    for (std::int64_t from = 0; from < kCells; ++from)
      if (from != to && share_unit(from, to)) edges.push_back({from, to});
  return edges;
}

std::vector<Grid> solved_grids() {
  std::vector<Grid> found;
  Grid grid{};
  solve(grid, 0, found);
  return found;
}

Grid canonical(const Grid& solved) {
  std::array<std::uint8_t, kDigits> names{};
  for (std::uint8_t i = 0; i < kDigits; ++i)
    names[solved[i] - 1U] = static_cast<std::uint8_t>(i + 1);
  return renamed(solved, names);
}

std::int64_t count_solutions(std::span<const Grid> solved, const Grid& givens) {
  return std::ranges::count_if(solved, [&](const Grid& grid) {
    for (std::size_t cell = 0; cell < givens.size(); ++cell)
      if (givens[cell] != 0 && givens[cell] != grid[cell]) return false;
    return true;
  });
}

Puzzle renamed(const Puzzle& puzzle, const std::array<std::uint8_t, kDigits>& names) {
  return {renamed(puzzle.givens, names), renamed(puzzle.solution, names)};
}

Sudoku4 make_sudoku4(std::uint64_t seed, const Sudoku4Sizes& sizes) {
  constexpr std::size_t kTrainClasses = 9, kValidClasses = 1;
  const std::vector<Grid> solved = solved_grids();
  std::vector<Grid> classes;
  for (const Grid& grid : solved)
    if (canonical(grid) == grid) classes.push_back(grid);
  Draws draws(seed);
  draws.shuffle(std::span(classes));
  const auto make = [&](std::span<const Grid> of, std::size_t count) {
    std::vector<Puzzle> puzzles;
    while (puzzles.size() < count) {
      std::array<std::uint8_t, kDigits> names{1, 2, 3, 4};
      draws.shuffle(std::span<std::uint8_t>(names));
      puzzles.push_back(make_puzzle(solved, renamed(draws.of(of), names), draws));
    }
    return puzzles;
  };
  const std::span<const Grid> all = classes;
  Sudoku4 data;
  data.train = make(all.first(kTrainClasses), sizes.train);
  data.valid = make(all.subspan(kTrainClasses, kValidClasses), sizes.valid);
  data.test = make(all.subspan(kTrainClasses + kValidClasses), sizes.test);
  return data;
}

SudokuBatch make_batch(std::span<const Puzzle> puzzles) {
  static const std::vector<Edge> kEdges = sudoku_edges();
  SudokuBatch batch;
  batch.graphs = make_graphs(std::vector<Graph>(puzzles.size(), {kCells, kEdges}));
  const std::int64_t M = batch.graphs.layout->total();
  for (Tensor* tensor : {&batch.digits, &batch.rows, &batch.columns, &batch.solution})
    *tensor = indices(M);
  for (std::size_t g = 0; g < puzzles.size(); ++g)
    for (std::int64_t cell = 0; cell < kCells; ++cell) {
      const std::size_t row = at(batch.graphs.layout->row(static_cast<std::int64_t>(g), cell));
      batch.digits.values<std::int64_t>()[row] = puzzles[g].givens[at(cell)];
      batch.rows.values<std::int64_t>()[row] = cell / kSide;
      batch.columns.values<std::int64_t>()[row] = cell % kSide;
      batch.solution.values<std::int64_t>()[row] = puzzles[g].solution[at(cell)] - 1;
    }
  return batch;
}

SudokuModel::SudokuModel(Making& making, std::int64_t hidden, Variant variant)
    : digit_(make_embedding(making, kDigits + 1, kEmbedding)),
      row_(make_embedding(making, kSide, kEmbedding)),
      column_(make_embedding(making, kSide, kEmbedding)),
      input_(making, std::array{3 * kEmbedding, hidden, hidden, hidden, hidden}),
      rrn_(making, {.hidden = hidden, .variant = variant}),
      readout_(make_linear(making, hidden, kDigits)) {}

std::vector<Variable> SudokuModel::scores(Tape& tape, const SudokuBatch& batch,
                                          std::int64_t steps) {
  const Variable x = input_.forward(
      tape, concat(tape, {digit_.forward(tape, batch.digits), row_.forward(tape, batch.rows),
                          column_.forward(tape, batch.columns)}));
  std::vector<Variable> scores;
  for (const Variable& h : rrn_.forward(tape, batch.graphs, x, {}, steps))
    scores.push_back(readout_.forward(tape, h));
  return scores;
}

Models SudokuModel::models() {
  Models models = {{"digit.", &digit_.parameters()},
                   {"row.", &row_.parameters()},
                   {"column.", &column_.parameters()}};
  input_.list(models, "input.");
  rrn_.list(models, "rrn.");
  models.push_back({"readout.", &readout_.parameters()});
  return models;
}

}  // namespace packrnn::rrn
