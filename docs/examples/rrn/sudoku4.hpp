// Sudoku on 4 x 4 cells, made by rule. There are 288 solved grids, 12 when digits may be renamed;
// the classes of the puzzles to learn from and to be judged by are different ones.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "docs/examples/rrn/model.hpp"

namespace packrnn::rrn {

constexpr std::int64_t kCells = 16, kDigits = 4;

/// Digits 1 to 4, row by row; 0 in an open cell.
using Grid = std::array<std::uint8_t, kCells>;

/// The cells whose digits must differ from that of `to`: of its row, column and 2 x 2 box. 112.
std::vector<Edge> sudoku_edges();
/// All solved grids.
std::vector<Grid> solved_grids();
/// Its class: digits renamed so that the first row is 1 2 3 4.
Grid canonical(const Grid& solved);
/// Of the solved grids, those that agree with the givens.
std::int64_t count_solutions(std::span<const Grid> solved, const Grid& givens);

/// `givens` have one solution and are 4 to 10 of its cells.
struct Puzzle {
  Grid givens, solution;
};
/// names[d - 1] in place of digit d.
Puzzle renamed(const Puzzle& puzzle, const std::array<std::uint8_t, kDigits>& names);

/// Of 9, 1 and 2 classes of grids.
struct Sudoku4 {
  std::vector<Puzzle> train, valid, test;
};
struct Sudoku4Sizes {
  std::size_t train = 3000, valid = 300, test = 600;
};
Sudoku4 make_sudoku4(std::uint64_t seed, const Sudoku4Sizes& sizes = {});

struct SudokuBatch {
  Graphs graphs;
  Tensor digits, rows, columns;  // [M] i64: 0 to 4, 0 to 3, 0 to 3
  Tensor solution;               // [M] i64: 0 to 3
};
SudokuBatch make_batch(std::span<const Puzzle> puzzles);

class SudokuModel {
 public:
  SudokuModel(Making& making, std::int64_t hidden, Variant variant);

  /// Scores [M, 4] after each step.
  std::vector<Variable> scores(Tape& tape, const SudokuBatch& batch, std::int64_t steps);
  Models models();

 private:
  Embedding digit_, row_, column_;
  Mlp input_;
  Rrn rrn_;
  Linear readout_;
};

}  // namespace packrnn::rrn
