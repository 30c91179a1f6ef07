// A distribution of sequence lengths, known as a histogram, as quantiles or as a list of lengths.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace packrnn::bench {

class LengthDistribution {
 public:
  /// Of a table with the columns "length,count" (a histogram) or "quantile,seconds" (from quantile
  /// 0 to 1). Lines that start with # are comments. Seconds become steps by `steps_per_second`,
  /// rounded down. Throws InvalidArgument naming `name` and the line.
  static LengthDistribution parse(std::string_view name, std::string_view csv,
                                  double steps_per_second = 1.0);
  /// Each of these lengths, equally often. At least one, all >= 0: else InvalidArgument.
  static LengthDistribution of(std::vector<std::int64_t> lengths);

  /// The length below which the fraction `u` of all sequences lies, 0 <= u < 1; linear between
  /// quantiles. A uniform random u gives a random length.
  std::int64_t sample(double u) const;

  std::int64_t min() const { return sample(0.0); }
  std::int64_t max() const;
  double mean() const;

 private:
  /// The length grows from `from` to `to` while u grows up to `until`.
  struct Piece {
    double until, from, to;
  };

  void add(double until, double from, double to);

  std::vector<Piece> pieces_;
};

}  // namespace packrnn::bench
